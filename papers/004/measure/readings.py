"""What attacks read: activation in theory, attribute or membership in practice, several targets, after a roll-back."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedspill.defenses.wadm import divergences
from fedspill.planting.closed_form import neurons_of_target, plant_neurons
from fedspill.planting.dense_network import unit_gradients
from fedspill.planting.imputation import impute
from fedspill.planting.trained_neurons import train_aai, train_ami
from fedspill.seeds import generator
from fedspill.training import Tensors

from .experiment import (
    ADAM,
    CLOSED,
    FOR_ADAM,
    FOR_SGD,
    PUBLISHED,
    SGD,
    Recipes,
    Repetition,
    activations,
    next_round,
    plants,
    pooled,
    rows_of,
    score_of,
    through_a_round,
)
from .settings import Case, model_area, trained


def read(
    case: Case,
    folder: Path,
    kinds: Sequence[str],
    recipes: Recipes = PUBLISHED,
    rounds: Sequence[str] = ("sgd", "adam"),
) -> dict[str, Any]:
    """Scores of all targets for each kind of attack: pooled, and through rounds of SGD or of Adam."""
    began = time.time()
    rep = trained(case, folder)
    after = case.setting.rounds
    line: dict[str, Any] = {
        **case.cells(),
        **_truth(rep, boosting=0 <= case.number < 8),
        "area": model_area(rep, rep.history[after]),
        "attacks": {},
    }
    for kind in kinds:
        rows, start = rows_of(rep, kind), time.time()
        planted = plants(rep, kind, after, FOR_SGD, recipes)
        if case.device != "cpu":
            torch.cuda.synchronize()
        found: dict[str, Any] = {"seconds": time.time() - start}
        found["pooled"] = numbers(score_of(rep, kind, pooled(rep, planted, rows)))
        if "sgd" in rounds:
            found["sgd"] = numbers(score_of(rep, kind, through_a_round(rep, planted, rows, SGD)))
        if "adam" in rounds:
            for_adam = plants(rep, kind, after, FOR_ADAM) if kind in CLOSED else planted
            found["adam"] = numbers(score_of(rep, kind, through_a_round(rep, for_adam, rows, ADAM)))
        if kind not in ("ami", "membership"):
            theory = [activations(rep, planted[i], i, kind, rows) for i in range(len(planted))]
            found["theory"] = {key: [one[key] for one in theory] for key in theory[0]}
        found["areas"] = [model_area(rep, state) for state in planted[:4]]
        line["attacks"][kind] = found
    return {**line, "seconds": time.time() - began}


def _truth(rep: Repetition, boosting: bool) -> dict[str, Any]:
    """What is true of the targets, and what imputation says of them."""
    return {
        "values": rep.values.tolist(),
        "members": rep.members.tolist(),
        "imputation": {
            "logistic": impute(rep.targets, rep.shadow, "logistic").tolist(),
            **({"boosting": impute(rep.targets, rep.shadow, "boosting").tolist()} if boosting else {}),
        },
    }


def several(case: Case, folder: Path, kinds: Sequence[str], recipes: Recipes = PUBLISHED) -> dict[str, Any]:
    """1 to 16 members looked for at once: TPR and FPR of their neurons, and what is read, pooled and in a round."""
    rep = trained(case, folder)
    after, dense = case.setting.rounds, rep.dense
    half = case.per_cell
    order = [i for pair in zip(range(half), range(half, 2 * half), strict=True) for i in pair]  # values take turns
    line: dict[str, Any] = {**case.cells(), "attacks": {}}
    for kind in kinds:
        each = 1 if kind == "aai" else 2
        line["attacks"][kind] = {}
        for many in (1, 2, 4, 8, 16):
            chosen = order[:many]
            made = _together(rep, kind, rep.history[after], chosen, recipes)
            theory, scores, in_round = [], [], []
            reading = unit_gradients(dense, made, rep.pool.x, rep.pool.y).double().mean(0).cpu()
            moved = through_a_round(rep, [made], torch.arange(len(reading)), SGD)[0]
            for place, index in enumerate(chosen):
                rows = neurons_of_target(len(reading), each, place, many)
                theory.append(activations(rep, made, index, kind, rows))
                scores.append(float(score_of(rep, kind, reading[rows][None])))
                in_round.append(float(score_of(rep, kind, moved[rows][None])))
            line["attacks"][kind][str(many)] = {
                "tpr": [one["tpr"] for one in theory],
                "fpr": [one["fpr"] for one in theory],
                "pooled": [_finite(score) for score in scores],
                "sgd": [_finite(score) for score in in_round],
                "values": rep.values[chosen].tolist(),
            }
    return line


def _together(rep: Repetition, kind: str, state: Tensors, chosen: Sequence[int], recipes: Recipes) -> Tensors:
    """One model with neurons for all the chosen targets."""
    if kind == "closed":
        room = (len(state[rep.dense.weight(0)]) // len(chosen) - 1) // 2
        shape = replace(FOR_SGD, directions=min(FOR_SGD.directions, room))
        rng = generator(rep.seed, "several", len(chosen))
        return plant_neurons(rep.dense, state, rep.targets, chosen, rep.shadow, shape, rng)
    whole = [rep.targets.completed(value, rep.shadow)[list(chosen)] for value in (0, 1)]
    if kind == "aai":
        up, down = whole[rep.frequent][None], whole[1 - rep.frequent][None]
        return train_aai(rep.dense, state, up, down, rep.shadow, recipes.aai).install(rep.dense, state, 0)
    pairs = torch.stack(whole, 1).flatten(0, 1)[None]
    return train_ami(rep.dense, state, pairs, rep.shadow, recipes.mia2aia).install(rep.dense, state, 0)


def rolled_back(case: Case, folder: Path) -> dict[str, Any]:
    """What is left after the guard: readings of rounds in which all clients train on the last accepted model.

    And ROC areas, of the benign run and of the attacked one: of what clients train on in the attacked round; of the
    server's model after it, if it adds what they sent to its honest model; and if it drops the round.
    """
    rep = trained(case, folder)
    after, rows = case.setting.rounds, rows_of(rep, "closed")
    before, honest, bias = rep.history[after - 1], rep.history[after], rep.dense.bias(1)
    found = []
    for index in range(len(rep.targets)):
        state = next_round(rep.dense, before, rep.clients, SGD, rep.seed, 2000 + index)
        found.append(-(state[bias] - before[bias])[rows].double().cpu())
    sent = next_round(rep.dense, before, rep.clients, ADAM, rep.seed, after)
    added = {name: tensor + sent[name] - before[name] for name, tensor in honest.items()}
    now, then = (model_area(rep, state) for state in (honest, before))
    later = model_area(rep, next_round(rep.dense, honest, rep.clients, ADAM, rep.seed, after))
    return {
        **case.cells(),
        "values": rep.values.tolist(),
        "members": rep.members.tolist(),
        "scores": numbers(score_of(rep, "closed", torch.stack(found))),
        "hold": (now, then),
        "after": (later, model_area(rep, added)),
        "kept": (later, now),
    }


def recovery(case: Case, folder: Path, kind: str, recipes: Recipes = PUBLISHED) -> dict[str, Any]:
    """Test area over ten rounds after an attack: unguarded, with WADM's mitigation, rolled back, and benign."""
    rep = trained(replace(case, per_cell=1), folder)
    after, name, bias = case.setting.rounds, rep.dense.weight(1), rep.dense.bias(1)
    before, planted = rep.history[after - 1], plants(rep, kind, after, FOR_SGD, recipes)[0]
    flagged = torch.from_numpy(divergences(before[name].cpu(), planted[name].cpu(), 5, "published") >= 0.1556)
    mended = {key: tensor.clone() for key, tensor in planted.items()}
    for part in (name, bias):
        mended[part][flagged] = before[part][flagged]
    starts = {"unguarded": planted, "wadm": mended, "rolled back": before, "benign": rep.history[after]}
    line: dict[str, Any] = {**case.cells(), "attack": kind}
    for label, start in starts.items():
        state, areas = start, [model_area(rep, start)]
        for number in range(10):
            state = next_round(rep.dense, state, rep.clients, ADAM, rep.seed, after + number)
            areas.append(model_area(rep, state))
        line[label] = areas
    return line


def numbers(scores: Tensor) -> list[float]:
    return [_finite(float(score)) for score in scores]


def _finite(score: float) -> float:
    return score if math.isfinite(score) else 0.0
