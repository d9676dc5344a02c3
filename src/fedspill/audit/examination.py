"""A plan before its audit: do its rounds run, which attacks would, which could not, what would one more fact add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from fedspill.audit.attack_trial import AttackTrial
from fedspill.audit.matrix import Pair, pairs_of
from fedspill.audit.why_not import lacking, reason
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan, check_plan
from fedspill.errors import FedspillError
from fedspill.progress import UNWATCHED, Progress
from fedspill.registry import find

# What a plan can set aside besides, of data that have enough: conventions.
SHADOW, PER_CLASS = 500, 10


@dataclass(frozen=True)
class Examination:
    """What `fedspill doctor` says."""

    description: str
    tried: tuple[str, ...]  # what was tried, and what came of it
    runs: list[list[str]]  # leak, attacks, adversaries
    reasons: list[tuple[str, list[str]]]  # why not, and which
    more: list[tuple[str, list[str]]]  # one more fact, and which would run then


def examine(plan: Plan, data_dir: Path | None = None, progress: Progress = UNWATCHED) -> Examination:
    """Loads everything, trains a few rounds and tries each attack on them for a moment.

    Errors of the user's own code are raised as they are.
    """
    deployment = Deployment.of(plan, data_dir)
    pairs = pairs_of(plan)
    fitting = [pair for pair in pairs if not reason(pair, deployment)]
    with AttackTrial(deployment) as trial, progress.bar("Trying attacks", len(fitting)) as step:
        rounds = trial.rounds
        skipped: dict[str, str] = {}
        for place, pair in enumerate(fitting):
            step(place, pair.id)
            skipped[pair.id] = trial.why_not(pair)
    runs: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    would_run = [pair for pair in fitting if not skipped[pair.id]]
    for pair in would_run:
        attacks, adversaries = runs.setdefault(pair.facts.leak, ({}, {}))
        attacks[pair.attack] = None
        adversaries[pair.adversary] = None
    return Examination(
        deployment.describe(),
        tuple(_tried(deployment, rounds)),
        [[find("leaks", leak).title, ", ".join(a), ", ".join(by)] for leak, (a, by) in sorted(runs.items())],
        _reasons(pairs, {pair.attack for pair in would_run}, skipped, deployment),
        _more(plan, pairs, deployment),
    )


def _reasons(
    pairs: list[Pair], running: set[str], skipped: Mapping[str, str], deployment: Deployment
) -> list[tuple[str, list[str]]]:
    """Why attacks that no adversary runs are not run: of each, what keeps the adversary that is nearest to it."""
    nearest: dict[str, tuple[int, str]] = {}
    for pair in pairs:
        if pair.attack not in running:
            lacks = lacking(pair).lacks if pair.lacks() else 0
            found = (lacks, skipped.get(pair.id) or reason(pair, deployment))
            nearest[pair.attack] = min(nearest.get(pair.attack, found), found)
    reasons: dict[str, list[str]] = {}
    for attack, (_, why_not) in nearest.items():
        reasons.setdefault(why_not, []).append(attack)
    return list(reasons.items())


def _tried(deployment: Deployment, rounds: int) -> list[str]:
    """What was trained, and what attacks look for first."""
    said = [f"{rounds} {'round was' if rounds == 1 else 'rounds were'} trained, and each attack was tried on them."]
    classes = len(deployment.dataset.classes)
    if not deployment.is_vertical and deployment.protocol().get("head_weight") is None:
        said.append(
            "No last layer with a row for each class was found: attacks that read labels in it will be skipped."
        )
    if deployment.dataset.train.x.dtype.is_floating_point is False:
        said.append("Inputs are whole numbers (tokens): attacks that rebuild inputs by descent will be skipped.")
    if not deployment.is_vertical and _gives_probabilities(deployment):
        said.append("The network's outputs add up to 1, as behind a softmax; clients train on logits: leave it out.")
    smallest = min(len(own) for own in deployment.shares.clients)
    if deployment.dataset.note:
        said.append(deployment.dataset.note)
    said.append(f"{len(deployment.shares.clients)} clients, the smallest with {smallest} samples; {classes} classes.")
    return said


def _gives_probabilities(deployment: Deployment) -> bool:
    with torch.no_grad():
        given = deployment.build_model().eval()(deployment.shares.clients[0].x[:8])
    one = torch.ones(len(given))
    return given.ndim == 2 and given.shape[1] > 1 and bool((given >= 0).all()) and torch.allclose(given.sum(1), one)


def _facts(deployment: Deployment) -> list[tuple[str, int]]:
    """What a plan can set aside besides, never more than half of what clients hold: they must keep data of the kind."""
    labels = torch.cat([own.y for own in deployment.shares.clients])
    rarest = int(torch.bincount(labels, minlength=len(deployment.dataset.classes)).min())
    held = deployment.plan.adversary_data
    facts = [
        ("shadow", min(SHADOW, len(labels) // 2), held.shadow),
        ("per_class", min(PER_CLASS, rarest // 2), held.per_class),
    ]
    return [(name, value) for name, value, now in facts if value > now]


def _more(plan: Plan, pairs: list[Pair], deployment: Deployment) -> list[tuple[str, list[str]]]:
    """Which attacks each fact would add."""
    now = {pair.id for pair in pairs if not pair.lacks()}
    found = []
    for name, value in _facts(deployment):
        words = f"[adversary_data] {name} = {value}"
        values = plan.model_dump(mode="json", exclude_unset=True)
        values["adversary_data"] = {**values.get("adversary_data", {}), name: value}
        try:
            then = [pair for pair in pairs_of(check_plan(values, words)) if not reason(pair, deployment)]
        except FedspillError:
            continue
        added = sorted({pair.attack for pair in then if pair.id not in now})
        if added:
            found.append((words, added))
    return found
