"""LLBG decoding: 100 batches of 128 labels over 100 classes in one call, against the published loop.

    python benchmarks/label_decoding.py [--quick] [--json FILE]

Both get the same bias gradients (ten local steps of 13, half/quarter/rest labels) and must return the same counts.
Bar: the one call takes at most a thirtieth of the loop's CPU time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from timing import interleaved, spread

from fedspill.leaks.labels.llbg import llbg_counts

BATCHES, CLASSES, SAMPLES, PER_STEP = 100, 100, 128, 13
BAR = 30


def bias_gradients(rng: np.random.Generator) -> np.ndarray:
    """What an untrained model's last bias shows: minus each step's label frequencies, plus nearly equal confidences."""
    gradients = np.zeros((BATCHES, CLASSES))
    for gradient in gradients:
        most, second = rng.choice(CLASSES, 2, replace=False)
        rest = rng.integers(0, CLASSES, SAMPLES // 4)
        labels = rng.permutation(np.concatenate([[most] * (SAMPLES // 2), [second] * (SAMPLES // 4), rest]))
        for step in np.split(labels, range(PER_STEP, SAMPLES, PER_STEP)):
            confidence = rng.normal(1, 0.02, CLASSES) / CLASSES
            gradient += confidence - np.bincount(step, minlength=CLASSES) / len(step)
    return gradients


def published_loop(bias: np.ndarray, batch_size: int, samples: int) -> list[int]:
    """Algorithm 1 of paper 003, line by line, for one batch."""
    beta = bias.copy()
    m = -1 / batch_size
    labels: list[int] = []
    for i in range(len(beta)):
        if beta[i] < 0:
            labels.append(i)
            beta[i] -= m
    while len(labels) < samples:
        label = int(np.argmin(beta))
        labels.append(label)
        beta[label] -= m
    return labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bias = bias_gradients(np.random.default_rng(0))
    arguments = (
        torch.from_numpy(bias),
        torch.full((BATCHES,), PER_STEP),
        torch.full((BATCHES,), SAMPLES),
        torch.zeros(BATCHES, CLASSES),
    )

    def loop() -> np.ndarray:
        found = [published_loop(row, PER_STEP, SAMPLES) for row in bias]
        return np.stack([np.bincount(labels, minlength=CLASSES) for labels in found])

    def ours() -> np.ndarray:
        return llbg_counts(*arguments).numpy()

    assert (loop() == ours()).all(), "the closed form and the published loop differ"
    times = interleaved({"loop": loop, "ours": ours}, repeats=7 if options.quick else 41, calls={"ours": 20})
    ratios = np.array(times["loop"]) / np.array(times["ours"])
    print(f"published loop  {spread(times['loop'], 1e3)} ms CPU")
    print(f"one call        {spread(times['ours'], 1e3)} ms CPU")
    print(f"ratio           {spread(ratios)}, bar >= {BAR}: {'met' if np.median(ratios) >= BAR else 'NOT MET'}")
    if options.json:
        figures = {"seconds": times, "ratio": float(np.median(ratios)), "bar": BAR, "repeats": len(ratios)}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
