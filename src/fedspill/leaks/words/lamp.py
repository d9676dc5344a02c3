"""LAMP (Balunovic et al., NeurIPS 2022): embeddings that match, and reorderings that read like language, by turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.inputs.gradient_matching import MATCH_NEEDS
from fedspill.leaks.inputs.search.objectives import TensorCosines
from fedspill.leaks.inputs.search.optimizers import Adam
from fedspill.leaks.inputs.search.priors import Prior
from fedspill.leaks.inputs.search.search import Recipe, one_hot, reconstruct
from fedspill.leaks.words.guess import ClientText
from fedspill.leaks.words.language_model import LanguageModel
from fedspill.leaks.words.leak import MATCHED_CONTROL, WORDS
from fedspill.leaks.words.matched.embedded_texts import MatchedText, guess_of_texts, texts_to_match
from fedspill.leaks.words.matched.reorderings import reordered
from fedspill.leaks.words.true_text import spoken
from fedspill.trace import View


@final
@dataclass(frozen=True)
class UsualLength(Prior):
    """The squared difference of the mean length of the vectors and that of embedded tokens."""

    weight: float
    usual: float

    def __call__(self, x: Tensor) -> Tensor:
        lengths: Tensor = x.norm(dim=-1).flatten(1)
        return self.weight * (lengths.mean(1) - self.usual).square()


@final
@dataclass(frozen=True)
class Lamp(Attack):
    """Cosines by layer, the usual length of embeddings, and between searches the best of many reorderings.

    Reorderings are judged by the gradient and by a language model. The paper's is GPT-2; this one counts tokens in the
    adversary's own texts, and without any the gradient judges alone. Labels are read off the message, as the authors
    give them. The paper draws 500 starts and takes 2,000 steps; an audit takes fewer.
    """

    name: ClassVar[str] = "lamp"
    title: ClassVar[str] = "LAMP, texts by matching gradients and language"
    paper: ClassVar[str] = "Balunovic et al., LAMP: Extracting Text from Gradients with Language Model Priors, 2022"
    needs = MATCH_NEEDS
    leak = WORDS
    control: ClassVar[Mapping[str, Any]] = MATCHED_CONTROL

    origins: int = 4  # messages that are attacked, drawn at random
    most_samples: int = 2
    starts: int = 20
    turns: int = 4  # of continuous steps and reorderings
    steps: int = 75  # in a turn
    reorderings: int = 40  # in a turn
    lr: float = 0.01
    decay: float = 0.89  # of the learning rate, every 50 steps
    of_length: float = 1.0
    of_language: float = 0.2
    labels_from: str = "labels"  # a label attack

    def run(self, view: View, rng: torch.Generator) -> ClientText:
        messages, notes = texts_to_match(view, self.origins, self.most_samples, self.labels_from, rng)
        texts = view.knows("unlabelled_aux") if view.has("unlabelled_aux") else None
        known = isinstance(texts, Tensor) and texts.ndim == 2 and not texts.is_floating_point()
        padding = messages[0].net.wte.padding_idx
        silent = frozenset() if padding is None else frozenset({padding})
        heard = [spoken(row, silent) for row in texts.tolist()] if known and texts is not None else []
        language = LanguageModel.of(heard) if heard else None
        return guess_of_texts([(one, self.recover(one, language, rng)) for one in messages], notes)

    def recover(self, one: MatchedText, language: LanguageModel | None, rng: torch.Generator) -> list[list[int]]:
        targets = one.targets
        if targets is None:  # nobody said how many of each: all alike are tried
            targets = one_hot(torch.zeros(one.samples, dtype=torch.int64), one.classes)
        x = self._start(one, targets, rng)
        for turn in range(self.turns):
            rate = self.lr * self.decay ** (turn * self.steps / 50)
            length = UsualLength(self.of_length, one.usual_norm)
            recipe = Recipe(TensorCosines(), Adam(rate, self.steps), self.steps, (length,))
            found = reconstruct(
                recipe, one.gradients, one.observed, one.shape, one.classes, rng=rng, targets=targets, start=x
            )
            x = self._reordered(one, found.x, targets, language, rng)
        return one.tokens_of(x[0])

    def _start(self, one: MatchedText, targets: Tensor, rng: torch.Generator) -> Tensor:
        """(1, samples, length, width) the best of some random ones, as long as embedded tokens."""
        best, least = None, torch.inf
        for _ in range(max(1, self.starts)):
            drawn = one.random_start(rng)
            loss = _distance(one, drawn, targets)
            if best is None or loss < least:
                best, least = drawn, loss
        assert best is not None
        return best

    def _reordered(
        self, one: MatchedText, x: Tensor, targets: Tensor, language: LanguageModel | None, rng: torch.Generator
    ) -> Tensor:
        """(1, samples, length, width) in the order that fits gradient and language best among those that are tried."""

        def worth(candidate: Tensor) -> float:
            told = 0.0
            if language is not None:
                told = sum(map(language.surprise, one.tokens_of(candidate[0]))) / one.samples
            return _distance(one, candidate, targets) + self.of_language * told

        best, least = x, worth(x)
        for _ in range(self.reorderings):
            text = int(torch.randint(one.samples, (1,), generator=rng))
            candidate = best.clone()
            candidate[0, text] = best[0, text][reordered(one.length, rng)]
            value = worth(candidate)
            if value < least:
                best, least = candidate, value
        return best


def _distance(one: MatchedText, x: Tensor, targets: Tensor) -> float:
    found = one.gradients(x, targets.to(x)[None])
    return float(TensorCosines()([gradient.detach() for gradient in found], one.observed))
