"""Many searches as one: batches that each meet a network of their own, on the engine's axis of restarts.

Row (s, r) of a search is restart r of batch s. A GPU that would idle through one small search does dozens at once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from inversion_products import by_products
from inversion_replay import Recorded, RecordedPriors, Recording
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction, soft_cross_entropy
from fedspill.leaks.inputs.search.objectives import GaussianKernel, GradientDistance
from fedspill.leaks.inputs.search.priors import BatchNormStatistics, Prior
from fedspill.leaks.inputs.search.search import Box, Recipe, reconstruct


@final
@dataclass(frozen=True, eq=False)
class Networks:
    """S networks of one architecture; tensors (S, *shape) by name. Batch norm runs as the skeleton has it."""

    skeleton: nn.Module
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]

    @staticmethod
    def of(models: Sequence[nn.Module], device: str) -> Networks:
        skeleton = copy.deepcopy(models[0]) if device == "cpu" else by_products(models[0])
        skeleton = skeleton.to(device)
        parameters = [dict(model.named_parameters()) for model in models]
        buffers = [{name: b for name, b in model.named_buffers() if b.is_floating_point()} for model in models]
        return Networks(skeleton, _stacked(parameters, device), _stacked(buffers, device))

    def gradients(self, restarts: int) -> GradientFunction:
        """Of rows (S * restarts, B, *shape), each under the network of its batch."""
        parameters, buffers = self.parameters, self.buffers
        if restarts > 1:
            parameters, buffers = (
                {name: value.repeat_interleave(restarts, 0) for name, value in table.items()}
                for table in (parameters, buffers)
            )

        def loss(weights: dict[str, Tensor], kept: dict[str, Tensor], x: Tensor, targets: Tensor) -> Tensor:
            return soft_cross_entropy(functional_call(self.skeleton, (weights, kept), (x,)), targets)

        def of(x: Tensor, targets: Tensor) -> list[Tensor]:
            found = vmap(grad(loss))(parameters, buffers, x, targets)
            return [found[name] for name in parameters]

        return of


@final
@dataclass(frozen=True)
class EachItsOwn(GradientDistance):
    """An objective where every batch has an observed gradient of its own: observed tensors (S, *parameter).

    `widths` (S,): for a Gaussian kernel, that of each batch.
    """

    inner: GradientDistance
    widths: Tensor | None = None

    def __call__(self, candidate: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        rows = [g.unflatten(0, (len(observed[0]), -1)) for g in candidate]
        if self.widths is None:
            return vmap(self.inner)(rows, list(observed)).flatten()
        assert isinstance(self.inner, GaussianKernel)
        kernel = self.inner
        return vmap(lambda g, o, width: replace(kernel, width=width)(g, o))(rows, list(observed), self.widths).flatten()


@final
@dataclass(frozen=True, eq=False)
class ForEach(Prior):
    """A prior on each batch's restarts by themselves, with a weight for each batch."""

    inner: Any  # a prior with a field `weight`
    weights: Tensor  # (S,)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.unflatten(0, (len(self.weights), -1))
        return vmap(lambda some, weight: replace(self.inner, weight=weight)(some))(rows, self.weights).flatten()


@final
@dataclass(frozen=True, eq=False)
class StatisticsOfEach(Prior):
    """Batch-norm statistics, of each batch's own network."""

    told: Networks
    weights: Tensor  # (S,)
    first: float = 10.0

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.unflatten(0, (len(self.weights), -1))
        asked = _Statistics(self.told.skeleton, self.first)

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], some: Tensor, weight: Tensor) -> Tensor:
            named = {f"model.{name}": value for name, value in (parameters | buffers).items()}
            found: Tensor = functional_call(asked, named, (some, weight))
            return found

        return vmap(one)(self.told.parameters, self.told.buffers, rows, self.weights).flatten()


@final
class _Statistics(nn.Module):
    """The prior as a module, so that `functional_call` can lend its network another's tensors."""

    def __init__(self, model: nn.Module, first: float) -> None:
        super().__init__()
        self.model, self.first = model, first

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return BatchNormStatistics(self.model, weight, self.first)(x)  # type: ignore[arg-type]


def search(
    recipe: Recipe,
    networks: Networks,
    observed: Sequence[Tensor],
    shape: Sequence[int],
    targets: Tensor | None,
    box: Box,
    classes: int,
    rng: torch.Generator,
    start: Tensor,
) -> tuple[Tensor, Tensor]:
    """The best restart of every batch, (S, B, *sample), and its loss (S,); observed, targets and start have an axis S.

    The recipe's parts are those of this file; its restarts are those of one batch: start (S, restarts, B, *sample).
    """
    count, restarts = len(observed[0]), recipe.restarts
    stacked = replace(recipe, restarts=count * restarts, enough=-1.0)
    given = None if targets is None else targets.repeat_interleave(restarts, 0)
    match = networks.gradients(restarts)
    first = start.flatten(0, 1)
    if first.is_cuda:
        stacked, match = recorded(stacked, match, observed, first, classes)
    found = reconstruct(stacked, match, observed, shape, classes, rng=rng, targets=given, box=box, start=first)
    loss = found.loss.unflatten(0, (count, restarts))
    best = torch.where(loss.isfinite(), loss, torch.inf).argmin(1)
    every = torch.arange(count, device=best.device)
    return found.x.unflatten(0, (count, restarts))[every, best].detach(), loss[every, best]


def recorded(
    recipe: Recipe, match: GradientFunction, observed: Sequence[Tensor], x: Tensor, classes: int
) -> tuple[Recipe, GradientFunction]:
    """The same recipe and gradients, to be replayed from a GPU's recordings; x (R, B, *sample) are any inputs."""
    targets = x.new_full((*x.shape[:2], classes), 1 / classes)
    distance = Recording(lambda x, targets: recipe.objective(match(x, targets), observed), x, targets)
    priors: tuple[Prior, ...] = recipe.priors
    if priors:
        priors = (RecordedPriors(Recording(lambda x: torch.stack([p(x) for p in recipe.priors]).sum(0), x)),)
    return replace(recipe, objective=Recorded(), priors=priors), lambda x, targets: [distance(x, targets)]


def _stacked(tables: Sequence[dict[str, Tensor]], device: str) -> dict[str, Tensor]:
    return {name: torch.stack([table[name].detach() for table in tables]).to(device) for name in tables[0]}
