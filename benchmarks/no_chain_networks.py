"""Exact recovery on networks that are no chain of layers, each written for this and not for the attack.

    python benchmarks/no_chain_networks.py first --seed 99000 --batches 20
    python benchmarks/no_chain_networks.py held-out --seed 99100 --batches 20
    python benchmarks/no_chain_networks.py users-held-out --samples 2 4 8 16 --seed 99300 --batches 20

One line per network and number of samples: whole batches above 60 dB, images above 60 and 30 dB, images that were
vouched for and those of them below 30 dB, which must be none; what was said where nothing came back. Each batch has a
fresh network and fresh digits (8 by 8 pixels). The number of samples is known, labels are not. The attack was run on
`first` before anything was mended for them, and on `held-out` after that; `users` and `users-held-out`, likewise, are
the networks of user_networks.py. `--by-heart` first trains on half of each batch. With `--lr` the client sends
an update of `--epochs` over its samples, in steps of `--batch-size`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import torch
from exact_inputs import EXACT, SEEN, sent, sent_after
from torch import Tensor, nn
from user_networks import CLASSES, PIXELS, WIDTH
from user_networks import DEVELOPMENT as USERS
from user_networks import HELD_OUT as USERS_HELD_OUT

from fedspill.dataset import Dataset
from fedspill.leaks.inputs.exact.routes import recover_exactly
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort
from fedspill.leaks.inputs.observed_gradients import AttackedMessage
from fedspill.leaks.inputs.scoring.pairs import guess_psnr
from fedspill.leaks.inputs.scoring.similarity import Range
from fedspill.registry import make
from fedspill.trace import Origin
from fedspill.training import Schedule


class TwoLayers(nn.Module):
    """A chain, to compare with: two rectified layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.leave = nn.Linear(PIXELS, WIDTH), nn.Linear(WIDTH, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.two(self.one(x.flatten(1)).relu()).relu())
        return out


class TwoTanhLayers(TwoLayers):
    """The same with bounded activations."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.two(self.one(x.flatten(1)).tanh()).tanh())
        return out


class Strided(nn.Sequential):
    """A chain that begins with a convolution."""

    def __init__(self) -> None:
        lower = [nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten()]
        upper = [nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, CLASSES)]
        super().__init__(*lower, *upper)


class ResidualMlp(nn.Module):
    """Two blocks with a connection around each."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(PIXELS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.flatten(1)).relu()
        for block in self.blocks:
            h = h + block(h).relu()
        out: Tensor = self.leave(h)
        return out


