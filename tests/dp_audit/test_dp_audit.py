"""The audit of differential privacy: bounds hold, correct code is not accused, broken code is, and nothing passes."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from typer.testing import CliRunner

from fedspill.cli.main import app
from fedspill.dataset import Examples
from fedspill.dp_audit import Claim, ClientMechanism, DpResult, DpTest, RecordMechanism, audit_clients, audit_records
from fedspill.dp_audit.gaussian_privacy import epsilon_of, mu_of
from fedspill.dp_audit.lower_bounds import one_run_f_dp, separation, steinke
from fedspill.leaks.membership.passive.sample_layers import records_at_layers
from fedspill.seeds import generator

DELTA = 1e-5


@pytest.mark.parametrize("epsilon", [0.5, 1, 4, 16, 64])
def test_mu_and_epsilon_are_inverse_and_fit_the_definition(epsilon: float) -> None:
    mu = mu_of(epsilon, DELTA)
    assert epsilon_of(mu, DELTA) == pytest.approx(epsilon, rel=1e-6)
    delta = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert delta == pytest.approx(DELTA, rel=1e-3)


def test_the_bound_on_the_separation_holds_as_often_as_it_says() -> None:
    """At 95 %, 400 draws of 12 scores a side: more than 36 failures would come once in 500 times."""
    rng, failed = np.random.default_rng(0), 0
    for _ in range(400):
        failed += separation(rng.normal(1, 1, 12), rng.normal(0, 1, 12), 0.95).low > 1
    assert failed <= 36


def test_one_run_bounds_do_not_exceed_the_truth_and_have_a_limit() -> None:
    rng = np.random.default_rng(1)
    for epsilon in (1.0, 4.0):
        mu = mu_of(epsilon, DELTA)
        inside, outside = rng.normal(mu, 1, 300), rng.normal(0, 1, 300)
        for bound in (steinke, one_run_f_dp):
            assert bound(inside, outside, DELTA, 0.95) < epsilon
    far = np.linspace(0, 1, 300)
    assert 3 < steinke(far + 10, far, DELTA, 0.95) < 6, "the cap of 600 canaries"
    assert steinke(far, far, DELTA, 0.95) == 0


@dataclass(eq=False)
class Little(ClientMechanism):
    """A server's noisy sum, right or wrong."""

    claim: Claim
    kind: str
    spans: Mapping[str, slice] = field(default_factory=lambda: {"weight": slice(0, 2000), "bias": slice(2000, 2040)})

    def release(self, updates: Tensor, number: int) -> Tensor:
        rng = generator(1, "noise", 0 if self.kind == "seeded" else number)
        clip = self.claim.clip
        noise = self.claim.sigma * torch.randn(updates.shape[1], generator=rng)
        if self.kind == "no noise":
            noise = torch.zeros_like(noise)
        if self.kind == "weights only":
            noise[self.spans["bias"]] = 0
        if self.kind != "no clipping":
            updates = updates * (clip / updates.norm(dim=1, keepdim=True).clamp_min(clip))
        return updates.sum(0) + noise


def audited(kind: str, epsilon: float = 4.0) -> DpResult:
    claim = Claim(8**0.5 / mu_of(epsilon, DELTA), 1.0, 8, DELTA)
    assert claim.claimed == pytest.approx(epsilon, rel=1e-5)
    return audit_clients(kind, Little(claim, kind), claim, generator(3, kind))


@pytest.mark.parametrize("epsilon", [4.0, 64.0])
def test_correct_code_is_not_accused_and_its_epsilon_is_estimated(epsilon: float) -> None:
    result = audited("correct", epsilon)
    assert not result.violated
    assert result.verdict.startswith("no violation above")
    (pooled,) = [test for test in result.tests if test.name == "client canaries at 1 x the clip, pooled"]
    assert pooled.estimate == pytest.approx(epsilon, rel=0.3)


@pytest.mark.parametrize(
    ("kind", "found_by"),
    [
        ("no noise", "client canaries at 1 x the clip, pooled"),
        ("no clipping", "client canaries at 30 x the clip, pooled"),
        ("seeded", "client canaries at 1 x the clip, within each"),
        ("weights only", "client canaries in bias"),
    ],
)
def test_broken_code_is_caught_by_the_test_that_is_for_it(kind: str, found_by: str) -> None:
    result = audited(kind)
    assert result.violated
    assert result.verdict.startswith("violated: epsilon is at least")
    accusing = [test.name for test in result.tests if test.violates(result.claimed)]
    assert found_by in accusing


