"""The one line from a recording to a score: view, attack, guess; only then the truth, metrics, measurements.

Whoever runs an attack (the command line, the audit, its controls, a notebook) calls `run_attack`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Literal, TypeAlias

import torch
from pydantic import BaseModel, ConfigDict, Field

from fedspill.attack import Attack
from fedspill.errors import FedspillError, NothingToGuess, NoTruth, NotScored
from fedspill.guess import Guess
from fedspill.intervals import CLIENTS, Proof, Scale
from fedspill.leak import Leak
from fedspill.metric import Measured, Metric, Score
from fedspill.placement import CPU
from fedspill.progress import UNWATCHED, Progress
from fedspill.reading import Reading
from fedspill.registry import entries, make
from fedspill.threat import ThreatModel
from fedspill.trace import Trace, Truth

# read: the attack answered, and nothing is known to hold the answer against.
Status: TypeAlias = Literal["ok", "read", "unscored", "errored", "skipped"]


class Measurement(BaseModel):
    """What one metric measured, origin by origin; see `Measured`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: list[float]
    chance: list[float]
    trials: list[int] | None
    clusters: list[int] | None = None
    within: str = CLIENTS
    scale: tuple[float, float, float | None] | None = None  # worst, perfect, failed
    proof: tuple[int, int, int] | None = None  # proven, total, refuted

    @staticmethod
    def of(measured: Measured) -> Measurement:
        return Measurement(
            values=[float(value) for value in measured.values],
            chance=[float(value) for value in measured.chance],
            trials=None if measured.trials is None else [int(value) for value in measured.trials],
            clusters=None if measured.clusters is None else [int(value) for value in measured.clusters],
            within=measured.within,
            scale=None if measured.scale is None else astuple(measured.scale),
            proof=None if measured.proof is None else astuple(measured.proof),
        )

    def measured(self) -> Measured:
        trials, clusters = (
            None if numbers is None else torch.tensor(numbers, dtype=torch.int64)
            for numbers in (self.trials, self.clusters)
        )
        values, chance = (torch.tensor(numbers, dtype=torch.float64) for numbers in (self.values, self.chance))
        scale = None if self.scale is None else Scale(*self.scale)
        proof = None if self.proof is None else Proof(*self.proof)
        return Measured(values, chance, trials, clusters, self.within, scale, proof)


class Outcome(BaseModel):
    """What one run of an attack came to; all but the guess itself can be written down."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    status: Status
    why: str = ""  # of one that is not scored
    metric: str = ""  # the headline
    measured: dict[str, Measurement] = Field(default_factory=dict)
    rounds: list[int] = Field(default_factory=list)  # of each origin
    senders: list[str] = Field(default_factory=list)  # of each origin
    notes: list[str] = Field(default_factory=list)
    used: list[str] = Field(default_factory=list)  # the knowledge that the attack asked for
    evidence: list[dict[str, Any]] = Field(default_factory=list)
    reading: Reading | None = None  # the guess in words and tables
    guess: Guess | None = Field(default=None, exclude=True, repr=False)
    scores: dict[str, Score] = Field(default_factory=dict, exclude=True)


def run_attack(
    attack: Attack,
    trace: Trace,
    threat: ThreatModel,
    *,
    knowledge: Mapping[str, Any] | None = None,
    seed: int,
    truth: Truth | None = None,
    metrics: Sequence[Metric[Any]] = (),
    limit: float | None = None,
    show_data: bool = False,
    progress: Progress = UNWATCHED,
    device: str = CPU,
) -> Outcome:
    """What `attack` by `threat` reads out of `trace`, held against the truth.

    `truth` is the recording's own unless given. `metrics` are scored beside those of the attack's leak. An attack that
    cannot run, or fails, raises; one whose guess cannot be held against the truth is unscored, never zero. Where the
    truth is not known, the outcome is what was read.
    """
    view = trace.view(threat, me=threat.me, knowledge=knowledge, progress=progress, device=device)
    guess = attack(view, seed=seed, limit=limit)
    truth = trace.truth() if truth is None else truth
    return score_guess(attack.leak, guess, truth, used=sorted(view.used), metrics=metrics, show_data=show_data)


def score_guess(
    leak: Leak[Any],
    guess: Guess,
    truth: Truth,
    *,
    used: Sequence[str] = (),
    metrics: Sequence[Metric[Any]] = (),
    show_data: bool = False,
) -> Outcome:
    """A guess held against the truth. No code of the attack is needed for it, so that none need be here."""
    headline = leak.headline
    measured: dict[str, Measurement] = {}
    scores: dict[str, Score] = {}
    notes = list(guess.notes)
    reading = leak.read(guess, private=show_data)
    for metric in (headline, *_details(leak, metrics, notes)):
        try:
            result = metric.measure(guess, truth)
        except NotScored as error:
            if metric is headline and isinstance(error, NoTruth):
                return _read(guess, reading, error, notes, used)
            if metric is headline:
                nothing = isinstance(error, NothingToGuess)
                return Outcome(status="skipped" if nothing else "unscored", why=error.problem, guess=guess)
            continue  # the headline stands without it
        if not bool(result.values.isfinite().all() and result.chance.isfinite().all()):
            return Outcome(status="unscored", why=f"{metric.name}: a value is not finite", guess=guess)
        measured[metric.name] = Measurement.of(result)
        scores[metric.name] = metric.summarise(result)
    return Outcome(
        status="ok",
        metric=headline.name,
        measured=measured,
        rounds=[origin.round for origin in guess.of],
        senders=[origin.sender for origin in guess.of],
        notes=notes,
        used=list(used),
        evidence=[item.as_json() for item in headline.evidence(guess, truth, private=show_data)],
        reading=reading,
        guess=guess,
        scores=scores,
    )


def _read(guess: Guess, reading: Reading, why: NoTruth, notes: list[str], used: Sequence[str]) -> Outcome:
    """What was read where nothing is known to be true; an attack that answered nothing read nothing."""
    if not reading.messages:
        return Outcome(status="skipped", why="the attack answered nothing: what it saw carries nothing", guess=guess)
    return Outcome(status="read", why=why.problem, notes=notes, used=list(used), reading=reading, guess=guess)


def metrics_of(leak: Leak[Any], more: Sequence[Metric[Any]] = ()) -> dict[str, Metric[Any]]:
    """Everything that a guess about this leak is scored by, by name, the headline first."""
    return {metric.name: metric for metric in (leak.headline, *_details(leak, more, []))}


def _details(leak: Leak[Any], more: Sequence[Metric[Any]], notes: list[str]) -> list[Metric[Any]]:
    """The leak's other metrics, then those of plug-ins and of the caller that score the same guess, by name.

    A plug-in that cannot be used is named in the notes and breaks nothing else.
    """
    found = {metric.name: metric for metric in leak.metrics[1:]}
    for entry in entries("metrics"):
        if entry.is_plugin:
            try:
                metric: Metric[Any] = make("metrics", entry.name)
            except FedspillError as error:
                notes.append(str(error))
                continue
            if issubclass(leak.guess, metric.guesses):
                found.setdefault(metric.name, metric)
    found |= {metric.name: metric for metric in more if issubclass(leak.guess, metric.guesses)}
    return [found[name] for name in sorted(found) if name != leak.headline.name]
