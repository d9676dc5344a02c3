"""The first linear layer of a network, in which a malicious server plants rows that read the inputs, and what it sends.

Nothing but the layer must be known of the network: a hook on it catches what goes in and what comes out, so any model
will do whose first linear layer reads the input, or features of it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.errors import NotAChain, NotApplicable
from fedspill.models.module_chain import kind_of, module_chain
from fedspill.training import is_single

_SILENT = (nn.Flatten, nn.Dropout, nn.Identity)  # no parameters, and order is all that matters of them


@dataclass(frozen=True)
class PlantedLayer:
    """Names of the first linear layer and of the next one, and the modules that come before the first."""

    name: str
    second: str
    before: tuple[str, ...]  # names of modules with parameters that run before it

    @property
    def weight(self) -> str:
        return f"{self.name}.weight"

    @property
    def bias(self) -> str:
        return f"{self.name}.bias"

    @property
    def second_weight(self) -> str:
        return f"{self.second}.weight"


def first_layer_of(model: nn.Module) -> PlantedLayer:
    """The first linear layer with a bias, rectified, and the linear layer behind it; other models: NotApplicable."""
    leaves = [(name, module) for name, module in parts_of(model) if not isinstance(module, _SILENT)]
    places = [place for place, (_, module) in enumerate(leaves) if isinstance(module, nn.Linear)]
    if len(places) < 2:
        raise NotApplicable("Rows are planted in a linear layer that another one follows; this network has none.")
    one, two = places[:2]
    between = [module for _, module in leaves[one + 1 : two]]
    if leaves[one][1].bias is None or len(between) != 1 or not isinstance(between[0], nn.ReLU):
        raise NotApplicable(
            "Rows are planted in a first linear layer with a bias, a ReLU and a linear layer behind it; "
            f"here {', '.join(map(kind_of, between)) or 'nothing'} lies between the two."
        )
    before = tuple(name for name, module in leaves[:one] if list(module.parameters()))
    return PlantedLayer(leaves[one][0], leaves[two][0], before)


def parts_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """What the network does, in the order it does it, whatever its class; NotApplicable where that cannot be told."""
    try:
        return module_chain(model)
    except NotAChain as error:
        raise NotApplicable(f"Rows are planted in a network whose layers run one after the other: {error}.") from None


@dataclass(frozen=True, eq=False)
class Passed:
    """What the first layer got and gave for samples, and what the network said of them; with a graph to z."""

    features: Tensor  # (n, features) that went into the layer
    z: Tensor  # (n, rows) that came out of it
    logits: Tensor  # (n, classes)


@dataclass(frozen=True, eq=False)
class PlantedNetwork:
    """A network as it was handed out, in evaluation mode, with its first layer watched; `of` has it in float64."""

    model: nn.Module
    layer: PlantedLayer

    @staticmethod
    def of(model: nn.Module, state: Mapping[str, Tensor]) -> PlantedNetwork:
        own = copy.deepcopy(model)
        own.load_state_dict({**own.state_dict(), **state})
        return PlantedNetwork(own.double().eval(), first_layer_of(own))

    @property
    def first(self) -> nn.Linear:
        found = self.model.get_submodule(self.layer.name)
        assert isinstance(found, nn.Linear)
        return found

    @property
    def second(self) -> nn.Linear:
        found = self.model.get_submodule(self.layer.second)
        assert isinstance(found, nn.Linear)
        return found

    def passed(self, x: Tensor) -> Passed:
        """Runs samples (n, *shape) through the network."""
        caught: list[tuple[Tensor, Tensor]] = []

        def catch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            z = output.detach().requires_grad_()
            caught.append((inputs[0].detach(), z))
            return z

        handle = self.first.register_forward_hook(catch)
        try:
            with torch.enable_grad():
                logits = self.model(x.to(self.first.weight))
        finally:
            handle.remove()
        features, z = caught[0]
        return Passed(features, z, logits[:, None] if logits.ndim == 1 else logits)

    def sent_by_label(self, passed: Passed, rows: Tensor, less: Tensor, share: Tensor) -> Tensor:
        """(n, labels) what sample i sends back to row rows[i], less share[i] of what it sends to row less[i].

        rows, less, share (n,); where nothing is to be taken off, share is 0. One backward pass through a backward pass
        gives the slopes of all logits at once.
        """
        with torch.enable_grad():
            dual = torch.zeros_like(passed.logits, requires_grad=True)
            (back,) = torch.autograd.grad((passed.logits * dual).sum(), [passed.z], create_graph=True)
            picked = back.gather(1, rows[:, None])[:, 0] - share * back.gather(1, less[:, None])[:, 0]
            (slopes,) = torch.autograd.grad(picked.sum(), [dual], retain_graph=True)
        if is_single(passed.logits):
            chance = torch.sigmoid(passed.logits.detach())
            return torch.cat([chance * slopes, (chance - 1) * slopes], 1)
        mean = (torch.softmax(passed.logits.detach(), 1) * slopes).sum(1, keepdim=True)
        return mean - slopes

    def sent(self, passed: Passed, labels: Tensor) -> Tensor:
        """(n, rows) what samples of these labels send back to the first layer."""
        logits = passed.logits
        if is_single(logits):
            residuals = torch.sigmoid(logits.detach()) - labels[:, None].to(logits)
        else:
            hot = nn.functional.one_hot(labels, logits.shape[1]).to(logits)
            residuals = torch.softmax(logits.detach(), 1) - hot
        with torch.enable_grad():
            (back,) = torch.autograd.grad((logits * residuals).sum(), [passed.z], retain_graph=True)
        return back
