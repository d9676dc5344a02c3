"""How the cost of an audit grows with clients, rounds, parameters and classes; measured and foretold.

    python benchmarks/growth.py [clients rounds parameters classes] [--skip 1] [--device cuda]

Labels, membership and class mixes of a federation of an MLP by one worker; one thing grows at a time, the others stay
at 20 clients, 4 rounds, 20,000 parameters and 10 classes. A row tells CPU seconds, peak memory and disk, and in
brackets what `--dry-run` foretells over what was measured; on a GPU also the seconds that units held it, and its
memory.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from measured import figures, foretold_and_measured

AXES = {
    "clients": (20, 100, 500),
    "rounds": (4, 16, 64),
    "parameters": (20_000, 100_000, 500_000, 5_000_000),
    "classes": (10, 40, 160),
}
INPUTS, SAMPLES = 64, 16  # of one sample; of one client


def blobs(clients: int, classes: int) -> tuple[torch.Tensor, ...]:
    """One cloud for each class."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, INPUTS, generator=rng)
    made = []
    for count in (2 * clients * SAMPLES + 20 * classes, 2000):
        y = torch.arange(count) % classes  # clients take turns at all classes, and the adversary is given ten of each
        made += [centres[y] + 0.5 * torch.randn(count, INPUTS, generator=rng), y]
    return tuple(made)


def __getattr__(name: str) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Plans name data by a function without arguments: `growth:blobs_20_10` has 20 clients and 10 classes."""
    kind, *numbers = name.split("_")
    if kind != "blobs" or len(numbers) != 2 or not all(map(str.isdigit, numbers)):
        raise AttributeError(name)
    return partial(blobs, *map(int, numbers))


def plan(clients: int, rounds: int, parameters: int, classes: int) -> str:
    width = max(1, parameters // (INPUTS + 1 + classes))
    return f"""
attacks = ["labels", "membership", "composition-by-counts"]
adversaries = ["curious-server"]
candidates = []
data = {{ name = "custom", factory = "growth:blobs_{clients}_{classes}" }}
model = {{ name = "mlp", widths = [{width}] }}
partition = {{ name = "uniform-batch", batch = {SAMPLES} }}
federation = {{ clients = {clients}, rounds = {rounds} }}
training = {{ lr = 0.1, batch_size = {SAMPLES} }}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", default=list(AXES))
    parser.add_argument("--skip", type=int, default=0, help="first rows that are left out")
    parser.add_argument("--device", default="cpu")
    usual = {axis: values[0] for axis, values in AXES.items()}
    asked = parser.parse_args()
    for axis in asked.axes:
        columns = [axis, "CPU s", "peak memory, MB", "disk, MB"]
        columns += ["GPU s", "its memory, MB"] if asked.device != "cpu" else []
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for value in AXES[axis][asked.skip :]:
            print(f"| {value:,} | {' | '.join(row(plan(**{**usual, axis: value}), asked.device))} |", flush=True)


@cache  # the first row is the same on every axis
def row(written: str, device: str) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "plan.toml"
        path.write_text(written)
        return figures(*foretold_and_measured(path, path.parent, Path(__file__).parent, options=["--device", device]))


if __name__ == "__main__":
    main()
