"""One repetition of paper 004's experiments: its own shares, model and targets, and everything measured on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedspill.dataset import Dataset, Examples
from fedspill.federation.local import state_of
from fedspill.models.mlp import Mlp
from fedspill.partition import Partition
from fedspill.partitions.shares import share_out
from fedspill.planting.closed_form import NeuronDesign, neurons_of_target, plant_neurons
from fedspill.planting.dense_network import DenseNetwork, read_dense_network, unit_gradients
from fedspill.planting.read_sums import contrast
from fedspill.planting.targets import Targets
from fedspill.planting.trained_neurons import AMI, AaiRecipe, AmiRecipe, align, train_aai, train_ami
from fedspill.seeds import generator, seed_of
from fedspill.training import LocalTraining, Tensors

from .adaptive_plants import plant_frozen_row
from .many_rounds import aggregates

UNDERFLOW = -103.97  # the authors' "null" gradient: exp is 0 in single precision below it
_ROOM = 80_000_000  # numbers of models that train side by side
FAINT = 1e-6  # a slope that no longer matters beside the target's
ADAM = LocalTraining(optimizer="adam", lr=1e-3, batch_size=100, epochs=5)  # the authors' clients
SGD = LocalTraining(optimizer="sgd", lr=0.05, batch_size=100, epochs=1)
# The same neuron, as the optimizers of the clients ask for it.
FOR_SGD = NeuronDesign(reach=50.0, output=1.0)
FOR_ADAM = NeuronDesign(reach=1e4, output=1.0)
# Variants of the closed form: other neurons' columns zeroed or kept, one neuron for both values, membership alone.
CLOSED: Mapping[str, Mapping[str, Any]] = {
    "closed": {},
    "kept columns": {"columns": "kept"},
    "sign code": {"code": "sign", "output": 0.05},
    "membership": {},
}


@dataclass(frozen=True)
class FederationSetting:
    """What a data set's federation looks like in the paper."""

    partition: Partition
    clients: int
    widths: tuple[int, ...]
    shadow: int
    rounds: int  # before the attack


@dataclass(frozen=True, eq=False)
class Repetition:
    """A trained federation, its benign models round by round, and the targets with the truth about them."""

    seed: int
    dataset: Dataset
    clients: tuple[Examples, ...]
    pool: Examples  # all that the clients hold
    shadow: Tensor
    dense: DenseNetwork
    history: list[Tensors]
    targets: Targets
    records: Tensor  # the targets' whole records, which only a membership attack is told
    values: Tensor
    members: Tensor

    def to(self, device: str) -> Repetition:
        """With the tensors that attacks compute with on that device; clients are moved when they train."""
        targets = replace(self.targets, x=self.targets.x.to(device), y=self.targets.y.to(device))
        history = [{name: tensor.to(device) for name, tensor in state.items()} for state in self.history]
        return replace(
            self,
            pool=self.pool.to(device),
            shadow=self.shadow.to(device),
            targets=targets,
            records=self.records.to(device),
            history=history,
        )

    @property
    def frequent(self) -> int:
        """The more frequent value among the shadow records."""
        return int(self.shadow[:, self.targets.secret_column()].mean() >= 0.5)


def repeat(
    dataset: Dataset,
    setting: FederationSetting,
    seed: int,
    *,
    elu: bool,
    attribute: str,
    per_cell: int,
    rounds: int,
    device: str = "cpu",
) -> Repetition:
    """Shares out, trains `rounds` rounds, draws `per_cell` targets for each of member or not, attribute or not."""
    shares = share_out(
        dataset, setting.partition, setting.clients, shadow=setting.shadow, rng=generator(seed, "shares")
    )
    spec = Mlp(widths=setting.widths, activation="elu" if elu else "relu", alpha=-2.0, logits=1)
    model = spec.build(dataset.shape, 2, seed=seed_of(seed, "model"))
    dense = read_dense_network(model)
    history = [{name: tensor.to(device, copy=True) for name, tensor in state_of(model).items()}]
    for number in range(rounds):
        history.append(next_round(dense, history[-1], shares.clients, ADAM, seed, number))
    column = dataset.columns.index(attribute)
    masked = next((group for group in dataset.groups if column in group), (column,))
    pool = Examples.join([Examples(own.x, own.y) for own in shares.clients])
    rng, parts = generator(seed, "targets"), []
    for held in (pool, dataset.test):
        for value in (0, 1):
            alike = ((held.x[:, column] > 0.5) == bool(value)).nonzero().flatten()
            chosen = held.take(alike[torch.randperm(len(alike), generator=rng)[:per_cell]])
            parts.append(Examples(chosen.x, chosen.y))
    records = Examples.join(parts)
    x = records.x.clone()
    x[:, list(masked)] = 0
    members = torch.arange(len(records)) < len(parts[0]) + len(parts[1])
    return Repetition(
        seed,
        dataset,
        shares.clients,
        pool,
        shares.shadow.x,
        dense,
        history,
        Targets(x, records.y, 0, column, tuple(masked)),
        records.x,
        (records.x[:, column] > 0.5).long(),
        members,
    )


def next_round(
    dense: DenseNetwork, state: Tensors, clients: Sequence[Examples], training: LocalTraining, seed: int, number: int
) -> Tensors:
    """The model after one honest round."""
    step = aggregates(dense, {name: tensor[None] for name, tensor in state.items()}, clients, training, seed, number)
    return {name: tensor + step[name][0] for name, tensor in state.items()}


