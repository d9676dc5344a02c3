"""UnSplit: inputs and a copy of the client's network, found together from embeddings alone (Erdogan et al. 2022)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.features.seen.answers import read_embeddings, split_network
from fedspill.leaks.split_images.guess import RebuiltImages
from fedspill.leaks.split_images.leak import SPLIT_IMAGES
from fedspill.threat import needs
from fedspill.trace import View

RATE = 1e-3  # of both descents; this and the two weights are those of the authors' code
VARIATION, SIZE = 0.1, 1.0


@final
@dataclass(frozen=True)
class Unsplit(Attack):
    """Descends by turns in the inputs and in the weights of a network of the client's architecture.

    Total variation and the squares of the inputs are penalised. The paper takes 1,000 turns of 100 and 100 steps for
    each image by itself; here all images share one copy of the network, and a default run takes 10 turns. Behind linear
    layers nothing holds pixels in their places, so that it is for networks cut among convolutions.
    """

    name: ClassVar[str] = "unsplit"
    title: ClassVar[str] = "Features by descent in inputs and weights"
    paper: ClassVar[str] = (
        "Erdogan et al. 2022, UnSplit: Data-Oblivious Model Inversion, Model Stealing, and Label Inference"
    )
    needs = needs(sees=["embedding", "batch", "prediction"], knows=["architecture"])
    leak = SPLIT_IMAGES

    most: int = 32  # samples that are read; the rest is left out
    turns: int = 10
    input_steps: int = 100
    weight_steps: int = 100

    def run(self, view: View, rng: torch.Generator) -> RebuiltImages:
        net = split_network(view)
        shape, tower = net.part_shapes[0], net.towers[0]
        if len(shape) != 3 or not any(isinstance(layer, nn.Conv2d) for layer in tower.modules()):
            raise NotApplicable("The client's network has no convolutions: nothing would hold pixels in their places.")
        asked = read_embeddings(view, or_last_batch=True)
        asked = asked.first(min(self.most, len(asked.values)))
        clone = copy.deepcopy(tower).train()
        with torch.no_grad():
            if clone(torch.zeros(1, *shape)).shape[1] != asked.values.shape[1]:
                raise NotApplicable("The embeddings are not those of the architecture.")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(1 << 60, (1,), generator=rng)))
            for layer in clone.modules():  # the weights that training began with are nobody's but the client's
                if isinstance(layer, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
                    layer.reset_parameters()
        rows = self._descend(clone.to(asked.values.device), asked.values.float(), shape).flatten(1).cpu()
        if view.has("feature_ranges"):
            rows = stretched(rows, view.knows("feature_ranges").float().cpu())
        if not bool(torch.isfinite(rows).all()):
            raise NotApplicable("The descent does not converge.")
        return RebuiltImages.behind(asked, rows)

    def _descend(self, clone: nn.Module, wanted: Tensor, shape: tuple[int, ...]) -> Tensor:
        inputs = torch.full((len(wanted), *shape), 0.5, device=wanted.device, requires_grad=True)
        input_step = torch.optim.Adam([inputs], RATE, amsgrad=True)
        weight_step = torch.optim.Adam(clone.parameters(), RATE, amsgrad=True)
        for _ in range(self.turns):
            for _ in range(self.input_steps):
                missed = (clone(inputs) - wanted).square().mean(1)
                loss = missed + VARIATION * total_variation(inputs) + SIZE * inputs.square().flatten(1).mean(1)
                input_step.zero_grad()
                loss.sum().backward()  # each image as if it were alone
                input_step.step()
            fixed = inputs.detach()
            for _ in range(self.weight_steps):
                weight_step.zero_grad()
                (clone(fixed) - wanted).square().mean().backward()
                weight_step.step()
        return inputs.detach()


def stretched(rows: Tensor, ranges: Tensor) -> Tensor:
    """Rows (n, features), each moved and scaled to reach from the least to the largest of all ranges (2, features).

    The embedding does not say how bright an image is, since a network with other weights makes up for it.
    """
    low, high = ranges[0].min(), ranges[1].max()
    least, most = rows.min(1, keepdim=True).values, rows.max(1, keepdim=True).values
    return low + (high - low) * (rows - least) / (most - least).clamp_min(1e-12)


def total_variation(images: Tensor) -> Tensor:
    """(n,) mean squares of the differences between neighbours of images (n, channels, height, width), both ways."""
    down = (images[:, :, 1:] - images[:, :, :-1]).square().flatten(1).mean(1)
    across = (images[:, :, :, 1:] - images[:, :, :, :-1]).square().flatten(1).mean(1)
    return down + across