def test_replay_measures_the_noise_of_each_tensor() -> None:
    result = audited("weights only")
    lower = {test.name.split()[3]: test.lower for test in result.tests if test.name.startswith("replay")}
    assert lower["bias"] > 1000
    assert lower["weight"] < 4


def test_there_is_no_verdict_that_a_claim_holds() -> None:
    test = DpTest(name="t", estimate=0, lower=0, confidence=0.999, assumption="none", largest=4.2)
    result = DpResult(what="w", claimed=8, delta=DELTA, tests=(test,))
    assert result.verdict == "no violation above 0 found; these tests could have shown up to 4.2"
    assert "pass" not in result.verdict


@dataclass(eq=False)
class Step(RecordMechanism):
    claim: Claim
    noise: float = 1.0

    def release(self, model: nn.Module, x: Tensor, y: Tensor, number: int) -> Mapping[str, Tensor]:
        layers, rng = records_at_layers(model, x, y), generator(2, "step", number)
        norms = torch.stack([layer.squares() for layer in layers]).sum(0).sqrt()
        weights = self.claim.clip / norms.clamp_min(self.claim.clip)
        total = {}
        for layer in layers:
            matrix = (layer.signals * weights[:, None]).T @ layer.inputs
            total[layer.name.weight], total[str(layer.name.bias)] = matrix[:, :-1], matrix[:, -1]
        sigma = self.noise * self.claim.sigma
        return {name: t + sigma * torch.randn(t.shape, generator=rng).double() for name, t in total.items()}


@pytest.mark.parametrize(("noise", "violated"), [(1.0, False), (0.1, True)])
def test_record_canaries_tell_whether_a_step_has_its_noise(noise: float, violated: bool) -> None:
    rng = generator(4, "records")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 24), nn.ReLU(), nn.Linear(24, 10))
    real = Examples(torch.rand(50, 100, generator=rng), torch.randint(10, (50,), generator=rng))
    claim = Claim(10**0.5 / mu_of(8, DELTA), 1.0, 10, DELTA)
    result = audit_records("step", Step(claim, noise), claim, model, real, rng)
    assert result.violated is violated
    assert [test.assumption for test in result.tests][-1] == "none"
    assert result.tests[-1].largest < 8, "without assumptions so few canaries cannot refute a claim of 8"


def run_dp(tmp_path: Path, defense: str) -> tuple[int, dict[str, object], str]:
    plan = tmp_path / "plan.toml"
    plan.write_text(f'[federation]\nclients = 4\nrounds = 3\n[model]\nname = "mlp"\nwidths = [16]\n{defense}')
    done = CliRunner().invoke(app, ["dp", str(plan), "--json", str(tmp_path / "dp.json")])
    return done.exit_code, json.loads((tmp_path / "dp.json").read_text()), done.output


def test_the_command_tests_what_leaves_a_client(tmp_path: Path) -> None:
    code, found, said = run_dp(tmp_path, '[[defenses]]\nname = "clip-noise"\nsigma = 1.0\n')
    assert code == 0
    (result,) = found["results"]  # type: ignore[misc]
    assert result["violated"] is False
    assert "no violation above" in said
    assert "passed" not in said


def test_the_command_tests_the_steps_of_training(tmp_path: Path) -> None:
    code, found, said = run_dp(tmp_path, '[[defenses]]\nname = "dp-sgd"\n')
    assert code == 0
    (result,) = found["results"]  # type: ignore[misc]
    assert next(test["name"] for test in result["tests"]) == "record canaries, decoded"
    assert "accountant" in said


def test_the_command_ends_with_findings_where_a_claim_is_violated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedspill.defenses.clip_noise import ClipNoise

    monkeypatch.setattr(ClipNoise, "clipped_and_noised", lambda self, tensors, rng: dict(tensors))
    code, _, said = run_dp(tmp_path, '[[defenses]]\nname = "clip-noise"\nsigma = 1.0\n')
    assert code == 1
    assert "violated: epsilon is at least" in said


def test_a_plan_without_a_claim_says_so(tmp_path: Path) -> None:
    code, found, said = run_dp(tmp_path, "")
    assert (code, found["results"]) == (0, [])
    assert "No defense of this plan claims" in said
