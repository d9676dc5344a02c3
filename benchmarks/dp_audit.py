"""The audit of differential privacy on correct and broken code: estimates, bounds, accusations and CPU seconds.

    python benchmarks/dp_audit.py clients --claims 1 4 16 64      correct client-level mechanisms
    python benchmarks/dp_audit.py records --claims 1 4 16 64      correct DP-SGD
    python benchmarks/dp_audit.py broken --claims 1 4 16 64       ten broken implementations
    python benchmarks/dp_audit.py sound --seeds 40                how often correct code is accused
    python benchmarks/dp_audit.py engines                         Opacus, Flower's functions, NVFlare's filters

delta 1e-5. Clients: 784 -> 32 -> 10, 25,450 parameters, 8 rounds, 20 real clients. Records: 200 made-up images, 600
canaries, 10 full steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.dp_audit import Claim, ClientMechanism, DpResult, RecordMechanism, audit_clients, audit_records
from fedspill.dp_audit.gaussian_privacy import mu_of
from fedspill.leaks.membership.passive.sample_layers import records_at_layers
from fedspill.seeds import generator

ROUNDS, STEPS, DELTA = 8, 10, 1e-5


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def spans_of(model: nn.Module) -> dict[str, slice]:
    spans, start = {}, 0
    for name, parameter in model.named_parameters():
        spans[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return spans


def clipped(updates: Tensor, clip: float) -> Tensor:
    return updates * (clip / updates.norm(dim=-1, keepdim=True).clamp_min(clip))


@dataclass(eq=False)
class ServerNoise(ClientMechanism):
    """Clipped updates, summed, with noise, as `kind` gets it right or wrong."""

    claim: Claim
    kind: str
    seed: int
    spans: Mapping[str, slice] = field(default_factory=lambda: spans_of(network()))

    def release(self, updates: Tensor, number: int) -> Tensor:
        rng = generator(self.seed, "server noise", 0 if self.kind == "seeded" else number)
        clip, sigma, size = self.claim.clip, self.claim.sigma, updates.shape[1]
        if self.kind == "noise before clipping":
            noise = sigma / len(updates) ** 0.5 * torch.randn(updates.shape, generator=rng)
            return clipped(updates + noise, clip).sum(0)
        if self.kind == "noise reused across clients":  # each client's share, all from one seed, meant to add up
            share = sigma / len(updates) ** 0.5 * torch.randn(size, generator=rng)
            share[: size // 2] = 0  # and half of them turned around by the protocol: they cancel
            return clipped(updates, clip).sum(0) + share
        noise = torch.randn(size, generator=rng)
        if self.kind == "clip per layer":
            parts = torch.cat([clipped(updates[:, span], clip) for span in self.spans.values()], 1)
            return parts.sum(0) + sigma * noise
        if self.kind == "no clipping":
            return updates.sum(0) + sigma * noise
        if self.kind == "clipping after aggregation":
            return len(updates) * clipped(updates.mean(0), clip) + sigma * noise
        total = clipped(updates, clip).sum(0)
        if self.kind == "no noise":
            return total
        if self.kind == "noise divided twice":
            return total + sigma * noise / len(updates)
        if self.kind == "weights only":
            for name, span in self.spans.items():
                if "bias" in name:
                    noise[span] = 0
        if self.kind == "float16 underflow":  # noise of the mean, scaled to gradients of 1e-6, in half precision
            scale = 1e-8 / sigma
            return total + (sigma * scale * noise).half().float() / scale
        return total + sigma * noise


BROKEN = (
    "no noise",
    "noise divided twice",
    "no clipping",
    "clip per layer",
    "noise before clipping",
    "seeded",
    "weights only",
    "noise reused across clients",
    "clipping after aggregation",
    "float16 underflow",
    "wrong sampling rate claimed",
)


@dataclass(eq=False)
class DpSgdStep(RecordMechanism):
    """Clipped gradients of a dense network, summed, with noise."""

    claim: Claim
    kind: str
    seed: int

    def release(self, model: nn.Module, x: Tensor, y: Tensor, number: int) -> Mapping[str, Tensor]:
        layers = records_at_layers(model, x, y)
        norms = torch.stack([layer.squares() for layer in layers]).sum(0).sqrt()
        weights = self.claim.clip / norms.clamp_min(self.claim.clip)
        rng = generator(self.seed, "dp-sgd", number)
        total = {}
        for layer in layers:
            matrix = (layer.signals * weights[:, None]).T @ layer.inputs
            total[layer.name.weight], total[layer.name.bias or ""] = matrix[:, :-1], matrix[:, -1]
        if self.kind == "no noise":
            return total
        return {n: t + self.claim.sigma * torch.randn(t.shape, generator=rng).double() for n, t in total.items()}


def client_claim(epsilon: float) -> Claim:
    return Claim(ROUNDS**0.5 / mu_of(epsilon, DELTA), 1.0, ROUNDS, DELTA, epsilon=epsilon)


def record_claim(epsilon: float) -> Claim:
    return Claim(STEPS**0.5 / mu_of(epsilon, DELTA), 1.0, STEPS, DELTA, epsilon=epsilon)


def clients(epsilon: float, kind: str, seed: int) -> DpResult:
    claim = client_claim(epsilon)
    return audit_clients(kind, ServerNoise(claim, kind, seed), claim, generator(seed, "canaries"))


def records(epsilon: float, kind: str, seed: int) -> DpResult:
    claim, rng = record_claim(epsilon), generator(seed, "records")
    real = Examples(torch.rand(200, 784, generator=rng), torch.randint(10, (200,), generator=rng))
    return audit_records(kind, DpSgdStep(claim, kind, seed), claim, network(), real, rng)


def shown(result: DpResult, epsilon: float) -> str:
    tests = "; ".join(
        f"{t.name} {t.estimate:.1f}/{t.lower:.1f}{'!' if t.violates(epsilon) else ''}" for t in result.tests
    )
    return f"{'VIOLATED' if result.violated else 'no violation'} | {tests}"


def timed(action: Callable[[], DpResult]) -> tuple[DpResult, float]:
    began = time.process_time()
    return action(), time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["clients", "records", "broken", "sound", "engines"])
    parser.add_argument("--claims", type=float, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=8000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(asked.first, asked.first + asked.seeds)
    if asked.what == "engines":
        from dp_engines import audit_engines

        audit_engines(seeds)
        return
    accused = runs = 0
    for epsilon in asked.claims:
        for kind in BROKEN if asked.what == "broken" else ("correct",):
            for seed in seeds:
                for audit in {"records": (records,), "sound": (clients, records)}.get(asked.what, (clients,)):
                    result, seconds = timed(lambda a=audit, e=epsilon, k=kind, s=seed: a(e, k, s))  # type: ignore[misc]
                    accused, runs = accused + result.violated, runs + 1
                    line = f"{audit.__name__} claim {epsilon:g} seed {seed} {kind}: {shown(result, epsilon)}"
                    print(f"{line} | {seconds:.1f} s", flush=True)
    print(f"violations said in {accused} of {runs} runs")


if __name__ == "__main__":
    main()
