"""Next words: the tokens that a language model was trained to predict, from the bias of its last layer.

The gradient of that bias is, for each token, the mean probability that the model gave it minus its share among the
tokens to be predicted: negative only for tokens that were there. It is how labels are read (Geng et al. 2021), with
tokens for classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, final

import torch
from torch import nn

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.words.embedding_rows import readable
from fedspill.leaks.words.guess import ClientText
from fedspill.leaks.words.leak import WORDS
from fedspill.leaks.words.token_embedding import find_embedding
from fedspill.messages import Message
from fedspill.observe.last_layer import is_update
from fedspill.threat import needs
from fedspill.trace import Origin, View


@final
@dataclass(frozen=True)
class NextWords(Attack):
    """Names the tokens whose last bias was raised. Words that only begin a text are not predicted, so not found.

    A token that the model expects far more often than it came is missed. Does not apply to classifiers, and to last
    layers without a bias.
    """

    name: ClassVar[str] = "next-words"
    title: ClassVar[str] = "Words that were predicted"
    paper: ClassVar[str] = "Geng et al., Towards general deep leakage in federated learning, 2021"
    needs = needs(sees=["update|gradient|aggregate"], knows=["architecture"])
    leak = WORDS
    control = MappingProxyType({**WORDS.control, "model": {"name": "recurrent", "objective": "next"}})

    def run(self, view: View, rng: torch.Generator) -> ClientText:
        messages = readable(view)
        model: nn.Module = view.knows("architecture")()
        tokens = find_embedding(view, messages).shape[0]
        heads = [name for name, parameter in model.named_parameters() if parameter.shape == (tokens,)]
        if not heads:
            raise NotApplicable("The model predicts no tokens, or has no bias where it does.")
        head = min(reversed(heads), key=lambda name: _in_all(name, messages))
        of, found, notes = [], [], []
        for message in messages:
            who = f"{message.sender} in round {message.round} was left out: its {message.kind}"
            bias = message.tensors.get(head)
            if bias is None or bias.shape != (tokens,) or not bias.is_floating_point():
                notes.append(f"{who} holds no {head}")
            elif not bool(torch.isfinite(bias).all()) or not bool(bias.any()):
                notes.append(f"{who} has a {head} that is not finite or does not move")
            else:
                raised = bias > 0 if is_update(message) else bias < 0
                of.append(Origin(message.round, message.sender))
                found.append(raised.nonzero().flatten())
        if not of:
            raise NotApplicable(f"No last bias can be read. {'; '.join(notes[:2])}.")
        return ClientText(of, found, notes=notes)


def _in_all(name: str, messages: Sequence[Message]) -> float:
    """What the numbers of a bias add up to, of their sizes: nothing where a softmax is behind it."""
    sent = [message.tensors[name].double() for message in messages if name in message.tensors]
    return sum(float(tensor.sum().abs() / tensor.abs().sum().clamp_min(1e-300)) for tensor in sent)
