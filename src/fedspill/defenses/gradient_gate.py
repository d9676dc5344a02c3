"""A gate on what is sent: what only a few samples of a round have a say in is not told (against the attacks of 004)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from fedspill.defense import Check, Defense, SentMessages
from fedspill.defenses.model_checks.few_contributors import rest_on_few
from fedspill.errors import UsageError
from fedspill.federation.guarded import StepRule, guarded
from fedspill.federation.round_looks import Crossed, RoundLook, SampleSignals
from fedspill.training import LocalTraining, Tensors


@final
@dataclass(frozen=True)
class GradientGate(Defense):
    """Sends nothing of neurons to whose change fewer than `fewest` samples effectively contribute.

    A planted neuron fires for its target alone: its change has one contributor, and is held back whatever the weights
    look like. So has the head's row of a class that is predicted for one sample and that no other one has. All steps of
    a round count together, since the server sees their sum. Of fewer than 4 times `fewest` samples a quarter is asked
    for instead.

    Where more than linear layers learn, filters or scales, the first step says in which neurons the others are stopped.

    With `pairs`, neurons that fewer samples tell from another neuron are stopped too: bins single samples out by
    differences. Samples count alike there, however wrong the model is about them. So are rectified neurons that fire
    for all samples but fewer, or for what other neurons make up together, however many of them: these are what sums of
    three and more are made of.

    What two rounds tell from each other is not seen in either. A server that asks the same samples twice, by models
    that hardly differ, reads those that fire in one only. With `pairs` every round therefore trains on a `part` of the
    client's samples, drawn anew, in as many steps as on all, so that no two rounds are of the same ones. A round of
    fewer than 4 times `fewest` samples then sends nothing of hidden neurons.
    """

    name: ClassVar[str] = "gradient-gate"
    title: ClassVar[str] = "Hold back changes that rest on few samples"
    paper: ClassVar[str] = "fedspill, after 004"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({"fewest": 5.0}, {"fewest": 5.0, "pairs": True})

    fewest: float = 5.0
    pairs: bool = False
    firing: bool = True  # with pairs: whom neurons fire for is compared too
    part: float = 0.5  # with pairs: of the client's samples, drawn anew for every round

    def __post_init__(self) -> None:
        if not self.fewest > 1:
            raise UsageError(f"fewest is a number of samples above 1, got {self.fewest}.")
        if not 0 < self.part <= 1:
            raise UsageError(f"part is a share of the samples, above 0 and at most 1, got {self.part}.")

    def local(self, training: LocalTraining) -> LocalTraining:
        return guarded(training, _Gate(self.fewest, self.pairs, self.firing, self.part if self.pairs else 1.0))

    def verify(self, sent: SentMessages) -> Check:
        return Check(self.name, None, "a gate inside local training leaves no mark on a message")


@final
@dataclass(frozen=True)
class _Gate(StepRule):
    fewest: float
    pairs: bool
    firing: bool
    drawn: float

    @property
    def part(self) -> float:
        return self.drawn

    def look(self, model: nn.Module) -> RoundLook | None:
        linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        return _Gated(self, model, linear) if linear else None

    def stops(self, signals: Tensor, crossed: Crossed) -> Tensor:
        """(units,) whether what samples send back to them in a step or a round, (samples, units), rests on few."""
        return rest_on_few(signals, self.fewest, pairs=self.pairs, firing=crossed if self.firing else None)

    def keeps_back(self, signals: Tensor, crossed: Crossed) -> Tensor:
        """The same of a round. Small parts of a client's samples differ by single ones: nothing is sent of these."""
        if self.part < 1 and len(signals) < 4 * self.fewest:
            return torch.ones_like(signals[0], dtype=torch.bool)
        return self.stops(signals, crossed)


@final
class _Gated(RoundLook):
    def __init__(self, gate: _Gate, model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
        linear = {id(part) for module in layers.values() for part in module.parameters()}
        # Filters and scales are no rows that could be taken back at the end: stopped units send nothing there at once.
        others = any(id(part) not in linear for part in model.parameters() if part.requires_grad)
        self._gate = gate
        self._signals = SampleSignals(layers, (lambda *seen: ~gate.stops(*seen)) if others else None)

    def close(self) -> None:
        self._signals.close()

    @torch.no_grad()
    def sent(self, tensors: Tensors, batches: Sequence[Tensor]) -> Tensors:
        """What the next layer reads from a stopped neuron is not sent either: its activation tells as much.

        Of the last layer, the head, pairs of rows say nothing: those of two classes are each other's opposite.
        """
        sent, found = dict(tensors), self._signals.of(batches)
        for layer, following in zip_longest(found, list(found)[1:]):
            signals, weight, bias = found[layer], f"{layer}.weight", f"{layer}.bias"
            if signals is None or weight not in sent:
                continue
            if following is None:
                stopped = rest_on_few(signals, self._gate.fewest)
                sent[weight] = sent[weight] * (~stopped).to(sent[weight])[:, None]
                continue
            open_ = (~self._gate.keeps_back(signals, self._signals.crossed(layer))).to(sent[weight])
            sent[weight] = sent[weight] * open_[:, None]
            if bias in sent:
                sent[bias] = sent[bias] * open_
            behind = f"{following}.weight"
            if behind in sent and sent[behind].shape[1] == len(open_):
                sent[behind] = sent[behind] * open_
        return sent
