"""Small networks as users write them, no chain of layers, for benchmarks/no_chain_networks.py: 64 pixels, 10 classes.

Those of `DEVELOPMENT` were used while the attack was mended. Those of `HELD_OUT` were written before, by the same hand,
and run once, after the last change.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

PIXELS, CLASSES, WIDTH = 64, 10, 64


class NormFirst(nn.Module):
    """A layer norm of the input, then two blocks with a connection around each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.LayerNorm(PIXELS), nn.Linear(PIXELS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(self.norm(x.flatten(1))).relu()
        for block in self.blocks:
            h = h + block(h).relu()
        out: Tensor = self.leave(h)
        return out


class TwoTowers(nn.Module):
    """One tower reads the upper half, another the lower half, and a third layer reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.upper, self.lower = nn.Linear(PIXELS // 2, WIDTH), nn.Linear(PIXELS // 2, WIDTH)
        self.join, self.leave = nn.Linear(2 * WIDTH, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        upper, lower = x.flatten(1).split(PIXELS // 2, 1)
        both = torch.cat([self.upper(upper).relu(), self.lower(lower).relu()], 1)
        out: Tensor = self.leave(self.join(both).relu())
        return out


class SqueezeExcite(nn.Module):
    """Convolutions whose channels are scaled by two small layers, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.squeeze, self.excite = nn.Linear(16, 4), nn.Linear(4, 16)
        self.middle, self.leave = nn.Linear(256, 96), nn.Linear(96, 48)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.silu(self.two(nn.functional.silu(self.one(x.reshape(-1, 1, 8, 8)))))
        scale = self.excite(self.squeeze(h.mean((2, 3))).relu()).sigmoid()
        h = (h * scale[:, :, None, None]).flatten(1)
        out: Tensor = self.head(self.leave(self.middle(h).relu()).relu())
        return out


class WeightNormed(nn.Module):
    """Every layer's weights are a size times a direction, and both are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle = weight_norm(nn.Linear(PIXELS, WIDTH)), weight_norm(nn.Linear(WIDTH, 48))
        self.leave = weight_norm(nn.Linear(48, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.middle(self.enter(x.flatten(1)).relu()).relu())
        return out


class Adapter(nn.Module):
    """A layer that is frozen, and behind it a narrow one and back, which are trained, with a connection around them."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(PIXELS, 2 * WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(2 * WIDTH, 24), nn.Linear(24, 2 * WIDTH)
        self.leave = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.gelu(self.base(x.flatten(1)))
        h = h + self.up(nn.functional.gelu(self.down(h)))
        out: Tensor = self.leave(h)
        return out


class SameLayerTwice(nn.Module):
    """One square layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.middle = nn.Linear(PIXELS, PIXELS), nn.Linear(PIXELS, 48)
        self.leave = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.again(self.again(x.flatten(1)).relu()).relu()
        out: Tensor = self.leave(self.middle(h).relu())
        return out


class SoftMixture(nn.Module):
    """A trunk that reads the input, and three experts behind it that a softmax of the trunk weighs."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.gate = nn.Linear(PIXELS, WIDTH), nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU()) for _ in range(3))
        self.leave = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.leaky_relu(self.trunk(x.flatten(1)), 0.1)
        shares = self.gate(h).softmax(1)
        mixed = torch.stack([expert(h) for expert in self.experts], 1) * shares[:, :, None]
        out: Tensor = self.leave(mixed.sum(1))
        return out


class UShaped(nn.Module):
    """Ever narrower layers and back, and each one on the way back reads its like on the way down too."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(PIXELS, 56), nn.Linear(56, 28)
        self.back, self.leave = nn.Linear(28, 56), nn.Linear(112, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        one = self.wide(x.flatten(1)).relu()
        two = self.narrow(one).relu()
        out: Tensor = self.leave(torch.cat([self.back(two).relu(), one], 1))
        return out


class GroupNormed(nn.Module):
    """A block of strided convolutions with group norm and a connection around it, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.middle, self.leave, self.head = nn.Linear(256, 80), nn.Linear(80, 40), nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x.reshape(-1, 1, 8, 8))
        h = h + self.two(self.norm(h).relu())
        out: Tensor = self.head(self.leave(self.middle(h.flatten(1)).relu()).relu())
        return out


class TableOfParts(nn.Module):
    """As for a table: four groups of columns are embedded without a bias, the other columns are read as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))
        self.enter, self.middle, self.leave = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        embedded = [embed(part) for embed, part in zip(self.embed, x[:, :32].split(8, 1), strict=True)]
        h = nn.functional.elu(self.enter(torch.cat([*embedded, x[:, 32:]], 1)))
        out: Tensor = self.leave(nn.functional.elu(self.middle(h)))
        return out


class DeepSet(nn.Module):
    """The eight rows of an image are a set: the same two layers read each, and their mean is what the head reads."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 64), nn.Linear(64, 64)
        self.middle, self.leave = nn.Linear(64, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(len(x), 8, 8)
        h = self.two(self.one(rows).relu()).relu().mean(1)
        out: Tensor = self.leave(self.middle(h).relu())
        return out


class TwinHalves(nn.Module):
    """The same layer reads both halves of the input, and the next one reads their difference and product."""

    def __init__(self) -> None:
        super().__init__()
        self.twin, self.join, self.leave = nn.Linear(32, WIDTH), nn.Linear(2 * WIDTH, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        left, right = (self.twin(half).tanh() for half in x.flatten(1).split(32, 1))
        out: Tensor = self.leave(self.join(torch.cat([left - right, left * right], 1)).relu())
        return out


DEVELOPMENT: tuple[type[nn.Module], ...] = (
    NormFirst,
    TwoTowers,
    SqueezeExcite,
    WeightNormed,
    Adapter,
    SameLayerTwice,
)
HELD_OUT: tuple[type[nn.Module], ...] = (SoftMixture, UShaped, GroupNormed, TableOfParts, DeepSet, TwinHalves)