class TwoBranches(nn.Module):
    """Two layers read the input, with unlike activations, and a third one reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(PIXELS, WIDTH // 2), nn.Linear(PIXELS, WIDTH)
        self.join, self.leave = nn.Linear(WIDTH + WIDTH // 2, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        joined = torch.cat([self.left(x).relu(), self.right(x).tanh()], 1)
        out: Tensor = self.leave(self.join(joined).relu())
        return out


class Gated(nn.Module):
    """Values times gates, both read off the input."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(PIXELS, WIDTH), nn.Linear(PIXELS, WIDTH)
        self.middle, self.leave = nn.Linear(WIDTH, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.leave(self.middle(self.value(x) * self.gate(x).sigmoid()).relu())
        return out


class NormedBlocks(nn.Module):
    """As in a transformer without attention: layer norm at the start of a block, and a connection around it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(PIXELS, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.last, self.leave = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.flatten(1))
        h = h + self.down(nn.functional.gelu(self.up(self.norm(h))))
        out: Tensor = self.leave(self.last(h))
        return out


class InputAgain(nn.Module):
    """Every layer reads the input too, beside what the one before put out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(PIXELS, WIDTH), nn.Linear(PIXELS + WIDTH, WIDTH)
        self.leave = nn.Linear(PIXELS + WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        h = self.one(x).relu()
        h = self.two(torch.cat([h, x], 1)).relu()
        out: Tensor = self.leave(torch.cat([h, x], 1))
        return out


class PatchAttention(nn.Module):
    """Four patches, attention between them, and a mean: no layer reads the whole input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attend = nn.Linear(PIXELS // 4, 32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.middle, self.leave = nn.Linear(32, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        patches = nn.functional.unfold(x.reshape(-1, 1, 8, 8), 4, stride=4).transpose(1, 2)
        h = self.embed(patches)
        h = (h + self.attend(h, h, h, need_weights=False)[0]).mean(1)
        out: Tensor = self.leave(self.middle(h).relu())
        return out


class Highway(nn.Module):
    """Each layer mixes what it was fed with what it makes of it, by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(PIXELS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.made = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.flatten(1)).tanh()
        for made, gate in zip(self.made, self.gates, strict=True):
            share = gate(h).sigmoid()
            h = share * made(h).relu() + (1 - share) * h
        out: Tensor = self.leave(h)
        return out


class TiedWeights(nn.Module):
    """The first layer's weights are used again, transposed, and what they give back is read by the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = nn.Linear(PIXELS, 48), nn.Linear(PIXELS, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        code = self.enter(x.flatten(1)).relu()
        again = nn.functional.linear(code, self.enter.weight.T)
        out: Tensor = self.leave(self.middle(again).relu())
        return out


class Maxout(nn.Module):
    """The larger of two units, in each place."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle = nn.Linear(PIXELS, 2 * WIDTH), nn.Linear(WIDTH, 48)
        self.leave = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.flatten(1)).unflatten(1, (WIDTH, 2)).amax(2)
        out: Tensor = self.leave(self.middle(h).relu())
        return out


class Experts(nn.Module):
    """Three experts read the input, and a softmax of a fourth layer says how much each counts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(PIXELS, 3)
        self.experts = nn.ModuleList(nn.Linear(PIXELS, 48) for _ in range(3))
        self.middle, self.leave = nn.Linear(48, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        shares = self.gate(x).softmax(1)
        mixed = sum(shares[:, [k]] * expert(x).relu() for k, expert in enumerate(self.experts))
        out: Tensor = self.leave(self.middle(mixed).relu())
        return out


FIRST: tuple[type[nn.Module], ...] = (
    ResidualMlp,
    TwoBranches,
    Gated,
    NormedBlocks,
    InputAgain,
    PatchAttention,
)
HELD_OUT: tuple[type[nn.Module], ...] = (Highway, TiedWeights, Maxout, Experts)
GROUPS = {
    "chains": (TwoLayers, TwoTanhLayers, Strided),
    "first": FIRST,
    "held-out": HELD_OUT,
    "users": USERS,
    "users-held-out": USERS_HELD_OUT,
}


def learn(network: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Trains until the network knows these by heart: they send back next to nothing then, and others very much."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    network.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=list(GROUPS))
    parser.add_argument("--networks", nargs="+", help="only these")
    parser.add_argument("--samples", nargs="+", type=int, default=[4, 8])
    parser.add_argument(
        "--by-heart", type=int, default=0, help="steps on half of the batch before, which is then known"
    )
    parser.add_argument("--lr", type=float, help="of local steps; without it one gradient is sent")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, help="of a local step; without it all samples")
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=99_000, help="of the first batch")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dataset: Dataset = make("datasets", "digits").load(asked.data_dir)
    for kind in [one for one in GROUPS[asked.which] if not asked.networks or one.__name__ in asked.networks]:
        for samples in asked.samples:
            whole = exact = seen = vouched = false = 0
            spent, said = 0.0, Counter[str]()
            for seed in range(asked.seed, asked.seed + asked.batches):
                rng = torch.Generator().manual_seed(seed)
                torch.manual_seed(seed)
                network = kind()
                chosen = dataset.train.take(torch.randperm(len(dataset.train), generator=rng)[:samples])
                learn(network, chosen.x[: samples // 2], chosen.y[: samples // 2], asked.by_heart)
                size = asked.batch_size or samples
                if asked.lr is None:
                    gradients = sent(network, chosen.x, chosen.y)
                else:
                    parts = [p for _ in range(asked.epochs) for p in torch.randperm(samples, generator=rng).split(size)]
                    gradients = sent_after(network, chosen.x, chosen.y, asked.lr, asked.momentum, parts)
                message = AttackedMessage(
                    Origin(0, "client:0"),
                    network.double().eval(),
                    gradients,
                    Schedule(samples, size, asked.epochs),
                    asked.lr,
                    plain=not asked.momentum,
                    momentum=asked.momentum,
                )
                began = time.process_time()
                found = recover_exactly(message, dataset.shape, CLASSES, RootSearchEffort(), rng)
                spent += time.process_time() - began
                said[found.why] += bool(found.why)
                if len(found.samples):
                    real = chosen.x.double()
                    quality = guess_psnr(found.samples, real, Range.of([real]))
                    exact += int((quality > EXACT).sum())
                    seen += int((quality > SEEN).sum())
                    whole += int((quality > EXACT).sum()) == samples
                    vouched += int(found.certified.sum())
                    false += int((guess_psnr(found.samples[found.certified], real, Range.of([real])) < SEEN).sum())
            n, images = asked.batches, asked.batches * samples
            print(
                f"{kind.__name__:16} B {samples:2} n {n}: whole batches {whole}/{n}; "
                f"images above 60 dB {exact}/{images}, 30 dB {seen}/{images}; "
                f"vouched for {vouched}, of them false {false}; CPU s each {spent / n:.2f} "
                f"{'; '.join(f'{count} x {why}' for why, count in said.items() if count)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
