"""The decoder of GPT-2 (Radford et al. 2019): each token sees those before it; for classes or for the next token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fedspill.models.transformer_spec import TransformerSpec


@final
@dataclass(frozen=True)
class Gpt(TransformerSpec):
    """A decoder that reads the class off its last token, or predicts every next token (objective "next").

    GPT-2 itself: layers 12, hidden 768, heads 12, last_bias false, or its weights from a folder (checkpoint).
    """

    name = "gpt"
    title = "Decoder over text, as GPT-2"
    paper = "Radford et al., Language models are unsupervised multitask learners, 2019"
    causal = True
    epsilon = 1e-5
