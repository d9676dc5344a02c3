"""What `cafe` recovers of a federation: PSNR of tiles and images, labels, and what it said of itself."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.dataset import Dataset, Examples
from fedspill.intervals import mean_interval
from fedspill.leaks.inputs.cafe import RecoveredSamples, certified_parts, recover, recover_faked, recover_moving
from fedspill.leaks.inputs.tile_metrics import tile_psnr
from fedspill.metric import Score
from fedspill.reproduce import Run
from fedspill.seeds import generator

from .federation import Setup, observed


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of one federation: PSNR of tiles (n, parties) and of whole images (n,), and what was observed."""

    tiles: Tensor
    images: Tensor
    labels: float
    found: RecoveredSamples
    rounds: int
    seconds: float
    chance: float
    compensated: str = ""  # of a model that moved: what it was before

    def score(self) -> Score:
        values = self.tiles.mean(1)
        low, high = mean_interval(values)
        return Score(float(values.mean()), low, high, len(values), self.chance)

    def note(self) -> str:
        """The rest of what must be known, in one line."""
        poor = self.tiles < 30
        unsure = ~certified_parts(self.found).cpu()
        flagged = int((poor & unsure).sum())
        return (
            f"{self.rounds} rounds; whole images: median {float(self.images.median()):.1f}, worst "
            f"{float(self.images.min()):.1f} dB, {100 * float((self.images > 30).double().mean()):.1f} % above 30 dB; "
            f"MSE {float((10 ** (-self.images / 10)).mean()):.1e}; labels {100 * self.labels:.1f} %; "
            f"tiles below 30 dB: {int(poor.sum())}, flagged {flagged}; tiles not in the gradients: "
            f"{int((~torch.isfinite(self.found.misfit)).sum())}; {self.seconds:.1f} s{self.compensated}"
        )


def attacked(dataset: Dataset, setup: Setup, run: Run) -> Outcome:
    """The federation, the attack, and what it got."""
    seen, examples = observed(dataset, setup, run)
    rng = generator(run.seed, "attack")
    _wait(run.device)
    began = time.perf_counter()
    if setup.knows_fakes:
        found = recover_faked(seen, setup.effort, rng, setup.knows_fakes)
    elif seen.static:
        found = recover(seen, setup.effort, rng)
    else:
        found = recover_moving(seen, setup.effort, rng, passes=6)
    _wait(run.device)
    seconds = time.perf_counter() - began
    return outcome(found, examples, setup, seconds)


def outcome(found: RecoveredSamples, examples: Examples, setup: Setup, seconds: float = 0.0) -> Outcome:
    x = found.x.cpu()
    errors = (x.double().clamp(0, 1) - examples.x.double()).square().flatten(1).mean(1)
    images = -10 * torch.log10(errors.clamp_min(1e-12))
    labels = float((found.labels.cpu() == examples.y).double().mean())
    tiles = tile_psnr(x, examples.x, setup.parties)
    compensated = ""
    if found.uncompensated is not None:
        before = float(tile_psnr(found.uncompensated.cpu(), examples.x, setup.parties).mean())
        compensated = f"; {found.passes} passes of compensation kept, {before:.2f} dB without"
    level = chance(examples, setup.parties)
    return Outcome(tiles, images, labels, found, setup.rounds, seconds, level, compensated)


def chance(examples: Examples, parties: int) -> float:
    """The best of grey, black and the mean of the class (of all other samples), which no access is needed for."""
    places = torch.unique(examples.y, return_inverse=True)[1]
    sums = torch.zeros(int(places.max()) + 1, *examples.x.shape[1:]).index_add_(0, places, examples.x)
    others = (torch.bincount(places)[places] - 1).clamp_min(1)[:, None, None, None]
    means = (sums[places] - examples.x) / others
    tried = (torch.full_like(examples.x, 0.5), torch.zeros_like(examples.x), means)
    return max(float(tile_psnr(guess, examples.x, parties).mean()) for guess in tried)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
