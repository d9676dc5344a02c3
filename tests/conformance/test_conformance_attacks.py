"""What every attack must keep: it is a function of view and seed, refuses what it cannot do, and survives anything.

A new attack is run here without being mentioned. If it fails: read what it needs from `view` only, declare it in
`needs`, draw from `rng` only, and raise NotApplicable with a reason for what it cannot read.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from spine import CLASSES, attempt, fitting_adversary, knowledge, recorded
from torch import Tensor

from fedspill.attack import Attack
from fedspill.errors import AttackFailed, FedspillError, NotApplicable, Unfit
from fedspill.guess import Guess
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.messages import Message
from fedspill.registry import entries, load, make
from fedspill.threat import ADVERSARIES, KNOWLEDGE, POWERS, ThreatModel
from fedspill.trace import MemoryTrace, Origin, View

# Attacks on vertical federations read batch indices, which horizontal ones do not send: tests/attacks/test_cafe.py.
NAMES = [
    entry.name
    for entry in entries("attacks")
    if not any("batch" in group for group in load("attacks", entry.name).needs.sees)
]
HORIZONTAL = [threat for name, threat in ADVERSARIES.items() if name != "vertical-server"]
every_attack = pytest.mark.parametrize("name", NAMES)


@cache
def federation_trace() -> MemoryTrace:
    return recorded()[0]


def view_of(trace: MemoryTrace, threat: ThreatModel) -> View:
    return trace.view(threat, me="client:0", knowledge=knowledge())


def same(first: object, second: object) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.equal(first, second)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [item.name for item in dataclasses.fields(first)]
        return type(first) is type(second) and all(same(getattr(first, n), getattr(second, n)) for n in names)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def assert_sound(guess: Guess, trace: MemoryTrace) -> None:
    guess.check()
    sent = {Origin(message.round, message.sender): message for message in trace.messages()}
    assert set(guess.of) <= set(sent)
    if isinstance(guess, LabelCounts):
        assert guess.counts.shape[1] == CLASSES
        for origin, counts in zip(guess.of, guess.counts, strict=True):
            assert int(counts.sum()) == sent[origin].info["examples"], "the counts add up to the samples"


def assert_sound_or_refused(attack: Attack, view: View, trace: MemoryTrace | None) -> None:
    """A guess that can be scored, or a reason why there is none: not a failure, an endless run or a raw exception."""
    result = attempt(lambda: attack(view, seed=1, limit=20))
    if isinstance(result, FedspillError):
        assert result.__cause__ is None, f"a raw {result.__cause__!r} inside the attack"
        assert not isinstance(result, AttackFailed), result
    elif trace is not None:
        assert_sound(result, trace)


@every_attack
def test_it_runs_for_the_least_adversary_that_it_asks_for(name: str) -> None:
    attack = make("attacks", name)
    guess = attack(view_of(federation_trace(), fitting_adversary(attack)), seed=1)
    assert_sound(guess, federation_trace())
    assert len(guess.of) > 0


@every_attack
@pytest.mark.parametrize("threat", HORIZONTAL, ids=lambda threat: threat.name)
def test_a_named_adversary_can_run_it_or_is_told_all_that_it_lacks(name: str, threat: ThreatModel) -> None:
    attack = make("attacks", name)
    lacks = threat.missing(attack.needs)
    if not lacks:
        assert_sound(attack(view_of(federation_trace(), threat), seed=1), federation_trace())
        return
    with pytest.raises(Unfit) as refused:
        attack(view_of(federation_trace(), threat), seed=1)
    assert f"{name} cannot be run by {threat.name}" in str(refused.value)
    assert all(phrase in str(refused.value) for phrase in lacks)


@every_attack
def test_it_is_refused_when_any_single_need_is_taken_away(name: str) -> None:
    attack = make("attacks", name)
    least = fitting_adversary(attack)
    assert least.missing(attack.needs) == []
    for word in attack.needs.knows:
        with pytest.raises(Unfit, match=rf"\({word}\)"):
            attack(view_of(federation_trace(), dataclasses.replace(least, knows=least.knows - {word})), seed=1)
        assert KNOWLEDGE[word]
    for word in attack.needs.does:
        with pytest.raises(Unfit, match=POWERS[word]):
            attack(view_of(federation_trace(), dataclasses.replace(least, does=least.does - {word})), seed=1)
    for group in attack.needs.sees:
        seen = frozenset(channel for channel in least.sees if channel.kind not in group)
        with pytest.raises(Unfit, match="to see"):
            attack(view_of(federation_trace(), dataclasses.replace(least, sees=seen)), seed=1)


@every_attack
def test_it_takes_no_more_than_it_asks_for(name: str) -> None:
    """Knowledge beyond `needs` may sharpen the guess; without it the attack must still run or say what it lacks."""
    attack = make("attacks", name)
    threat = fitting_adversary(attack)
    bare = {word: value for word, value in knowledge().items() if word in attack.needs.knows}
    guess = attack(federation_trace().view(threat, knowledge=bare), seed=1)
    assert_sound(guess, federation_trace())


@every_attack
def test_the_same_seed_gives_the_same_guess_whatever_the_global_generator_did(name: str) -> None:
    attack = make("attacks", name)
    for threat in (fitting_adversary(attack), *HORIZONTAL):
        if threat.missing(attack.needs):
            continue
        torch.manual_seed(0)
        first = attack(view_of(federation_trace(), threat), seed=5)
        torch.manual_seed(1)
        torch.rand(7)
        assert same(first, attack(view_of(federation_trace(), threat), seed=5))


@every_attack
def test_it_leaves_the_global_random_state_and_the_threads_alone(name: str) -> None:
    attack = make("attacks", name)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    attack(view_of(federation_trace(), fitting_adversary(attack)), seed=5)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


@every_attack
def test_it_runs_on_a_folder_as_in_memory_and_leaves_the_data_it_was_given_alone(name: str) -> None:
    attack = make("attacks", name)
    given = knowledge()
    kept = given["aux_data"].x.clone()
    attack(federation_trace().view(fitting_adversary(attack), knowledge=given), seed=5)
    assert torch.equal(given["aux_data"].x, kept)


def changed(message: Message, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], **info: object) -> Message:
    address = (message.round, message.sender, message.receiver, message.kind)
    return Message(*address, change(dict(message.tensors)), {**message.info, **info})  # type: ignore[arg-type]


def filled(value: float) -> Callable[[Message], Message]:
    return lambda m: changed(m, lambda ts: {name: torch.full_like(tensor, value) for name, tensor in ts.items()})


def each(change: Callable[[Tensor], Tensor]) -> Callable[[Message], Message]:
    return lambda m: changed(m, lambda ts: {name: change(tensor) for name, tensor in ts.items()})


def poked(tensor: Tensor, value: float) -> Tensor:
    tensor.view(-1)[0] = value
    return tensor


HOSTILE: dict[str, Callable[[Message], Message]] = {
    "nan": filled(torch.nan),
    "one nan": each(lambda t: poked(t, torch.nan)),
    "inf": filled(torch.inf),
    "one -inf": each(lambda t: poked(t, -torch.inf)),
    "zero": filled(0.0),
    "constant": filled(1.0),
    "huge": filled(3e38),
    "-huge": filled(-3e38),
    "one huge": each(lambda t: poked(t, 3e38)),
    "one -huge": each(lambda t: poked(t, -3e38)),
    "large": each(lambda t: t * 1e9),
    "subnormal": each(lambda t: t * 1e-42),
    "opposite": each(lambda t: -t),
    "all negative": each(lambda t: -t.abs() - 1),
    "all positive": each(lambda t: t.abs() + 1),
    "double huge": each(lambda t: torch.full_like(t, 1e308, dtype=torch.float64)),
    "half": each(lambda t: t.half()),
    "bfloat16": each(lambda t: t.bfloat16()),
    "int8": each(lambda t: t.to(torch.int8)),
    "bool": each(lambda t: t > 0),
    "one element": each(lambda t: t.flatten()[:1]),
    "scalar": each(lambda t: t.sum()),
    "empty": each(lambda t: t[:0]),
    "no features": each(lambda t: t[..., :0]),
    "transposed": each(lambda t: t.T if t.ndim == 2 else t),
    "one row more": each(lambda t: torch.cat([t, t[:1]])),
    "three dimensions": each(lambda t: t[None, None]),
    "missing": lambda m: changed(m, lambda ts: {}),
    "no head": lambda m: changed(m, lambda ts: {name: t for name, t in ts.items() if not name.startswith("head")}),
    "no bias": lambda m: changed(m, lambda ts: {name: t for name, t in ts.items() if name != "head.bias"}),
    "bias only": lambda m: changed(m, lambda ts: {"head.bias": ts["head.bias"]}),
    "renamed": lambda m: changed(m, lambda ts: {f"x{name}": tensor for name, tensor in ts.items()}),
    "no examples": lambda m: changed(m, dict, examples=0),
    "minus examples": lambda m: changed(m, dict, examples=-5),
    "one example": lambda m: changed(m, dict, examples=1),
    "endless examples": lambda m: changed(m, dict, examples=10**15),
    "nan examples": lambda m: changed(m, dict, examples=float("nan")),
    "worded examples": lambda m: changed(m, dict, examples="many"),
    "endless clients": lambda m: changed(m, dict, clients=10**15),
}
READ = ("update", "gradient", "aggregate")


def tampered(change: Callable[[Message], Message], only: Origin | None = None) -> MemoryTrace:
    honest = federation_trace()
    messages = [
        change(m) if m.kind in READ and only in (None, Origin(m.round, m.sender)) else m for m in honest.messages()
    ]
    return MemoryTrace.of(messages, honest.protocol)


@every_attack
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_updates_give_a_sound_guess_or_a_refusal(name: str, what: str) -> None:
    attack, trace = make("attacks", name), tampered(HOSTILE[what])
    for threat in (fitting_adversary(attack), ADVERSARIES["curious-server"], ADVERSARIES["curious-server-secagg"]):
        if threat.missing(attack.needs):
            continue
        assert_sound_or_refused(attack, view_of(trace, threat), trace)


@every_attack
@pytest.mark.parametrize("what", HOSTILE)
def test_one_hostile_client_does_not_hide_what_the_others_leak(name: str, what: str) -> None:
    attack, bad = make("attacks", name), Origin(0, "client:1")
    threat = fitting_adversary(attack)
    honest = attack(view_of(federation_trace(), threat), seed=1)
    guess = attack(view_of(tampered(HOSTILE[what], bad), threat), seed=1, limit=20)
    assert set(honest.of) - {bad} <= set(guess.of)
    if bad in honest.of and bad not in guess.of:  # an attack on models or sums speaks of no single client
        assert any("client:1 in round 0 was left out" in note for note in guess.notes)
    if attack.paper == "003" and isinstance(guess, LabelCounts):
        found = dict(zip(guess.of, guess.counts.tolist(), strict=True))
        others = {o: c for o, c in zip(honest.of, honest.counts.tolist(), strict=True) if o != bad}
        assert {origin: found[origin] for origin in others} == others


BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "no lr": {"local_lr": 0.0},
    "negative lr": {"local_lr": -0.1},
    "nan lr": {"local_lr": float("nan")},
    "worded lr": {"local_lr": "small"},
    "tiny lr": {"local_lr": 1e-320},
    "no batch": {"batch_size": 0},
    "half a batch": {"batch_size": 1.5},
    "endless batch": {"batch_size": 10**18},
    "no epochs": {"local_epochs": 0},
    "no head": {"head_weight": None, "head_bias": None},
    "other head": {"head_weight": "fc1.weight", "head_bias": "fc1.bias"},
    "numbered head": {"head_weight": 5},
    "more classes": {"classes": CLASSES + 1},
    "worded classes": {"classes": "five"},
}


@every_attack
@pytest.mark.parametrize("what", BAD_SETTINGS)
def test_a_protocol_that_makes_no_sense_is_refused(name: str, what: str) -> None:
    attack = make("attacks", name)
    trace = MemoryTrace.of(federation_trace().messages(), {**federation_trace().protocol, **BAD_SETTINGS[what]})
    assert_sound_or_refused(attack, view_of(trace, fitting_adversary(attack)), None)


@every_attack
def test_a_trace_without_the_messages_it_reads_is_not_applicable(name: str) -> None:
    attack = make("attacks", name)
    with pytest.raises(NotApplicable):
        attack(view_of(MemoryTrace({**federation_trace().protocol}), fitting_adversary(attack)), seed=1)


@every_attack
def test_a_trace_without_models_is_read_or_refused(name: str) -> None:
    attack: Attack = make("attacks", name)
    trace = MemoryTrace.of((m for m in federation_trace().messages() if m.kind != "model"), federation_trace().protocol)
    assert_sound_or_refused(attack, view_of(trace, ADVERSARIES["curious-server"]), trace)
