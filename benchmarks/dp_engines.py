"""Differential privacy of others, audited as it is: Opacus's optimizer, Flower's clipping, noise and local mod.

    python benchmarks/dp_audit.py engines --seeds 3

Flower's own functions are called as its strategies and mods call them, without messages around them.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.dp_audit import Claim, ClientMechanism, DpResult, RecordMechanism, audit_clients, audit_records
from fedspill.dp_audit.gaussian_privacy import mu_of
from fedspill.seeds import generator

DELTA, ROUNDS, STEPS = 1e-5, 8, 10


@dataclass(eq=False)
class FlowerServerSide(ClientMechanism):
    """DifferentialPrivacyServerSideFixedClipping around FedAvg; canaries may say that they have more examples."""

    claim: Claim
    spans: Mapping[str, slice]
    examples: float = 1.0  # of a canary, where others have one
    real: int = 20

    def release(self, updates: Tensor, number: int) -> Tensor:
        from flwr.supercore.differential_privacy import (
            add_gaussian_noise_inplace,
            compute_clip_model_update,
            compute_stdv,
        )

        zero = [np.zeros(span.stop - span.start, np.float32) for span in self.spans.values()]
        clipped = []
        for update in updates:
            arrays = [update[span].numpy().copy() for span in self.spans.values()]
            compute_clip_model_update(arrays, zero, self.claim.clip)
            clipped.append(np.concatenate(arrays))
        weights = np.array([1.0] * self.real + [self.examples] * (len(updates) - self.real))[: len(updates)]
        mean = np.average(np.stack(clipped), axis=0, weights=weights).astype(np.float32)
        parts = [mean[span] for span in self.spans.values()]
        multiplier = self.claim.sigma / self.claim.clip
        add_gaussian_noise_inplace(parts, compute_stdv(multiplier, self.claim.clip, len(updates)))
        return len(updates) * torch.from_numpy(np.concatenate(parts))


@dataclass(eq=False)
class FlowerLocalMod(ClientMechanism):
    """LocalDpMod: a client's update clipped, with noise by the classical formula."""

    claim: Claim
    spans: Mapping[str, slice]
    alone: bool = True

    def release(self, updates: Tensor, number: int) -> Tensor:
        from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, compute_clip_model_update

        arrays = [updates[0][span].numpy().copy() for span in self.spans.values()]
        compute_clip_model_update(arrays, [np.zeros_like(array) for array in arrays], self.claim.clip)
        add_gaussian_noise_inplace(arrays, self.claim.sigma)
        return torch.from_numpy(np.concatenate(arrays))


@dataclass(eq=False)
class OpacusStep(RecordMechanism):
    """Opacus's wrapped model and optimizer, one step on all records."""

    claim: Claim
    seed: int

    def release(self, model: nn.Module, x: Tensor, y: Tensor, number: int) -> Mapping[str, Tensor]:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        wrapped = GradSampleModule(copy.deepcopy(model).train())
        optimizer = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=1.0),
            noise_multiplier=self.claim.sigma / self.claim.clip,
            max_grad_norm=self.claim.clip,
            expected_batch_size=len(x),
            generator=generator(self.seed, "opacus", number),
        )
        nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.pre_step()
        return {n.removeprefix("_module."): len(x) * p.grad.detach() for n, p in wrapped.named_parameters()}


def classical(epsilon: float, sensitivity: float) -> float:
    """The deviation that LocalDpMod takes."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


def audit_engines(seeds: Iterable[int]) -> None:
    from dp_audit import network, spans_of

    logging.disable(logging.INFO)
    small = spans_of(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    for seed in seeds:
        np.random.seed(seed)  # noqa: NPY002, Flower draws from this generator
        for epsilon in (4.0, 16.0):
            claim = Claim(STEPS**0.5 / mu_of(epsilon, DELTA), 1.0, STEPS, DELTA, epsilon=epsilon)
            rng = generator(seed, "opacus records")
            real = Examples(torch.rand(200, 784, generator=rng), torch.randint(10, (200,), generator=rng))
            say(
                seed, epsilon, audit_records("Opacus DPOptimizer", OpacusStep(claim, seed), claim, network(), real, rng)
            )
            claim = Claim(ROUNDS**0.5 / mu_of(epsilon, DELTA), 1.0, ROUNDS, DELTA, epsilon=epsilon)
            for examples in (1.0, 30.0):
                what = f"Flower server side, canaries of {examples:g} x the examples"
                mechanism = FlowerServerSide(claim, small, examples)
                say(seed, epsilon, audit_clients(what, mechanism, claim, generator(seed, "flower", int(examples))))
        for epsilon, sensitivity in ((0.9, 2.0), (8.0, 2.0), (64.0, 2.0), (8.0, 1.0)):
            claim = Claim(classical(epsilon, sensitivity), 1.0, 1, DELTA, True, epsilon)
            what = f"Flower LocalDpMod, clipping_norm 1, sensitivity {sensitivity:g}"
            say(seed, epsilon, audit_clients(what, FlowerLocalMod(claim, small), claim, generator(seed, "local")))


def say(seed: int, epsilon: float, result: DpResult) -> None:
    best = max((test for test in result.tests if "replay" not in test.name), key=lambda test: test.lower)
    found = f"estimate {best.estimate:.1f} ({best.name}); {result.verdict}"
    print(f"{result.what}, seed {seed}, claimed {epsilon:g}: {found}", flush=True)
