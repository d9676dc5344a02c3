"""What a malicious neuron costs, written down or trained, and what a guard costs beside one local epoch.

    python benchmarks/active.py [--epochs 1000]

All times are processor seconds of one thread in the same run, so that ratios hold on a busy machine. The published
training is timed on `--epochs` epochs of full batches over 4,000 shadow records and scaled to its 1,000.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

import torch
from timing import interleaved

from fedspill.dataset import Examples
from fedspill.defense import ClientContext
from fedspill.defenses.guard import Guard
from fedspill.federation.local import state_of, train
from fedspill.messages import EVERYONE, SERVER, Message
from fedspill.models.mlp import Mlp
from fedspill.planting.closed_form import NeuronDesign, plant_neurons
from fedspill.planting.dense_network import read_dense_network
from fedspill.planting.targets import Targets
from fedspill.planting.trained_neurons import AaiRecipe, AmiRecipe, train_aai, train_ami
from fedspill.seeds import generator
from fedspill.training import LocalTraining

COLUMNS = 96  # of Adult, as in papers/004
SHADOW = 5000
CLIENT = 271  # examples of the mean client of Adult with 93 users, less the shadow set


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Processor seconds of one call, after one to warm up."""
    action()
    began = time.process_time()
    for _ in range(repeats):
        action()
    return (time.process_time() - began) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    shadow = (torch.rand(SHADOW, COLUMNS, generator=rng) < 0.2).float()
    shadow[:, :4] = torch.randn(SHADOW, 4, generator=rng)
    records = shadow[:1].clone()
    records[:, 95] = 0
    targets = Targets(records, torch.ones(1, dtype=torch.int64), 0, 95, (95,))
    model = Mlp(widths=(128, 64), activation="elu", alpha=-2.0, logits=1).build((COLUMNS,), 2, seed=1)
    dense, state = read_dense_network(model), {name: tensor.clone() for name, tensor in state_of(model).items()}
    closed = seconds(
        lambda: plant_neurons(dense, state, targets, [0], shadow, NeuronDesign(), generator(1, "plant")), 20
    )
    up, down = (targets.completed(value, shadow)[:, None] for value in (1, 0))
    scale = 1000 / asked.epochs
    aai = scale * seconds(lambda: train_aai(dense, state, up, down, shadow, AaiRecipe(epochs=asked.epochs)), 1)
    pair = torch.cat([down, up], 1)
    ami = scale * seconds(lambda: train_ami(dense, state, pair, shadow, AmiRecipe(epochs=asked.epochs)), 1)
    print(f"closed form     {1000 * closed:9.2f} ms per target")
    print(f"AAI, trained    {1000 * aai:9.0f} ms per target, {aai / closed:6.0f} times the closed form")
    print(f"MIA2AIA, trained{1000 * ami:9.0f} ms per target, {ami / closed:6.0f} times the closed form")

    guarded("Adult's network, the mean client", (COLUMNS,), (128, 64), CLIENT)
    guarded("Adult's network, the median client", (COLUMNS,), (128, 64), 170)
    guarded("Adult's network, the largest client of one batch", (COLUMNS,), (128, 64), 100)
    guarded("COP-MODE's network, the median client", (53,), (128, 64), 318)
    guarded("the paper's CelebA network, a tenth of its clients' data", (518,), (1024, 512), 1580)


def guarded(title: str, shape: tuple[int, ...], widths: tuple[int, ...], examples: int) -> None:
    """The guard beside one local epoch of a client with that many examples."""
    rng = torch.Generator().manual_seed(1)
    model = Mlp(widths=widths, logits=1).build(shape, 2, seed=1)
    state = {name: tensor.clone() for name, tensor in state_of(model).items()}
    x = torch.randn(examples, *shape, generator=rng)
    own = Examples(x, (x[:, 0] > 0).long())
    training = LocalTraining(optimizer="adam", lr=1e-3, batch_size=100)
    moved = {name: tensor + 0.01 * torch.randn(tensor.shape, generator=rng) for name, tensor in state.items()}
    before, now = (Message(n, SERVER, EVERYONE, "model", s) for n, s in ((0, state), (1, moved)))
    ours = Guard()
    verdict = ours.incoming(now, before, ClientContext())
    memory = dict(verdict.memory or {})
    turns = {
        "epoch": lambda: train(model, state, own, training, generator(1, "epoch")),
        "guard": lambda: ours.incoming(now, before, ClientContext(memory)),
    }
    found = interleaved(turns, 40, {"epoch": 3, "guard": 30})
    epoch, guard = (statistics.median(found[name]) for name in ("epoch", "guard"))
    shares = statistics.quantiles((g / e for g, e in zip(found["guard"], found["epoch"], strict=True)), n=4)
    peak = peak_of(lambda: ours.incoming(now, before, ClientContext(memory)))
    model_bytes = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    kept = sum(tensor.numel() for tensor in memory.values()) / sum(tensor.numel() for tensor in state.values())
    print(f"{title}: {examples} examples")
    print(f"  local epoch   {1000 * epoch:9.2f} ms")
    print(
        f"  guard         {1000 * guard:9.2f} ms per round, {100 * guard / epoch:.1f} % of a local epoch, turn by turn"
    )
    print(f"  {100 * shares[1]:.1f} % [{100 * shares[0]:.1f}, {100 * shares[2]:.1f}] (n=40, middle half)")
    print(f"  it remembers the last accepted model and {100 * kept:.2f} % of one more, and allocates")
    print(f"  {100 * peak / model_bytes:.0f} % of one more while it looks ({peak / 1024:.0f} KiB)")


def peak_of(action: Callable[[], object]) -> int:
    """Bytes that Python and numpy allocate at most during one call."""
    tracemalloc.start()
    action()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


if __name__ == "__main__":
    main()
