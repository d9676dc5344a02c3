"""How a malicious server of split learning trains a client: by gradients of its own, until it can read embeddings back.

Pasquini, Ateniese and Bernaschi, Unleashing the Tiger: Inference Attacks on Split Learning, CCS 2021, section 3. The
server holds inputs of the same kind. On them it trains a pilot (inputs to embeddings) and a decoder (back again). A
judge learns to tell the pilot's embeddings from the client's, and what goes back to the client is the gradient by which
the judge takes its embeddings for the pilot's. In the end the decoder reads them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable, UsageError
from fedspill.models.vertical import VerticalNet

PENALTY = 500.0  # of the judge's slope; this and the two rates are those of the authors' code
ROUNDS = 10_000  # that the authors train for, with these rates:
PILOT_RATE, JUDGE_RATE = 1e-5, 1e-4
# Where fewer rounds are to be had, rates are larger: the judge's in proportion, those of pilot and decoder, which no
# client slows down, by more. Measured on digits: 300 rounds, 65 % of images recognised instead of 13.
_FASTEST = 3e-3
PREFIX = "hijack."  # of the names of these networks in what the server ends up with


@final
@dataclass(frozen=True)
class EmbeddingKind:
    """What is known of a client's network from its code: inputs, embeddings, and whether these are never negative."""

    part: tuple[int, ...]  # the shape of one input
    width: int  # numbers of an embedding
    map_shape: tuple[int, int, int] | None  # channels, height, width, where an embedding is one of feature maps
    positive: bool  # whether the tower ends in a ReLU

    @property
    def halvings(self) -> int:
        """How often an image's sides are halved on its way to feature maps, at most three times; 0: otherwise."""
        if self.map_shape is None or len(self.part) != 3:
            return 0
        _, height, width = self.map_shape
        for times in (1, 2, 3):
            if (height << times, width << times) == self.part[1:]:
                return times
        return 0


def embedding_kind(net: VerticalNet, party: int = 0) -> EmbeddingKind:
    """What the code of a network says of one party's embeddings."""
    tower, part = copy.deepcopy(net.towers[party]).eval(), net.part_shapes[party]
    with torch.no_grad():
        width = int(tower(next(tower.parameters()).new_zeros(1, *part)).shape[1])
    first = next((layer for layer in net.neck.modules() if not isinstance(layer, nn.Sequential)), None)
    maps = tuple(first.unflattened_size) if isinstance(first, nn.Unflatten) and net.parties == 1 else ()
    map_shape = maps if len(maps) == 3 and prod(maps) == width else None
    ends = [layer for layer in tower.modules() if not isinstance(layer, nn.Flatten | nn.Sequential | nn.MaxPool2d)]
    return EmbeddingKind(tuple(part), width, map_shape, isinstance(ends[-1], nn.ReLU))


def networks_of(kind: EmbeddingKind, *, seed: int) -> nn.ModuleDict:
    """Pilot, decoder and judge, untrained. Inputs and outputs are flat (n, numbers), inputs between -1 and 1.

    They are the convolutions of the authors' code, without activations in pilot and decoder. Embeddings that are no
    feature maps are refused.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        pilot, decoder, judge = _convolutions(kind)
        if kind.positive:  # or the judge could tell by the sign alone
            pilot.append(nn.ReLU())
        found = nn.ModuleDict({"pilot": pilot, "decoder": decoder, "judge": judge})
        for layer in found.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                nn.init.xavier_uniform_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
    return found


def _convolutions(kind: EmbeddingKind) -> tuple[nn.Sequential, nn.Sequential, nn.Sequential]:
    if kind.map_shape is None or not kind.halvings:
        raise NotApplicable("The client's embeddings are no feature maps that halve the sides of its images.")
    colours, (channels, height, width) = kind.part[0], kind.map_shape
    halvings, most = kind.halvings, min(256, 4 * channels)  # the authors' clients have 64 channels and more
    pilot: list[nn.Module] = [nn.Unflatten(1, kind.part)]
    decoder: list[nn.Module] = [nn.Unflatten(1, kind.map_shape)]
    wide = colours
    for step in range(halvings):
        pilot.append(nn.Conv2d(wide, min(64 << step, most), 3, 2, 1))
        wide = min(64 << step, most)
    pilot += [nn.Conv2d(wide, channels, 3, 1, 1), nn.Flatten()]
    wide = channels
    for step in range(halvings):
        narrow = colours if step == 2 else most >> step
        decoder.append(nn.ConvTranspose2d(wide, narrow, 3, 2, 1, output_padding=1))
        wide = narrow
    if halvings < 3:
        decoder.append(nn.Conv2d(wide, colours, 3, 1, 1))
    decoder += [nn.Tanh(), nn.Flatten()]
    smaller = most * -(-height // 2) * -(-width // 2)
    judge = nn.Sequential(
        nn.Unflatten(1, kind.map_shape),
        nn.Conv2d(channels, most, 3, 1, 1),
        *(_Residual(most) for _ in range(6)),
        nn.Conv2d(most, most, 3, 2, 1),
        nn.Flatten(),
        nn.Linear(smaller, 1),
    )
    return nn.Sequential(*pilot), nn.Sequential(*decoder), judge


@final
class _Residual(nn.Module):
    """Two convolutions beside the way past them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


