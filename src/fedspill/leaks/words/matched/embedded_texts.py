"""What gradient matching of texts starts from and ends in: a transformer behind its embedding, and tokens read off.

Texts of a batch are taken to be as long as the longest: the authors of TAG and LAMP give the attacker their lengths,
which no message holds.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.gradient_matching import labels_from_attack
from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction, gradients_of
from fedspill.leaks.inputs.search.search import one_hot
from fedspill.leaks.words.exact.attacked_text import AttackedText, attacked_texts
from fedspill.leaks.words.guess import ClientText, stacked
from fedspill.models.text_transformer import TextTransformer
from fedspill.trace import Origin, View


class BehindEmbedding(nn.Module):
    """Logits from vectors (n, length, width) that stand in the place of embedded tokens."""

    def __init__(self, net: TextTransformer) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        places = self.net.wpe(torch.arange(x.shape[1], device=x.device))
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return self.net.behind_embedding(self.net.ln_e(x + places), real)


@dataclass(frozen=True, eq=False)
class MatchedText:
    """One message to match: gradients as a function of vectors, those observed, and how large the batch is."""

    of: Origin
    net: TextTransformer
    gradients: GradientFunction
    observed: list[Tensor]
    samples: int
    length: int
    classes: int
    targets: Tensor | None  # (samples, classes), where labels are read off the message

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.samples, self.length, self.net.wte.embedding_dim

    @property
    def usual_norm(self) -> float:
        """The mean length of an embedded token."""
        return float(self.net.wte.weight.detach().norm(dim=1).mean())

    def random_start(self, rng: torch.Generator) -> Tensor:
        """(1, samples, length, width) random vectors, each as long as an embedded token usually is."""
        drawn = torch.randn((1, *self.shape), generator=rng)
        return self.usual_norm * nn.functional.normalize(drawn, dim=-1)

    def tokens_of(self, x: Tensor) -> list[list[int]]:
        """The token whose embedding has the largest cosine with each vector of x (samples, length, width)."""
        table = nn.functional.normalize(self.net.wte.weight.detach(), dim=1)
        cosines = nn.functional.normalize(x, dim=-1) @ table.T
        if self.net.wte.padding_idx is not None:
            cosines[..., self.net.wte.padding_idx] = -torch.inf
        found: list[list[int]] = cosines.argmax(-1).tolist()
        return found


def texts_to_match(
    view: View, origins: int, most_samples: int, labels_from: str, rng: torch.Generator
) -> tuple[list[MatchedText], list[str]]:
    """At most `origins` messages of one step on at most `most_samples` texts; notes on the rest."""
    messages, notes = attacked_texts(view, origins, rng, "cpu")
    if messages[0].net.every_place:
        raise NotApplicable("The model predicts every next token: matching is for classifiers of texts.")
    small = [one for one in messages if one.samples <= most_samples and one.steps == 1 and one.plain]
    if not small:
        raise NotApplicable(
            f"Gradient matching of texts tries one step on at most {most_samples} texts (option most_samples)."
        )
    labels = labels_from_attack(labels_from, view, rng) if labels_from else {}
    return [_matched(one, labels.get(one.of)) for one in small], notes


def _matched(attacked: AttackedText, labels: Tensor | None) -> MatchedText:
    net = copy.deepcopy(attacked.net).float().eval()
    net.wte.weight.requires_grad_(False)  # vectors stand in its place
    names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    places = attacked.gradients.get("wpe.weight")
    # Where places are trained, those that no text reached have no gradient.
    length = net.wpe.num_embeddings if places is None else max(1, int((places.abs().sum(1) > 0).sum()))
    classes = max(2, net.head.out_features)
    usable = labels is not None and len(labels) == attacked.samples and int(labels.max()) < classes
    return MatchedText(
        attacked.of,
        net,
        gradients_of(BehindEmbedding(net)),
        [attacked.gradients[name].float() for name in names],
        attacked.samples,
        length,
        classes,
        one_hot(labels, classes) if labels is not None and usable else None,
    )


def guess_of_texts(found: Sequence[tuple[MatchedText, list[list[int]]]], notes: Sequence[str]) -> ClientText:
    """Texts, the tokens in them, and no certificate for any."""
    return ClientText(
        [matched.of for matched, _ in found],
        [torch.tensor(sorted({token for text in texts for token in text}), dtype=torch.int64) for _, texts in found],
        [stacked(texts) for _, texts in found],
        [torch.zeros(len(texts), dtype=torch.bool) for _, texts in found],
        list(notes),
    )
