"""What every attack must keep: it is a function of view and seed, refuses what it cannot do, and survives anything.

A new attack is run here without being mentioned. If it fails: read what it needs from `view` only, declare it in
`needs`, draw from `rng` only, and raise NotApplicable with a reason for what it cannot read.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import text_kit
import torch
import vertical_kit
from spine import CLASSES, attempt, fitting_adversary, knowledge, recorded
from torch import Tensor

from fedspill.attack import Attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import AttackFailed, FedspillError, NotApplicable, Unfit
from fedspill.guess import Guess
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.messages import SERVER, Message
from fedspill.registry import entries, load, make
from fedspill.threat import (
    ADVERSARIES,
    ALTERING,
    KNOWLEDGE,
    POWERS,
    Channel,
    FederationKind,
    ThreatModel,
    made_for,
    stands_in,
)
from fedspill.trace import MemoryTrace, Origin, Trace, View
from fedspill.trace_folder import FolderRecorder, FolderTrace

NAMES = [entry.name for entry in entries("attacks")]
QUICK: dict[str, dict[str, Any]] = {  # options without which a test takes minutes
    "scale-mia": {"steps": 20},
    "cafe-paper": {"iterations": 3},
    "cone": {"steps": 3, "uses": 2},
    "model-completion": {"steps": 3},
    "active-completion": {"steps": 3},
    "generative-regression": {"steps": 3, "widths": [8]},
    "unsplit": {"turns": 1, "input_steps": 3, "weight_steps": 3, "most": 4},
    "tag": {"origins": 2, "steps": 2, "labels_from": ""},
    "lamp": {"origins": 2, "starts": 1, "turns": 1, "steps": 1, "reorderings": 1, "labels_from": ""},
    "tableak": {"starts": 2, "steps": 3, "origins": 8},
}
# Long, and much like others that always run: the first reads as `labels`, the second searches as `inverting-gradients`.
SELDOM = {"composition-by-counts", "tableak"}
every_attack = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SELDOM)) for name in NAMES]
)


@dataclass(frozen=True, eq=False)
class Home:
    """The kind of federation that an attack is made for."""

    trace: MemoryTrace
    knowledge: Callable[[], dict[str, Any]]
    roles: dict[str, tuple[str, str]]  # who sends a kind of message to whom, where a horizontal federation has others
    party: str  # one that a test may make hostile

    kind: FederationKind

    def adversaries(self) -> list[ThreatModel]:
        """Those who stand in such a federation."""
        return [threat for threat in ADVERSARIES.values() if stands_in(threat) == self.kind]

    def view(self, threat: ThreatModel, trace: MemoryTrace | None = None) -> View:
        return (trace or self.trace).view(threat, me=threat.me, knowledge=self.knowledge())

    def least_adversary(self, attack: Attack) -> ThreatModel:
        least = fitting_adversary(attack)
        if self.kind == "private towers":  # who sees which tower is no matter of roles alone
            named = next(threat for threat in self.adversaries() if not threat.missing(attack.needs))
            kinds = {channel.kind for channel in least.sees}
            return dataclasses.replace(
                least, sees=frozenset(channel for channel in named.sees if channel.kind in kinds), me=named.me
            )
        channels = [Channel(c.kind, *self.roles.get(c.kind, (c.sender, c.receiver))) for c in least.sees]
        return dataclasses.replace(least, sees=frozenset(channels))


@cache
def horizontal() -> Home:
    return Home(recorded()[0], knowledge, {}, "client:1", "horizontal")


@cache
def vertical() -> Home:
    """Two samples a round of eight, so that every sample can be told from the others."""
    trace, _, _ = vertical_kit.federate(vertical_kit.plain(), vertical_kit.digits(8), batch=2, rounds=10)
    roles = {"model": ("server", "party"), "gradient": ("party", "server"), "embedding": ("party", "server")}
    return Home(trace, lambda: {**knowledge(), "architecture": vertical_kit.plain}, roles, "party:1", "shared towers")


@cache
def private(name: str) -> Home:
    """The attack's own control, made small: it must find its leak there, so it can be run there."""
    attack = load("attacks", name)
    control = dict(attack.control or attack.leak.control)
    control["federation"] = {**control["federation"], "samples": 40, "rounds": 8}
    if control["federation"].get("predictions"):
        control["federation"]["predictions"] = 20
    control["training"] = {**control["training"], "batch_size": 10}
    control["adversary_data"] = {**control["adversary_data"], "known_labels": 2, "pairs": 6}
    deployment = Deployment.of(check_plan({"seed": 1, **control}, "a small control"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, altering=attack.needs.does & ALTERING).run()
    return Home(trace, deployment.knowledge, {}, SERVER, "private towers")


@cache
def text(objective: str) -> Home:
    """Clients who write: a language model for attacks on what was predicted, else a classifier."""
    return Home(text_kit.recorded(objective), lambda: text_kit.knowledge(objective), {}, "client:1", "horizontal")


def made(name: str) -> Attack:
    attack: Attack = make("attacks", name, QUICK.get(name, {}))
    return attack


def home_of(name: str) -> Home:
    """Only a vertical federation sends batch indices; words are only where clients write."""
    if load("attacks", name).leak.name == "words":
        return text("next" if name == "next-words" else "class")
    kind = made_for(load("attacks", name).needs)
    if kind == "private towers":
        return private(name)
    return vertical() if kind == "shared towers" else horizontal()


def same(first: object, second: object) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.equal(first, second)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [item.name for item in dataclasses.fields(first)]
        return type(first) is type(second) and all(same(getattr(first, n), getattr(second, n)) for n in names)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def assert_sound(guess: Guess, trace: Trace) -> None:
    guess.check()
    sent = {Origin(message.round, message.sender): message for message in trace.messages()}
    assert set(guess.of) <= set(sent)
    if isinstance(guess, LabelCounts):
        assert guess.counts.shape[1] == CLASSES
        for origin, counts in zip(guess.of, guess.counts, strict=True):
            assert int(counts.sum()) == sent[origin].info["examples"], "the counts add up to the samples"


def assert_sound_or_refused(attack: Attack, view: View, trace: Trace | None) -> None:
    """A guess that can be scored, or a reason why there is none: not a failure, an endless run or a raw exception."""
    result = attempt(lambda: attack(view, seed=1, limit=20))
    if isinstance(result, FedspillError):
        assert result.__cause__ is None, f"a raw {result.__cause__!r} inside the attack"
        assert not isinstance(result, AttackFailed), result
    elif trace is not None:
        assert_sound(result, trace)


@every_attack
def test_it_runs_for_the_least_adversary_that_it_asks_for(name: str) -> None:
    attack, home = made(name), home_of(name)
    guess = attack(home.view(home.least_adversary(attack)), seed=1)
    assert_sound(guess, home.trace)
    assert len(guess.of) > 0


@every_attack
@pytest.mark.parametrize("threat", ADVERSARIES.values(), ids=lambda threat: threat.name)
def test_a_named_adversary_can_run_it_or_is_told_all_that_it_lacks(name: str, threat: ThreatModel) -> None:
    attack, home = made(name), home_of(name)
    lacks = threat.missing(attack.needs)
    if lacks:
        with pytest.raises(Unfit) as refused:
            attack(home.view(threat), seed=1)
        assert f"{name} cannot be run by {threat.name}" in str(refused.value)
        assert all(phrase in str(refused.value) for phrase in lacks)
    elif threat in home.adversaries():
        assert_sound(attack(home.view(threat), seed=1), home.trace)
    else:  # it could, elsewhere: nobody here speaks to it
        assert_sound_or_refused(attack, home.view(threat), home.trace)


@every_attack
def test_it_is_refused_when_any_single_need_is_taken_away(name: str) -> None:
    attack, home = made(name), home_of(name)
    least = home.least_adversary(attack)
    assert least.missing(attack.needs) == []
    for word in attack.needs.knows:
        with pytest.raises(Unfit, match=rf"\({word}\)"):
            attack(home.view(dataclasses.replace(least, knows=least.knows - {word})), seed=1)
        assert KNOWLEDGE[word]
    for word in attack.needs.does:
        with pytest.raises(Unfit, match=POWERS[word]):
            attack(home.view(dataclasses.replace(least, does=least.does - {word})), seed=1)
    for group in attack.needs.sees:
        seen = frozenset(channel for channel in least.sees if channel.kind not in group)
        with pytest.raises(Unfit, match="to see"):
            attack(home.view(dataclasses.replace(least, sees=seen)), seed=1)


@every_attack
def test_it_takes_no_more_than_it_asks_for(name: str) -> None:
    """Knowledge beyond `needs` may sharpen the guess; without it the attack must still run or say what it lacks."""
    attack, home = made(name), home_of(name)
    bare = {word: value for word, value in home.knowledge().items() if word in attack.needs.knows}
    least = home.least_adversary(attack)
    guess = attack(home.trace.view(least, me=least.me, knowledge=bare), seed=1)
    assert_sound(guess, home.trace)


@every_attack
def test_the_same_seed_gives_the_same_guess_whatever_the_global_generator_did(name: str) -> None:
    attack, home = made(name), home_of(name)
    for threat in (home.least_adversary(attack), *home.adversaries()):
        if threat.missing(attack.needs):
            continue
        torch.manual_seed(0)
        first = attack(home.view(threat), seed=5)
        torch.manual_seed(1)
        torch.rand(7)
        assert same(first, attack(home.view(threat), seed=5))


@every_attack
def test_it_leaves_the_global_random_state_and_the_threads_alone(name: str) -> None:
    attack, home = made(name), home_of(name)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    attack(home.view(home.least_adversary(attack)), seed=5)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def written(trace: MemoryTrace, folder: Path) -> FolderTrace:
    """The same recording in a folder."""
    recorder = FolderRecorder(folder, trace.protocol)
    for number in sorted({message.round for message in trace.messages()}):
        for message in trace.messages(round=number):
            recorder.say(message)
        recorder.end_round(number)
    recorder.finish()
    return FolderTrace(folder)


@every_attack
def test_it_says_of_a_folder_what_it_says_of_memory(name: str, tmp_path: Path) -> None:
    attack, home = made(name), home_of(name)
    threat, folder = home.least_adversary(attack), written(home.trace, tmp_path / "trace")
    found, again = (
        attack(trace.view(threat, me=threat.me, knowledge=home.knowledge()), seed=5) for trace in (home.trace, folder)
    )
    assert same(found, again)


def tensors_in(thing: object) -> list[Tensor]:
    """Every tensor among pieces of knowledge: alone, in examples, in targets."""
    if isinstance(thing, Tensor):
        return [thing]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [t for item in dataclasses.fields(thing) for t in tensors_in(getattr(thing, item.name))]
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


@every_attack
def test_it_leaves_what_it_was_given_and_what_was_recorded_alone(name: str) -> None:
    attack, home = made(name), home_of(name)
    given, recording = home.knowledge(), list(home.trace.messages())
    kept = [tensor.clone() for tensor in tensors_in(given)]
    assert kept, "the test looks at something"
    least = home.least_adversary(attack)
    attack(home.trace.view(least, me=least.me, knowledge=given), seed=5)
    assert all(map(torch.equal, tensors_in(given), kept))
    for before, after in zip(recording, home.trace.messages(), strict=True):
        assert same(list(before.tensors.items()), list(after.tensors.items()))


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
    "bias only": lambda m: changed(m, lambda ts: {name: t for name, t in ts.items() if name == "head.bias"}),
    "renamed": lambda m: changed(m, lambda ts: {f"x{name}": tensor for name, tensor in ts.items()}),
    "no examples": lambda m: changed(m, dict, examples=0),
    "minus examples": lambda m: changed(m, dict, examples=-5),
    "one example": lambda m: changed(m, dict, examples=1),
    "endless examples": lambda m: changed(m, dict, examples=10**15),
    "nan examples": lambda m: changed(m, dict, examples=float("nan")),
    "worded examples": lambda m: changed(m, dict, examples="many"),
    "endless clients": lambda m: changed(m, dict, clients=10**15),
}
READ = ("update", "gradient", "aggregate", "returned", "embedding", "prediction")


