"""The encoder of BERT (Devlin et al. 2019): each token sees all others; the class is read off the first one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fedspill.models.transformer_spec import TransformerSpec


@final
@dataclass(frozen=True)
class Bert(TransformerSpec):
    """An encoder with a pooled first token; give it texts with marks (the data's option `marked`).

    BERT base itself: layers 12, hidden 768, heads 12, or its weights from a folder (checkpoint).
    """

    name = "bert"
    title = "Encoder over text, as BERT"
    paper = "Devlin et al., BERT, NAACL 2019"
    causal = False
    epsilon = 1e-12
