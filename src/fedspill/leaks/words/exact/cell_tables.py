"""Which tokens may stand where, at one tolerance after the other, each table made when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import torch
from torch import Tensor

from fedspill.leaks.words.exact.attacked_text import AttackedText
from fedspill.leaks.words.exact.row_space import SPARE, RowSpace
from fedspill.leaks.words.exact.token_test import Cells, TokenTest, every_token

# Distances, as shares of a random vector's, within which an input counts as inside: rounding first, then what local
# steps and noise leave.
LADDER = (1e-3, 3e-3, 1e-2, 0.03, 0.1)
LOOSE = (0.05, 0.2, 0.45)
_MOST_CELLS = 180_000
_OF_REST = 3  # tables of a message whose tokens are tried for what is left of it


@dataclass(eq=False)
class CellTables:
    """The strictest first. A search mostly ends with the first one, and each takes a product with all tokens."""

    waiting: Iterator[Cells]
    made: list[Cells] = field(default_factory=list)

    @staticmethod
    def told_by(
        spaces: Sequence[RowSpace], attacked: AttackedText, used: Tensor | None, rng: torch.Generator
    ) -> CellTables:
        """By what the first layer read, of the tokens `used` if they are known."""
        return CellTables(_made(spaces, attacked, used, None, rng))

    @staticmethod
    def every(attacked: AttackedText, used: Tensor | None) -> CellTables:
        """Any token that may have been used at any place that may have been."""
        return CellTables(iter([_every_cell(attacked, used)]))

    def of_rest(
        self, spaces: Sequence[RowSpace], rest: AttackedText, used: Tensor | None, rng: torch.Generator
    ) -> CellTables:
        """The same of what is left of the message: its tokens are among these."""
        among = torch.unique(torch.cat([table.all_tokens() for table in self.first(_OF_REST)]))
        return CellTables(_made(spaces, rest, used, among, rng))

    def first(self, many: int) -> list[Cells]:
        """So many, or as many as there are."""
        self.made += islice(self.waiting, max(0, many - len(self.made)))
        return self.made[:many]

    def at(self, number: int) -> Cells:
        """That one; the last stands in for those that are missing."""
        return self.first(number + 1)[-1]

    @property
    def any(self) -> bool:
        return bool(self.first(1))

    def anywhere(self) -> Cells:
        """The tokens of all tables, each at any place that one of them has."""
        self.made += self.waiting
        tokens = torch.unique(torch.cat([table.all_tokens() for table in self.made]))
        return Cells(dict.fromkeys(range(max(table.places for table in self.made)), tokens))

    def tokens(self) -> Tensor:
        """The tokens that were there, as far as the first layer tells."""
        return settled(self.first(len(LADDER))).inside().all_tokens().cpu()


def settled(tables: Sequence[Cells]) -> Cells:
    """The loosest table of those that the next one adds least to: what was there lies near, what was not lies far."""
    growth = [after.many / before.many for before, after in pairwise(tables)]
    return tables[max(place for place, value in enumerate(growth) if value == min(growth))] if growth else tables[0]


def _made(
    spaces: Sequence[RowSpace], attacked: AttackedText, used: Tensor | None, among: Tensor | None, rng: torch.Generator
) -> Iterator[Cells]:
    tried = among if used is None else used
    tried = None if tried is None else tried.to(attacked.net.wte.weight.device)
    roomy = [space for space in spaces if space.free >= SPARE]
    for number, space in enumerate(roomy):
        test = TokenTest.of(attacked.net, space, rng, tried)
        # Where the tokens are known any of them may stand anywhere in the end: looser tables are not worth their time.
        for tolerance in (LADDER if number == 0 else LOOSE)[: len(LADDER) if used is None else 1]:
            cells = test.within(tolerance, _MOST_CELLS)
            if cells.many:
                yield cells
    if used is not None and "wpe.weight" in attacked.gradients:  # tokens are known: any may stand at any place
        yield _every_cell(attacked, used)


def _every_cell(attacked: AttackedText, used: Tensor | None) -> Cells:
    cells = every_token(attacked.net, used)
    positions = attacked.gradients.get("wpe.weight")
    if positions is None:
        return cells
    places = int((positions.abs().sum(1) > 0).sum())
    return Cells({place: tokens for place, tokens in cells.tokens.items() if place < places})
