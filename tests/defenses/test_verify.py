"""Is it really on: a defense is found out where it is configured and not applied, and left in peace where it is on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from audit_kit import answered, audit, tiny
from spine import recorded

from fedspill.audit.run_audit import Request
from fedspill.defense import Defense, SentMessages
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.defenses.frozen_head import FrozenHead
from fedspill.defenses.noise import lacking, unit_noise
from fedspill.defenses.quantization import Quantization
from fedspill.defenses.secure_aggregation import SecureAggregation
from fedspill.defenses.verify import check_defenses, first_messages
from fedspill.errors import UsageError
from fedspill.registry import entries, make
from fedspill.seeds import generator

VISIBLE: list[Defense] = [
    ClipNoise(clip=1.0, sigma=0.05),
    ClipNoise(clip=0.3, sigma=0.02, law="laplace"),
    Compression(drop=0.5),
    Quantization(type="int8"),
    Quantization(type="bf16"),
    Quantization(type="fp16"),
    FrozenHead(),
    FrozenHead(what="bias"),
    SecureAggregation(),
]


def named(defense: Defense) -> str:
    return repr(defense)


@pytest.mark.parametrize("defense", VISIBLE, ids=named)
def test_what_is_on_is_found_on(defense: Defense) -> None:
    trace, _ = recorded(defenses=(defense,))
    (check,) = check_defenses((defense,), trace)
    assert check.on is True, check.why


@pytest.mark.parametrize("defense", VISIBLE, ids=named)
def test_what_is_not_installed_is_found_out(defense: Defense) -> None:
    """The recording of a federation without the defense: a mod that nobody installed."""
    trace, _ = recorded()
    (check,) = check_defenses((defense,), trace)
    assert check.on is False
    assert "client:" in check.why


def test_noise_of_a_tenth_of_the_claim_is_found_out() -> None:
    trace, _ = recorded(defenses=(ClipNoise(clip=1.0, sigma=0.001),))
    (check,) = check_defenses((ClipNoise(clip=1.0, sigma=0.01),), trace)
    assert check.on is False


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("size", [12, 64, 240, 4000])
def test_noise_that_is_there_is_never_called_missing(law: Any, size: int) -> None:
    """2,000 tensors, where the claim may fail for one in 10^9; training may shift what it likes."""
    rng = generator(8, size)
    for _ in range(1000):
        noise = 0.03 * unit_noise(torch.zeros(size), law, "seeded", rng)
        assert lacking({"a": noise, "b": noise + 0.02}, 0.03, law) is None


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize(("size", "real"), [(100, 0.1), (1000, 0.6), (40_000, 0.9)])
def test_noise_that_is_too_small_is_found_out_sooner_in_larger_tensors(law: Any, size: int, real: float) -> None:
    tensors = {"a": real * unit_noise(torch.zeros(size), law, "seeded", generator(8, size))}
    found = lacking(tensors, 1.0, law)
    assert found is not None
    assert found == ("a", pytest.approx(real, rel=0.4))


def test_small_tensors_are_found_out_together() -> None:
    tensors = {str(index): torch.zeros(10) for index in range(10)}
    assert lacking(tensors, 1.0, "gaussian") == ("all tensors", 0.0)
    assert lacking({"0": torch.zeros(10)}, 1.0, "gaussian") is None


def test_an_update_that_is_not_clipped_is_found_out() -> None:
    trace, _ = recorded(defenses=(ClipNoise(clip=None, sigma=0.0001),))
    (check,) = check_defenses((ClipNoise(clip=0.01, sigma=0.0001),), trace)
    assert check.on is False
    assert "norm" in check.why


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clip-noise", {"sigma": 0.0}),
        ("dp-sgd", {"noise_multiplier": 0.0}),
        ("compression", {"drop": 0.0}),
        ("dropout", {"rate": 0.0}),
        ("label-smoothing", {"amount": 0.0}),
        ("larger-batches", {"factor": 1}),
        ("mixed-classes", {"level": 0.0}),
    ],
)
def test_a_strength_of_nothing_is_off(name: str, options: dict[str, Any]) -> None:
    assert make("defenses", name, options).verify(SentMessages(())).on is False


def test_a_defense_whose_marks_another_one_covers_is_not_accused() -> None:
    both = (Compression(drop=0.5), ClipNoise(sigma=0.05))
    trace, _ = recorded(defenses=both)
    first, second = check_defenses(both, trace)
    assert (first.on, second.on) == (None, True)
    assert "clip-noise" in first.why


def test_what_is_not_applied_itself_covers_nothing() -> None:
    trace, _ = recorded()
    checks = check_defenses((ClipNoise(sigma=0.1), Compression(drop=0.9)), trace)
    assert [check.on for check in checks] == [False, False]


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_noise_has_its_size_within_two_percent_of_a_million(law: Any, source: Any) -> None:
    """Standard errors at n = 10^6: 0.07 % (normal) and 0.11 % (Laplace), so 2 % fails by chance never."""
    noise = 0.3 * unit_noise(torch.zeros(1_000_000), law, source, generator(4))
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)
    assert abs(float(noise.mean())) < 5 * 0.3 / 1000
    kurtosis = float((noise**4).mean() / (noise**2).mean() ** 2)
    assert kurtosis == pytest.approx({"gaussian": 3.0, "laplace": 6.0}[law], rel=0.1)


def test_secure_noise_does_not_follow_the_seed() -> None:
    draws = [unit_noise(torch.zeros(8), "gaussian", "secure", generator(1)) for _ in range(2)]
    assert not torch.equal(*draws)


@pytest.mark.parametrize("entry", entries("defenses"), ids=lambda entry: entry.name)
def test_every_defense_answers_the_question(entry: Any) -> None:
    trace, _ = recorded()
    check = make("defenses", entry.name).verify(first_messages(trace))
    assert check.defense
    assert check.why
    assert check.on in (True, False, None)


def test_an_audit_says_what_is_configured_but_not_applied(tmp_path: Path) -> None:
    plan = tiny(defenses=[{"name": "dp-sgd", "noise_multiplier": 0.0}], attacks=["llbg"])
    result = audit(plan, tmp_path / "audit")
    (check,) = result["defense_checks"]
    assert (check["defense"], check["on"]) == ("dp-sgd", False)
    assert any("dp-sgd is configured but not applied" in event for event in result["events"])


def test_an_audit_of_a_recording_holds_it_against_the_plan(tmp_path: Path) -> None:
    """The plan names noise; whoever recorded had not installed it."""
    bare = tiny(attacks=["llbg"])
    audit(bare, tmp_path / "bare")
    (folder,) = (tmp_path / "bare" / "traces").iterdir()
    claimed = tiny(attacks=["llbg"], defenses=[{"name": "clip-noise", "sigma": 0.1}])
    for explicit in (True, False):  # whether the plan also says what data and model were recorded
        request = Request(claimed, tmp_path / f"audit-{explicit}", trace=folder, explicit_plan=explicit)
        result = answered(request)
        (check,) = result["defense_checks"]
        assert (check["defense"], check["on"]) == ("clip-noise", False)


def test_nothing_is_said_where_nothing_is_configured(tmp_path: Path) -> None:
    assert audit(tiny(attacks=["llbg"]), tmp_path / "audit")["defense_checks"] == []


@pytest.mark.parametrize("name", ["dp-sgd", "dropout", "mixed-classes", "secure-aggregation", "frozen-head"])
def test_a_mod_that_would_do_nothing_is_refused(name: str) -> None:
    flower = pytest.importorskip("fedspill.flower", reason="Flower is not installed: fedspill[flower]")
    with pytest.raises(UsageError, match=name):
        flower.mod(make("defenses", name))
    flower.mod(make("defenses", "clip-noise"))
