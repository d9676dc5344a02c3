"""TAG (Deng et al., EMNLP 2021): embeddings whose gradients match, by norms and sums of differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.leaks.inputs.gradient_matching import MATCH_NEEDS
from fedspill.leaks.inputs.search.objectives import NormsAndSums
from fedspill.leaks.inputs.search.optimizers import Adam
from fedspill.leaks.inputs.search.search import Recipe, reconstruct
from fedspill.leaks.words.guess import ClientText
from fedspill.leaks.words.leak import MATCHED_CONTROL, WORDS
from fedspill.leaks.words.matched.embedded_texts import guess_of_texts, texts_to_match
from fedspill.trace import View


@final
@dataclass(frozen=True)
class Tag(Attack):
    """Seeks embeddings from a random start, then says the nearest token of each.

    Made for one step on very few texts; finds words rather than their order. Labels are read off the message where they
    can be, else sought too. Does not apply to language models, to several local steps and to larger batches. The paper
    takes thousands of steps; an audit takes fewer.
    """

    name: ClassVar[str] = "tag"
    title: ClassVar[str] = "TAG, texts by matching gradients"
    paper: ClassVar[str] = "Deng et al., TAG: Gradient Attack on Transformer-based Language Models, EMNLP 2021"
    needs = MATCH_NEEDS
    leak = WORDS
    control: ClassVar[Mapping[str, Any]] = MATCHED_CONTROL

    origins: int = 4  # messages that are attacked, drawn at random
    most_samples: int = 2
    steps: int = 300
    lr: float = 0.01
    share: float = 0.01  # of the sum of absolute differences
    labels_from: str = "labels"  # a label attack; empty: sought together with the texts

    def run(self, view: View, rng: torch.Generator) -> ClientText:
        messages, notes = texts_to_match(view, self.origins, self.most_samples, self.labels_from, rng)
        recipe = Recipe(NormsAndSums(self.share), Adam(self.lr, self.steps), self.steps)
        found = []
        for one in messages:
            start = one.random_start(rng)
            best = reconstruct(
                recipe, one.gradients, one.observed, one.shape, one.classes, rng=rng, targets=one.targets, start=start
            )
            found.append((one, one.tokens_of(best.x[best.best])))
        return guess_of_texts(found, notes)
