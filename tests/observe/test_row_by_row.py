"""Rows at once or one after the other: the same numbers, whatever the model does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedspill.observe.row_by_row import one_after_the_other, row_by_row


class Branching(nn.Module):
    """Its forward looks at values, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return -out if out.sum() > 0 else out


def gradient_of(model: nn.Module):  # type: ignore[no-untyped-def]
    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, parameters, (x[None],)).square().sum()

    return grad(loss)


def test_a_loop_gives_what_vmap_gives() -> None:
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    at_once = row_by_row(gradient_of(model), (None, 0))(parameters, x)
    looped = one_after_the_other(gradient_of(model), (None, 0), (parameters, x))
    assert at_once.keys() == looped.keys()
    assert all(torch.allclose(at_once[name], looped[name]) for name in at_once)


def test_a_model_that_branches_on_its_values_is_run_row_by_row() -> None:
    model, x = Branching(), torch.randn(5, 3)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    found = row_by_row(gradient_of(model), (None, 0))(parameters, x)
    assert found["layer.weight"].shape == (5, 2, 3)
    plain = nn.Linear(3, 2)  # the square of the output does not see its sign
    plain.load_state_dict(model.layer.state_dict())
    named = {name.removeprefix("layer."): tensor for name, tensor in parameters.items()}
    assert torch.allclose(found["layer.weight"], row_by_row(gradient_of(plain), (None, 0))(named, x)["weight"])


def test_every_argument_can_have_rows() -> None:
    model, x = Branching(), torch.randn(4, 6, 3)
    stacked = {name: torch.stack([p.detach() * k for k in range(4)]) for name, p in model.named_parameters()}
    out = row_by_row(lambda state, x: functional_call(model, state, (x,)), (0, 0))(stacked, x)
    assert out.shape == (4, 6, 2)
    assert not out[0].any()


def test_what_is_wrong_with_the_function_itself_is_raised() -> None:
    with pytest.raises(RuntimeError):
        row_by_row(lambda x: x @ torch.zeros(7, 7), (0,))(torch.zeros(2, 3))