BETWEEN_PARTIES = [name for name in NAMES if made_for(load("attacks", name).needs) == "private towers"]


@pytest.mark.parametrize("name", BETWEEN_PARTIES)
@pytest.mark.parametrize("kind", ["batch", "model"])
def test_hostile_batches_and_towers_give_a_sound_guess_or_a_refusal(name: str, kind: str) -> None:
    """Which samples a round uses, and towers that are handed over, come from another party too."""
    attack, home = made(name), home_of(name)
    for change in HOSTILE.values():
        messages = [change(m) if m.kind == kind and _can_be(change, m) else m for m in home.trace.messages()]
        trace = MemoryTrace.of(messages, home.trace.protocol)
        assert_sound_or_refused(attack, home.view(home.least_adversary(attack), trace), trace)


def _can_be(change: Callable[[Message], Message], message: Message) -> bool:
    """Whether the tensors of this message can be changed so: whole numbers hold no NaN."""
    try:
        change(message)
    except RuntimeError:
        return False
    return True


def tampered(honest: MemoryTrace, change: Callable[[Message], Message], only: Origin | None = None) -> MemoryTrace:
    messages = [
        change(m) if m.kind in READ and only in (None, Origin(m.round, m.sender)) else m for m in honest.messages()
    ]
    return MemoryTrace.of(messages, honest.protocol)


