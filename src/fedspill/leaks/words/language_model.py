"""A small language model: which token comes next, counted in texts of others. It needs no message to guess a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import final

BEGIN = -1  # stands before the first token
ORDER = 2  # tokens that are looked back at
BACK_OFF = 0.4  # what a shorter look back counts (Brants et al. 2007, stupid back-off)


@final
@dataclass(frozen=True, eq=False)
class LanguageModel:
    """How often each token came behind the last two, the last one, and anything."""

    behind: dict[tuple[int, ...], Counter[int]]
    length: int  # of a usual text

    @staticmethod
    def of(texts: Sequence[Sequence[int]]) -> LanguageModel:
        behind: dict[tuple[int, ...], Counter[int]] = {}
        for text in texts:
            for context, token in _steps(text):
                for start in range(len(context) + 1):
                    behind.setdefault(context[start:], Counter())[token] += 1
        lengths = sorted(len(text) for text in texts)
        return LanguageModel(behind, lengths[len(lengths) // 2] if lengths else 0)

    def texts(self, many: int) -> list[list[int]]:
        """Likely texts of usual length: each begins with another common first token and goes on as is likeliest."""
        first = [token for token, _ in self.behind.get((BEGIN,) * ORDER, Counter()).most_common()]
        return [self._written(first[number % len(first)]) for number in range(many)] if first and self.length else []

    def surprise(self, text: Sequence[int]) -> float:
        """Mean negative logarithm of what the model gives each token, up to a constant of the back-off."""
        losses = [-log(self._share(context, token)) for context, token in _steps(text)]
        return sum(losses) / max(1, len(losses))

    def _written(self, first: int) -> list[int]:
        text, used = [first], set()
        while len(text) < self.length:
            context = tuple([BEGIN, *text][-ORDER:])
            fresh = (
                token
                for start in range(ORDER + 1)
                for token, _ in self.behind.get(context[start:], Counter()).most_common()
                if (*context, token) not in used  # else it would go round in a circle
            )
            token = next(fresh, None)
            if token is None:
                break
            used.add((*context, token))
            text.append(token)
        return text

    def _share(self, context: tuple[int, ...], token: int) -> float:
        worth = 1.0
        for start in range(len(context) + 1):
            here = self.behind.get(context[start:], Counter())
            if here[token]:
                return worth * here[token] / here.total()
            worth *= BACK_OFF
        return worth / (1 + self.behind.get((), Counter()).total())


def _steps(text: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every token with those before it."""
    padded = [BEGIN] * ORDER + list(text)
    for place in range(ORDER, len(padded)):
        yield tuple(padded[place - ORDER : place]), padded[place]
