"""What defenses declare, one after the other; and that an attack knows a defense of others by what it declares."""

import math
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from spine import blobs, network, ragged_clients, recorded

from fedspill.defense import Defense, Rounding, WireEffect
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.dp_sgd import DpSgd
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import UsageError
from fedspill.leaks.labels import LabelCounts, Labels
from fedspill.observe.known_defenses import KnownDefenses
from fedspill.registry import load, make
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace

OUTSIDE = '''
"""A defense that somebody else wrote."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedspill import Defense
from fedspill.defense import WireEffect


@dataclass(frozen=True)
class Hiss(Defense):
    """Adds noise to an update, and says so."""

    name: ClassVar[str] = "hiss"
    title: ClassVar[str] = "Hiss on the line"

    loudness: float = 0.02
    says: bool = True

    def outgoing(self, message, rng):
        noisy = {name: t + self.loudness * torch.randn(t.shape, generator=rng) for name, t in message.tensors.items()}
        return replace(message, tensors=noisy)

    def effect(self):
        return WireEffect(update_noise=self.loudness) if self.says else WireEffect()
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name by which a plan or the command line speaks of that class."""
    (tmp_path / "somebody_elses_defense.py").write_text(OUTSIDE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "somebody_elses_defense:Hiss"


def told(defense: Defense, trace: MemoryTrace) -> tuple[LabelCounts, set[str]]:
    """What `labels` says who knows of that defense, and the knowledge it used."""
    known: dict[str, Any] = {"architecture": partial(network), "unlabelled_aux": blobs(40, seed=9).x}
    view = trace.view(CURIOUS_SERVER, knowledge={**known, "defense": (defense,)})
    guess = Labels()(view, seed=1)
    assert isinstance(guess, LabelCounts)
    return guess, view.used


def test_an_attack_reckons_with_a_defense_from_outside_as_with_one_of_ours(outside: str) -> None:
    ours, theirs = ClipNoise(clip=None, sigma=0.02), make("defenses", outside, {"loudness": 0.02})
    trace, _ = recorded(ragged_clients((40, 40, 40)), defenses=(theirs,))
    (expected, used), (found, also) = told(ours, trace), told(theirs, trace)
    assert torch.equal(found.counts, expected.counts)
    assert found.notes == expected.notes
    assert any("the defense is known and reckoned with: noise" in note for note in found.notes)
    assert "defense" in used & also


def test_an_attack_that_is_told_nothing_reckons_with_nothing(outside: str) -> None:
    loud, silent = (make("defenses", outside, {"loudness": 0.02, "says": says}) for says in (True, False))
    trace, _ = recorded(ragged_clients((40, 40, 40)), defenses=(loud,))
    (with_it, _), (without, used) = told(loud, trace), told(silent, trace)
    assert "defense" not in used
    assert not any("the defense is known" in note for note in without.notes)
    assert not torch.equal(with_it.counts, without.counts)


def test_a_defense_from_outside_is_used_and_known_by_its_name_in_a_plan(outside: str) -> None:
    plan = {
        "seed": 1, "federation": {"clients": 4, "rounds": 1}, "defenses": [{"name": outside, "loudness": 0.5}],
    }  # fmt: skip
    deployment = Deployment.of(check_plan(plan, "a test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace).run()
    (defense,) = deployment.knowledge()["defense"]
    assert KnownDefenses.of([defense], 16).effect == WireEffect(update_noise=0.5)
    spread = torch.cat([t.flatten() for m in trace.messages("update") for t in m.tensors.values()]).std()
    assert math.isclose(float(spread), 0.5, rel_tol=0.1)


def test_nothing_before_or_after_changes_an_effect() -> None:
    effect = WireEffect(
        sample_clip=1.0, sample_sum_noise=2.0, step_clip=3.0, step_noise=0.1, update_clip=4.0, update_noise=0.2,
        rescaled=True, dropped=0.3, last_rows_dropped=0.4, features_dropped=0.5, smoothed=0.6,
        rounding=Rounding("int8", of_largest=1 / 64), topped_up=0.7, no_last_bias=True, no_last_layer=True,
        only_order=True, returned_noise=True, returned_coarse=True, embedding_noise=0.8, labels_redrawn=0.9,
    )  # fmt: skip
    assert all(getattr(effect, item.name) != item.default for item in fields(effect)), "every number is tried"
    assert WireEffect().then(effect) == effect.then(WireEffect()) == effect


def test_noises_add_up_as_independent_ones_do_and_of_shares_the_larger_counts() -> None:
    both = WireEffect(update_noise=3.0, dropped=0.2, topped_up=1.0).then(WireEffect(update_noise=4.0, dropped=0.1))
    assert (both.update_noise, both.dropped, both.topped_up) == (5.0, 0.2, 1.0)
    assert WireEffect(update_clip=1.0).then(WireEffect(update_clip=2.0)).update_clip == 2.0
    assert WireEffect(sample_clip=1.0).then(WireEffect(sample_clip=2.0)).sample_clip == 1.0


def test_noise_on_a_sum_of_samples_is_noise_on_their_mean_to_who_knows_the_batch_size() -> None:
    defenses = (DpSgd(clip=2.0, noise_multiplier=1.5), ClipNoise(clip=1.0, sigma=0.4, per="step"))
    known = KnownDefenses.of(defenses, batch_size=10).effect
    assert known.step_noise == pytest.approx(math.hypot(2.0 * 1.5 / 10, 0.4))
    assert known.sample_sum_noise == 0
    assert known.scale_unknown


def test_clipping_alone_makes_the_scale_unknown() -> None:
    assert not WireEffect(update_noise=1.0, dropped=0.5).scale_unknown
    for name in ("sample_clip", "step_clip", "update_clip"):
        assert WireEffect(**{name: 1.0}).scale_unknown
    assert WireEffect(rescaled=True).scale_unknown


def test_a_defense_that_declares_something_else_is_named(outside: str) -> None:
    kind = load("defenses", outside)
    silent = type("Mute", (kind,), {"effect": lambda self: None, "name": "mute"})()
    with pytest.raises(UsageError, match="mute must declare a WireEffect"):
        KnownDefenses.of([silent], 16)


@pytest.mark.parametrize(
    "wrong",
    [{"update_clip": 0.0}, {"step_noise": -1.0}, {"update_noise": math.nan}, {"dropped": 1.5}, {"smoothed": -0.1}],
    ids=str,
)
def test_an_effect_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        WireEffect(**wrong)


def test_the_distance_between_neighbours_is_that_of_the_type() -> None:
    values = torch.tensor([1.0, -4.0, 0.25])
    for bits, type_ in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        rounding = make("defenses", "quantization", {"type": bits}).effect().rounding
        assert rounding.step(values).tolist() == pytest.approx((values.abs() * torch.finfo(type_).eps).tolist())
    grid = make("defenses", "quantization", {"type": "int8"}).effect().rounding
    assert grid.step(values).tolist() == [4 / 64] * 3
    assert grid.step(torch.zeros(0)).tolist() == []
