"""What spans say about the labels behind messages: one stage per model, one rehearsal per model and batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.span_counts import SpanCounts, span_counts
from fedspill.leaks.labels.counts.span_rehearsal import SpanRehearsals, SpanStage
from fedspill.messages import Message
from fedspill.observe.probe import ModelProbe
from fedspill.observe.row_spaces import sample_layers


@dataclass(eq=False)
class SpanReader:
    """Reads messages of several rounds; keeps what it rehearsed."""

    probe: ModelProbe
    rng: torch.Generator
    _stages: dict[tuple[int, int], SpanStage] = field(default_factory=dict)  # by round and samples
    _rehearsed: dict[tuple[int, int, int], SpanRehearsals] = field(default_factory=dict)  # and number of layers

    def read(self, messages: Sequence[Message], samples: int, scale: float, wanted: Tensor) -> SpanCounts:
        """Of messages with `samples` samples each; `scale` makes each a sum over these. wanted (messages,) bool."""
        parts, order = [], []
        for number in dict.fromkeys(message.round for message in messages):
            rows = [index for index, message in enumerate(messages) if message.round == number]
            chosen = [index for index in rows if bool(wanted[index]) and 1 < samples <= COUNTS.span_samples]
            rest = [index for index in rows if index not in chosen]
            if chosen:
                parts.append(self._of_round([messages[index] for index in chosen], samples, scale))
            parts.append(SpanCounts.none(len(rest), self.probe.classes))
            order += chosen + rest
        return SpanCounts.joined(parts).rows(torch.tensor(order).argsort())

    def _of_round(self, messages: Sequence[Message], samples: int, scale: float) -> SpanCounts:
        whole = self._stage(messages[0].round, samples)
        shown = [layer for layer in whole.layers if all(layer.can_show(m.tensors, samples) for m in messages)]
        stage = replace(whole, layers=tuple(shown))
        if not stage.can_rehearse(samples):
            return SpanCounts.none(len(messages), self.probe.classes)
        key = (messages[0].round, samples, len(shown))
        if key not in self._rehearsed and len(self._rehearsed) >= COUNTS.span_models:
            return SpanCounts.none(len(messages), self.probe.classes)
        seen = [stage.look(message.tensors, scale, samples, self.rng) for message in messages]
        if key not in self._rehearsed:
            noise = torch.stack([noise for _, noise in seen]).median(0).values
            self._rehearsed[key] = stage.rehearse(samples, noise.tolist(), self.rng)
        return span_counts(self._rehearsed[key], torch.stack([looks for looks, _ in seen]))

    def _stage(self, number: int, samples: int) -> SpanStage:
        """Empty beyond as many as are rehearsed."""
        assert self.probe.labels is not None
        if (number, samples) not in self._stages:
            own = Examples(self.probe.inputs, self.probe.labels)
            enough = len(self._rehearsed) >= COUNTS.span_models
            layers = [] if enough else sample_layers(self.probe.models[number], own, samples)
            self._stages[number, samples] = SpanStage(tuple(layers), self.probe.labels, self.probe.classes)
        return self._stages[number, samples]
