"""A message, the texts of it that are proven, and what is left of it when these are taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedspill.leaks.words.exact.attacked_text import AttackedText
from fedspill.leaks.words.exact.certificate import Batch, LastBlock, certain_below, size_of, without
from fedspill.leaks.words.exact.effort import Effort


@dataclass(eq=False)
class Peeled:
    """Texts are proven one by one by the last block, so that the rest can be read as a smaller batch."""

    attacked: AttackedText
    last: LastBlock | None
    rest: AttackedText
    proven: Batch
    effort: Effort

    @staticmethod
    def of(attacked: AttackedText) -> Peeled:
        last = LastBlock.of(attacked) if attacked.whole else None
        effort = Effort.of(attacked.patience, attacked.net.wte.weight.is_cuda)
        return Peeled(attacked, last, attacked, Batch([], [], 1.0), effort)

    @property
    def missing(self) -> int:
        return self.attacked.samples - len(self.proven.sequences)

    @property
    def nothing_left(self) -> bool:
        return size_of(self.rest) < certain_below(self.attacked) * size_of(self.attacked)

    def new(self, texts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Those that are not proven yet."""
        return [list(one) for one in texts if list(one) not in self.proven.sequences]

    @torch.enable_grad()  # also on the way of a search that needs no gradients
    def take_out(self, texts: Sequence[Sequence[int]]) -> bool:
        """Takes out those of these texts that are proven; whether there are any.

        Labels that the head was given while texts were missing may be wrong: each is tried.
        """
        if self.last is None:
            return False
        more = self.last.labelled(self.attacked, self.new(texts))
        if not more.sequences:
            return False
        self.rest = without(self.rest, more.sequences, more.labels)
        sequences, labels = [*self.proven.sequences, *more.sequences], [*self.proven.labels, *more.labels]
        self.proven = Batch(sequences, labels, 1.0)
        return True
