"""Words: our attack on text, tokens and whole sequences of transformers by linear algebra, with certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.leaks.words.exact.attacked_text import AttackedText, attacked_texts, has_adapters
from fedspill.leaks.words.exact.encoder_texts import Marks
from fedspill.leaks.words.exact.recover import recover_text
from fedspill.leaks.words.guess import ClientText, stacked
from fedspill.leaks.words.leak import FROZEN_CONTROL, WORDS
from fedspill.threat import needs
from fedspill.trace import View

_FIRST = "h.0.attn.c_attn"
_ALL = 1 << 31
_SHARE = 0.2  # of the work of a whole attack: one core does less at a time where it looks at many pairs in turn


@final
@dataclass(frozen=True)
class WordsAttack(Attack):
    """Tokens by the row space of the first layer, also where the embedding is frozen; then whole texts.

    A decoder's texts are grown by prefixes, an encoder's arranged by what each token was told. A text is certified
    where the model, given it, sends back what was observed. Adapters (LoRA) show few directions at a time, but of the
    same inputs in every round, so that the messages of a client are read together. Does not apply to other
    architectures (embedding-rows does), to sums of clients, and gives tokens alone where local steps are not plain SGD.
    """

    name: ClassVar[str] = "words"
    title: ClassVar[str] = "Words and sentences, exact recovery from transformers"
    paper: ClassVar[str] = "fedspill"
    needs = needs(sees=["update|gradient", "model"], knows=["architecture"])
    leak = WORDS
    control = FROZEN_CONTROL

    origins: int = 8  # messages that are attacked, drawn at random
    device: str = ""  # where it computes; empty: where the audit does

    def run(self, view: View, rng: torch.Generator) -> ClientText:
        device = self.device or view.device
        messages, notes = attacked_texts(view, self.origins, rng, device)
        texts = view.knows("unlabelled_aux") if view.has("unlabelled_aux") else None
        marks = Marks.seen_in(texts, messages[0].net.wte.padding_idx)
        # Of adapters every round of a client is needed, also of those who were drawn once.
        every = attacked_texts(view, _ALL, rng, device)[0] if has_adapters(messages[0].net) else messages
        # All messages together stay within the time that an audit gives an attack.
        own = [replace(attacked, patience=_SHARE / len(messages)) for attacked in messages]
        found = [recover_text(attacked, same_inputs(attacked, every), marks, rng) for attacked in own]
        notes += dict.fromkeys(one.why for one in found if one.why)
        return ClientText(
            [attacked.of for attacked in messages],
            [one.tokens for one in found],
            [stacked(one.sequences) for one in found],
            [torch.tensor(one.certified, dtype=torch.bool) for one in found],
            notes,
        )


def same_inputs(attacked: AttackedText, messages: Sequence[AttackedText]) -> list[Tensor]:
    """Rows of the first layer that are made of the same inputs: adapters leave these as they are in every round."""
    of_one = messages if has_adapters(attacked.net) else [attacked]
    parts = [one.rows_of(_FIRST) for one in of_one if one.of.sender == attacked.of.sender]
    return [part for part in parts if part is not None]
