"""FSHA: a server of split learning trains its client to send embeddings that it can read (Pasquini et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.federation.hijack import PREFIX, InputScale, embedding_kind, networks_of
from fedspill.leaks.features.seen.answers import read_embeddings, split_network
from fedspill.leaks.split_images.guess import RebuiltImages
from fedspill.leaks.split_images.leak import SPLIT_IMAGES
from fedspill.threat import ALTER_RETURNED, needs
from fedspill.trace import View

_LARGEST = 1e15


@final
@dataclass(frozen=True)
class Fsha(Attack):
    """Reads embeddings back by the decoder that the server trained while it hijacked its client.

    The federation is run with such a server (federation/hijack.py): what goes back to the client are gradients of a
    judge, not of the loss, so that nothing is learned of the task. It needs inputs of the same kind, and rounds: the
    authors take 10,000.
    """

    name: ClassVar[str] = "fsha"
    title: ClassVar[str] = "Features by hijacking a client's training"
    paper: ClassVar[str] = "Pasquini et al. 2021, Unleashing the Tiger: Inference Attacks on Split Learning"
    needs = needs(
        sees=["embedding", "batch", "prediction", "model"], knows=["architecture", "shadow_data"], does=[ALTER_RETURNED]
    )
    leak = SPLIT_IMAGES

    def run(self, view: View, rng: torch.Generator) -> RebuiltImages:
        net = split_network(view)
        asked = read_embeddings(view, or_last_batch=True)
        kind = embedding_kind(net)
        shadow = view.knows("shadow_data").x.float()
        if asked.values.shape[1] != kind.width or tuple(shadow.shape[1:]) != kind.part or not len(shadow):
            raise NotApplicable("Embeddings or the server's own inputs are not those of the architecture.")
        trained = {
            name.removeprefix(f"{PREFIX}decoder."): tensor
            for message in view.get("model")
            for name, tensor in message.tensors.items()
            if name.startswith(f"{PREFIX}decoder.")
        }
        decoder = networks_of(kind, seed=0)["decoder"]
        shapes = {name: tensor.shape for name, tensor in decoder.state_dict().items()}
        if {name: tensor.shape for name, tensor in trained.items()} != shapes:
            raise NotApplicable("No decoder was trained: the server of this recording followed the protocol.")
        if not all(tensor.is_floating_point() and bool((tensor.abs() < _LARGEST).all()) for tensor in trained.values()):
            raise NotApplicable("The decoder has weights that no training brings about.")
        decoder.load_state_dict(trained)
        with torch.no_grad():
            rows = InputScale.of(shadow).outside(decoder(asked.values.float()))
        if not bool(torch.isfinite(rows).all()):
            raise NotApplicable("The decoder does not converge.")
        return RebuiltImages.behind(asked, rows)