# Every attack meets every fifth kind of hostile message, every kind a fifth of the attacks; `make test-all` has all.
every_attack_and_hostile_message = pytest.mark.parametrize(
    ("name", "what"),
    [
        pytest.param(name, what, marks=[pytest.mark.slow] * ((number + place) % 10 != 0 or name in SELDOM))
        for number, name in enumerate(NAMES)
        for place, what in enumerate(HOSTILE)
    ],
)


@every_attack_and_hostile_message
def test_hostile_updates_give_a_sound_guess_or_a_refusal(name: str, what: str) -> None:
    attack, home = made(name), home_of(name)
    trace = tampered(home.trace, HOSTILE[what])
    for threat in (home.least_adversary(attack), ADVERSARIES["curious-server"], ADVERSARIES["curious-server-secagg"]):
        if threat.missing(attack.needs):
            continue
        assert_sound_or_refused(attack, home.view(threat, trace), trace)


@cache
def honest_guess(name: str) -> Guess:
    attack, home = made(name), home_of(name)
    return attack(home.view(home.least_adversary(attack)), seed=1)


@every_attack_and_hostile_message
def test_one_hostile_client_does_not_hide_what_the_others_leak(name: str, what: str) -> None:
    attack, home = made(name), home_of(name)
    bad, threat = Origin(0, home.party), home.least_adversary(attack)
    honest = honest_guess(name)
    guess = attack(home.view(threat, tampered(home.trace, HOSTILE[what], bad)), seed=1, limit=20)
    assert set(honest.of) - {bad} <= set(guess.of)
    if bad in honest.of and bad not in guess.of:  # an attack on models or sums speaks of no single client
        assert any(f"{bad.sender} in round 0 was left out" in note for note in guess.notes)
    if attack.paper == "003" and isinstance(guess, LabelCounts):
        assert isinstance(honest, LabelCounts)
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
    attack, home = made(name), home_of(name)
    trace = MemoryTrace.of(home.trace.messages(), {**home.trace.protocol, **BAD_SETTINGS[what]})
    assert_sound_or_refused(attack, home.view(home.least_adversary(attack), trace), None)


@every_attack
def test_a_trace_without_the_messages_it_reads_is_not_applicable(name: str) -> None:
    attack, home = made(name), home_of(name)
    with pytest.raises(NotApplicable):
        attack(home.view(home.least_adversary(attack), MemoryTrace({**home.trace.protocol})), seed=1)


@every_attack
def test_a_trace_without_models_is_read_or_refused(name: str) -> None:
    attack, home = made(name), home_of(name)
    trace = MemoryTrace.of((m for m in home.trace.messages() if m.kind != "model"), home.trace.protocol)
    for threat in home.adversaries():
        if not threat.missing(attack.needs):
            assert_sound_or_refused(attack, home.view(threat, trace), trace)