@final
@dataclass(frozen=True, eq=False)
class InputScale:
    """From images to flat numbers (n, numbers) from -1 to 1 and back, by the range of the server's own images."""

    low: Tensor  # ()
    span: Tensor  # ()

    @staticmethod
    def of(images: Tensor) -> InputScale:
        return InputScale(images.min(), (images.max() - images.min()).clamp_min(1e-6))

    def inside(self, images: Tensor) -> Tensor:
        return 2 * (images.flatten(1) - self.low) / self.span - 1

    def outside(self, scaled: Tensor) -> Tensor:
        found: Tensor = self.low + (scaled + 1) / 2 * self.span
        return found


class Hijack:
    """The server's networks while the federation runs."""

    def __init__(self, kind: EmbeddingKind, inputs: Tensor, rounds: int, rng: torch.Generator) -> None:
        if not len(inputs):
            raise UsageError(
                "A server that hijacks a client needs inputs of the same kind.",
                remedy="Set some aside: shadow under [adversary_data].",
            )
        self._kind, self._rng = kind, rng
        self.networks = networks_of(kind, seed=rng.initial_seed()).to(inputs.device)
        self._inputs = InputScale.of(inputs).inside(inputs)
        haste = max(ROUNDS / rounds, 1.0)
        both = [*self.networks["pilot"].parameters(), *self.networks["decoder"].parameters()]
        self._pilot_step = torch.optim.Adam(both, min(haste**1.5 * PILOT_RATE, _FASTEST))
        self._judge_step = torch.optim.Adam(self.networks["judge"].parameters(), min(haste * JUDGE_RATE, _FASTEST))

    def gradient(self, embeddings: Tensor) -> Tensor:
        """What goes back for embeddings (n, width) of a client; every network takes a step meanwhile."""
        pilot, decoder, judge = (self.networks[name] for name in ("pilot", "decoder", "judge"))
        place = torch.randint(len(self._inputs), (len(embeddings),), generator=self._rng)
        own = self._inputs[place.to(self._inputs.device)]
        theirs = embeddings.detach().clone().requires_grad_()
        (back,) = torch.autograd.grad(judge(theirs).mean(), theirs)
        piloted = pilot(own)
        missed = (decoder(piloted) - own).square().mean()
        self._pilot_step.zero_grad()
        missed.backward()
        shown = piloted.detach()
        apart = judge(shown).mean() - judge(theirs.detach()).mean()
        self._judge_step.zero_grad()
        (apart + PENALTY * self._slope(judge, theirs.detach(), shown)).backward()
        self._pilot_step.step()
        self._judge_step.step()
        return back.detach()

    def _slope(self, judge: nn.Module, theirs: Tensor, piloted: Tensor) -> Tensor:
        """How far the judge's slope between the two kinds of embeddings is from 1; of maps, channel by channel."""
        share = torch.rand(len(theirs), 1, generator=self._rng).to(theirs)
        between = (share * theirs + (1 - share) * piloted).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        assert self._kind.map_shape is not None  # or there would be no networks
        steepness = slope.reshape(len(slope), self._kind.map_shape[0], -1).norm(dim=-1)
        found: Tensor = (steepness - 1).square().mean()
        return found

    def read_back(self, embeddings: Tensor) -> Tensor:
        """What the decoder, as it is now, makes of embeddings (n, width): numbers (n, pixels) from -1 to 1."""
        with torch.no_grad():
            found: Tensor = self.networks["decoder"](embeddings)
        return found

    def state(self) -> dict[str, Tensor]:
        """What the server needs to read embeddings back, under names of their own."""
        return {f"{PREFIX}{name}": tensor.detach().clone() for name, tensor in self.networks.state_dict().items()}