@dataclass(frozen=True)
class Recipes:
    """How the published attacks are trained."""

    aai: AaiRecipe
    mia2aia: AmiRecipe
    ami: AmiRecipe

    def shorter(self, epochs: int) -> Recipes:
        """The same, with at most that many epochs."""
        aai = replace(self.aai, epochs=min(self.aai.epochs, epochs))
        pair = [replace(recipe, epochs=min(recipe.epochs, epochs)) for recipe in (self.mia2aia, self.ami)]
        return Recipes(aai, *pair)


PUBLISHED = Recipes(AaiRecipe(), AmiRecipe(), replace(AMI, epochs=4000, lr=5e-4))


def plants(
    rep: Repetition, kind: str, after: int, shape: NeuronDesign = FOR_SGD, recipes: Recipes = PUBLISHED
) -> list[Tensors]:
    """A planted model for every target, from the benign model after `after` rounds."""
    dense, state, targets = rep.dense, rep.history[after], rep.targets
    each = range(len(targets))
    rngs = [generator(rep.seed, "plant", kind, index) for index in each]
    if kind in CLOSED:
        made = replace(shape, **CLOSED[kind])
        wanted = Targets(rep.records, targets.y) if kind == "membership" else targets
        return [plant_neurons(dense, state, wanted, [i], rep.shadow, made, rngs[i]) for i in each]
    if kind == "frozen row":
        return [plant_frozen_row(dense, state, targets, i, shape, 2000.0, rngs[i]) for i in each]
    whole = [targets.completed(value, rep.shadow) for value in (0, 1)]
    if kind == "aai":
        up, down = whole[rep.frequent][:, None], whole[1 - rep.frequent][:, None]
        trained = train_aai(dense, state, up, down, rep.shadow, recipes.aai)
        planted = [trained.install(dense, state, i) for i in each]
        for i in each:
            align(dense, planted[i], -1, int(targets.y[i]))
        return planted
    records = torch.stack(whole, 1) if kind == "mia2aia" else rep.records[:, None]
    trained = train_ami(dense, state, records, rep.shadow, recipes.mia2aia if kind == "mia2aia" else recipes.ami)
    return [trained.install(dense, state, i) for i in each]


def rows_of(rep: Repetition, kind: str) -> Tensor:
    """The neurons that a kind of attack reads."""
    one = kind in ("sign code", "frozen row", "aai", "ami", "membership")
    return neurons_of_target(len(rep.history[0][rep.dense.bias(1)]), 1 if one else 2, 0, 1)


def score_of(rep: Repetition, kind: str, signal: Tensor) -> Tensor:
    """(targets,) higher for value 1, or for a member, from the gradients (targets, rows) at the neurons' biases."""
    if kind in ("ami", "membership"):
        return signal[:, 0].abs()
    if signal.shape[1] == 1:
        return signal[:, 0] * (1 if rep.frequent else -1)
    return signal[:, 1].abs() - signal[:, 0].abs() if kind == "mia2aia" else contrast(signal)


def pooled(rep: Repetition, planted: Sequence[Tensors], rows: Tensor) -> Tensor:
    """(targets, rows) the paper's practical setting: one mean gradient over all that the clients hold."""
    return torch.stack(
        [unit_gradients(rep.dense, state, rep.pool.x, rep.pool.y)[:, rows].double().mean(0) for state in planted]
    ).cpu()


def through_a_round(rep: Repetition, planted: Sequence[Tensors], rows: Tensor, training: LocalTraining) -> Tensor:
    """(targets, rows) the same read from the sum of a real FedAvg round of all clients; NaN where training diverged."""
    numbers = sum(tensor.numel() for tensor in planted[0].values()) * len(rep.clients)  # in one model's round
    at_once = max(1, min(32, _ROOM // numbers))
    found = []
    for first in range(0, len(planted), at_once):
        group = planted[first : first + at_once]
        stacked = {name: torch.stack([state[name] for state in group]) for name in group[0]}
        step = aggregates(rep.dense, stacked, rep.clients, training, rep.seed, 1000)
        found.append(-step[rep.dense.bias(1)][:, rows].double().cpu())
    return torch.cat(found)


@torch.no_grad()
def activations(rep: Repetition, planted: Tensors, index: int, kind: str, rows: Tensor) -> dict[str, float]:
    """The paper's theoretical evaluation of one attack: right for the target, and wrong for how many of the others."""
    dense, column = rep.dense, rep.targets.secret_column()
    whole = torch.stack([rep.targets.completed(value, rep.shadow)[index] for value in (0, 1)])
    at_target = dense.pre_activations(planted, whole, 1)[:, rows]  # (value, row)
    s = dense.pre_activations(planted, rep.pool.x, 1)[:, rows]
    apart = ((rep.pool.x - rep.targets.x[index]) * rep.targets.known()).abs().sum(1)
    same = (apart < 1e-4) & (rep.pool.x[:, column] == rep.values[index].to(s))
    others = s[~same]
    fires = others > (UNDERFLOW if dense.activation.elu else 0)
    if len(rows) == 2:  # one neuron per value: right if its own fires and the other does not
        on = at_target[int(rep.values[index])] > 0
        right = bool(on[int(rep.values[index])]) and not bool(on[1 - int(rep.values[index])])
        both = bool(on.all()) or not bool(on.any())
    else:
        up, down = at_target[rep.frequent, 0], at_target[1 - rep.frequent, 0]
        right, both = bool(up > 0) and bool(down <= 0) and bool(down > UNDERFLOW), False
    imputed = right or (both and int(rep.values[index]) == rep.frequent)
    return {
        "tpr": float(right),
        "tpr_imputed": float(imputed),
        "fpr": float(fires.double().mean()),
        "false_positives": float((dense.activation.slope(others).abs() > FAINT).any(1).sum()),
    }
