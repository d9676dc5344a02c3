"""Measures everything that the tables of paper 004 need, repetition by repetition, as lines of JSON.

    PYTHONPATH=src python papers/004/run_full.py --data-dir DATA --device cuda --out OUT --processes 12

Every line is one repetition of one data set, attribute and activation: readings of all attacks on its targets, in the
paper's pooled setting and through real FedAvg rounds, what every guard says of each planted model, and what the model
is worth afterwards. `tables.py` turns the lines into tables; 32 repetitions take some minutes on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor

from fedspill.attacks.active.adaptive import part_way
from fedspill.attacks.active.closed_form import neurons, plant_neurons
from fedspill.attacks.active.dense import signals
from fedspill.attacks.active.experiment import (
    ADAM,
    FOR_ADAM,
    FOR_SGD,
    SGD,
    Repetition,
    Setting,
    activations,
    next_round,
    plants,
    pooled,
    repeat,
    rows_of,
    score_of,
    through_a_round,
)
from fedspill.attacks.active.imputation import impute
from fedspill.attacks.active.trained import AaiRecipe, AmiRecipe, train_aai, train_ami
from fedspill.data.adult_users import AdultUsers
from fedspill.data.base import Dataset, Examples
from fedspill.data.cop_mode_standin import CopModeStandin
from fedspill.defenses.base import Site
from fedspill.defenses.guard import Guard
from fedspill.defenses.wadm import divergences
from fedspill.defenses.watch.statistics import read_change
from fedspill.defenses.watch.trial import errors_of, roc_area
from fedspill.federation.local import Tensors
from fedspill.messages import EVERYONE, SERVER, Message
from fedspill.partitions.by_user import ByUser
from fedspill.partitions.iid import IID
from fedspill.seeds import generator

SETTINGS = {
    "adult": Setting(ByUser(), 93, (128, 64), 5000, 5),
    "adult, every column": Setting(ByUser(), 93, (128, 64), 5000, 5),
    "cop-mode stand-in": Setting(ByUser(), 93, (128, 64), 5000, 5),
    "celeba": Setting(IID(), 10, (1024, 512), 300, 2),
}
ATTRIBUTES = {
    "adult": ("sex=Male", "marital-status=Married-civ-spouse", "native-country=United-States"),
    "adult, every column": ("sex=Male",),
    "cop-mode stand-in": ("isWeekend", "isTopAppRequestingApp", "isForeground"),
    "celeba": ("Male", "Young", "Heavy_Makeup"),
}
SEED = 2024  # the first held-out repetition
BENIGN_ROUNDS = 10


@dataclass(frozen=True)
class Job:
    """One repetition to measure.

    `rich`: guards too. `epochs` of the trained attacks (0: without them), on so many `shadow` records. `rounds`: read
    through real rounds, with `adam` also, for `outsiders` too. `readings`: of the pooled gradient. `extras`: how many
    repetitions also measure recovery and adaptive attackers.
    """

    data: str
    attribute: str
    elu: bool
    number: int
    rich: bool = False
    epochs: int = 1000
    shadow: int | None = None
    rounds: bool = True
    outsiders: bool = True
    adam: bool = True
    readings: bool = True
    per_cell: int = 8
    extras: int = 8


def load(data: str, seed: int, folder: Path) -> Dataset:
    if data == "adult":
        return AdultUsers(seed=seed).load(folder)
    if data == "adult, every column":
        return AdultUsers(seed=seed, without=("relationship",)).load(folder)
    if data == "cop-mode stand-in":
        return CopModeStandin(seed=seed).load()
    prepared = folder / "celeba.pt"  # embedded beforehand, where images cannot be decoded
    if prepared.is_file():
        kept = torch.load(prepared, weights_only=True)
        n = kept["n"]
        train, test = Examples(kept["x"][:n], kept["y"][:n]), Examples(kept["x"][n:], kept["y"][n:])
        return Dataset("celeba-embedded", ("not Attractive", "Attractive"), train, test, tuple(kept["columns"]))
    from fedspill.data.celeba_embedded import CelebaEmbedded

    return CelebaEmbedded().load(folder)


def model_area(rep: Repetition, state: Tensors) -> float | None:
    test = rep.dataset.test
    logits = rep.dense.pre_activations({k: v.cpu() for k, v in state.items()}, test.x, rep.dense.hidden)
    return roc_area(logits, test.y)


def watched(
    rep: Repetition, states: list[Tensors], guard: Guard
) -> tuple[dict[str, Tensor], Message, list[list[float]], list[bool]]:
    """Shows the benign models to the guard in order; its memory, what it last accepted, statistics and alarms."""
    memory: dict[str, Tensor] = {}
    previous: Message | None = None
    values, alarms, steps = [], [], None
    for number, state in enumerate(states):
        message = Message(number, SERVER, EVERYONE, "model", state)
        verdict = guard.incoming(message, previous, Site(memory))
        memory = dict(verdict.memory) if verdict.memory is not None else memory
        alarms.append(verdict.action != "accept")
        if previous is not None:
            reading = read_change(previous.tensors, state, number - previous.round, steps)
            values.append(reading.values.tolist())
        if verdict.action == "accept":
            previous, steps = message, memory.get("steps")
    assert previous is not None
    return memory, previous, values, alarms


def judged(rep: Repetition, planted: list[Tensors], after: int) -> dict[str, Any]:
    """What the guards that look at weights say of each planted model after `after` rounds."""
    guard = Guard()
    memory, previous, _, _ = watched(rep, [_cpu(state) for state in rep.history[:after]], guard)
    before = rep.history[after - 1]
    name = rep.dense.weight(1)
    ours, wadm, wadm_true, values = [], [], [], []
    for index, state in enumerate(planted):
        message = Message(after, SERVER, EVERYONE, "model", _cpu(state))
        ours.append(guard.incoming(message, previous, Site(memory)).action != "accept")
        if index % 4 == 0:
            reading = read_change(previous.tensors, message.tensors, after - previous.round, memory.get("steps"))
            values.append(reading.values.tolist())
        changed = (state[name] != before[name]).any(1).cpu()
        old, new = before[name].cpu()[changed], state[name].cpu()[changed]
        distance = float(divergences(old, new, 5, "corrected").max()) if bool(changed.any()) else 0.0
        wadm_true.append(distance)
        wadm.append(distance * before[name].shape[1] / before[name].shape[0])
    return {"guard": ours, "wadm": wadm, "wadm_corrected": wadm_true, "values": values}


def tried_out(rep: Repetition, planted: list[Tensors], after: int, threshold: float) -> dict[str, Any]:
    """BADAcc and BADAUC at every client: error counts and areas of the benign models and of some planted ones."""
    sizes = [len(own) for own in rep.clients]

    def look(state: Tensors) -> tuple[list[int], list[float | None]]:
        logits = rep.dense.pre_activations(state, rep.pool.x, rep.dense.hidden).cpu()
        parts = zip(logits.split(sizes), rep.pool.y.cpu().split(sizes), strict=True)
        found = [(errors_of(part, y, threshold), roc_area(part, y)) for part, y in parts]
        return [errors for errors, _ in found], [area for _, area in found]

    return {
        "sizes": sizes,
        "benign": [look(s) for s in rep.history[: after + 1]],
        "planted": [look(s) for s in planted],
    }


def measure(job: Job, folder: Path, device: str) -> dict[str, Any]:
    """One repetition."""
    data, attribute, elu, number, rich = job.data, job.attribute, job.elu, job.number, job.rich
    began, seed = time.time(), SEED + number
    setting = SETTINGS[data]
    rep = repeat(
        load(data, seed, folder),
        setting,
        seed,
        elu=elu,
        attribute=attribute,
        per_cell=job.per_cell,
        more_rounds=BENIGN_ROUNDS - setting.rounds if rich else 0,
    )
    after = setting.rounds
    line: dict[str, Any] = {
        "data": data,
        "attribute": attribute,
        "elu": elu,
        "rep": number,
        "rich": rich,
        "epochs": job.epochs,
        "values": rep.values.tolist(),
        "members": rep.members.tolist(),
        "majority": float(rep.shadow[:, rep.targets.secret_column()].mean()),
        "areas": [model_area(rep, state) for state in rep.history],
        "imputation": {
            how: impute(rep.targets, rep.shadow, how).tolist()  # type: ignore[arg-type]
            for how in ("logistic", "boosting")
        },
        "trained_s": time.time() - began,
        "attacks": {},
    }
    if rich:
        _, _, values, alarms = watched(rep, rep.history, Guard())
        line["benign"] = {"values": values, "alarms": alarms}
    rep = rep.to(device)
    kinds = ["closed"] + (["kept columns"] + (["sign code", "frozen row"] if elu else []) if rich else [])
    kinds += (["aai"] if elu else ["mia2aia"] + ["ami"] * rich) if job.epochs else []
    aai, ami = AaiRecipe(epochs=job.epochs), AmiRecipe(epochs=job.epochs)
    whole = rep
    for kind in kinds:
        found: dict[str, Any] = {}
        rows = rows_of(rep, kind)
        short = job.shadow if kind in ("aai", "mia2aia", "ami") else None
        rep = replace(whole, shadow=whole.shadow[:short])
        start = time.time()
        planted = plants(rep, kind, after, FOR_SGD, aai, ami)
        _wait(device)
        found["seconds"] = time.time() - start
        if job.readings:
            found["pooled"] = _numbers(score_of(rep, kind, pooled(rep, planted, rows)))
            theory = [activations(rep, planted[i], i, kind, rows) for i in range(len(planted))]
            found["theory"] = {key: [one[key] for one in theory] for key in theory[0]}
        if job.rounds and kind in ("closed", "aai", "mia2aia"):
            found["sgd"] = _numbers(score_of(rep, kind, through_a_round(rep, planted, rows, SGD)))
            if job.adam:
                other = plants(rep, kind, after, FOR_ADAM, aai, ami) if kind == "closed" else planted
                inside = [state for state, in_ in zip(other, rep.members.tolist(), strict=True) if in_ or job.outsiders]
                found["adam"] = _numbers(score_of(rep, kind, through_a_round(rep, inside, rows, ADAM)))
        found["areas"] = [model_area(rep, state) for state in planted[:4]]
        found["guards"] = judged(rep, planted, after)
        if rich and after > 2 and kind not in ("aai", "mia2aia", "ami"):
            early = plants(rep, kind, 2, FOR_SGD, aai, ami)
            found["guards_round_2"] = judged(rep, early, 2)
        if rich and data != "adult, every column":
            found["trial"] = tried_out(rep, planted[:4], after, 0.2 if elu else 0.5)
        line["attacks"][kind] = found
        if rich and kind == "closed" and number < job.extras:
            line["adaptive"] = adaptive(rep, planted, after)
        if rich and number < job.extras and data == "adult" and kind in ("closed", "aai", "mia2aia"):
            line.setdefault("recovery", {})[kind] = recovery(rep, planted[0], after)
            line.setdefault("several", {})[kind] = several(rep, kind, after, aai, ami)
    if rich and number < job.extras and data in ("adult", "celeba"):
        line["rollback"] = rollback(rep, after)
    line["seconds"] = time.time() - began
    return line


def adaptive(rep: Repetition, planted: list[Tensors], after: int) -> dict[str, Any]:
    """Small plants, and plants spread over rounds: what the guard says, and what the pooled gradient still tells."""
    honest, rows = rep.history[after], rows_of(rep, "closed")
    guard = Guard()
    memory, previous, _, _ = watched(rep, [_cpu(state) for state in rep.history[:after]], guard)
    inside = int(rep.members.sum())
    some = range(0, inside, max(1, inside // 16))  # both values
    found: dict[str, Any] = {"small": {}, "drip": {}, "values": rep.values[list(some)].tolist()}
    for share in (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3):
        states = [part_way(honest, planted[index], share) for index in some]
        alarms = [
            guard.incoming(Message(after, SERVER, EVERYONE, "model", _cpu(s)), previous, Site(memory)).action
            != "accept"
            for s in states
        ]
        found["small"][str(share)] = {
            "alarms": alarms,
            "pooled": _numbers(score_of(rep, "closed", pooled(rep, states, rows))),
        }
    for many in (5, 20, 80):
        first = []
        for state in planted[:8]:
            kept, last, caught = dict(memory), previous, -1
            for step in range(1, many + 1):
                message = Message(
                    after + step - 1, SERVER, EVERYONE, "model", _cpu(part_way(honest, state, step / many))
                )
                verdict = guard.incoming(message, last, Site(kept))
                if verdict.action != "accept":
                    caught = step
                    break
                kept, last = dict(verdict.memory or kept), message
            first.append(caught)
        found["drip"][str(many)] = first
    return found


def recovery(rep: Repetition, planted: Tensors, after: int) -> dict[str, Any]:
    """Test area over ten rounds after the attack: unguarded, with WADM's mitigation, and benign."""
    name, bias = rep.dense.weight(1), rep.dense.bias(1)
    before = rep.history[after - 1]
    flagged = torch.from_numpy(divergences(before[name].cpu(), planted[name].cpu(), 5, "published") >= 0.1556)
    mended = {key: tensor.clone() for key, tensor in planted.items()}
    for part in (name, bias):
        mended[part][flagged] = before[part][flagged]
    found = {}
    for label, start in (
        ("unguarded", planted),
        ("wadm", mended),
        ("rolled back", before),
        ("benign", rep.history[after]),
    ):
        state, areas = start, [model_area(rep, start)]
        for number in range(10):
            state = next_round(rep.dense, state, rep.clients, ADAM, rep.seed, after + number)
            areas.append(model_area(rep, state))
        found[label] = areas
    return found


def rollback(rep: Repetition, after: int) -> dict[str, Any]:
    """Readings of rounds in which all clients train on the last accepted model: what is left to the attack."""
    before, rows, found = rep.history[after - 1], rows_of(rep, "closed"), []
    for index in range(len(rep.targets)):
        state = next_round(rep.dense, before, rep.clients, SGD, rep.seed, 2000 + index)
        found.append(-(state[rep.dense.bias(1)] - before[rep.dense.bias(1)])[rows].double().cpu())
    state = next_round(rep.dense, before, rep.clients, ADAM, rep.seed, after)
    return {"score": _numbers(score_of(rep, "closed", torch.stack(found))), "area": model_area(rep, state)}


def several(rep: Repetition, kind: str, after: int, aai: AaiRecipe, ami: AmiRecipe) -> dict[str, Any]:
    """Several targets at once, the first of the members: theoretical TPR and FPR, and the pooled reading."""
    found, state, dense = {}, rep.history[after], rep.dense
    order = [i for pair in zip(range(8), range(8, 16), strict=True) for i in pair]  # values take turns
    for many in (1, 2, 4, 8, 16):
        chosen = order[:many]
        whole = [rep.targets.completed(value, rep.shadow)[chosen] for value in (0, 1)]
        if kind == "closed":
            room = (len(state[dense.weight(0)]) // many - 1) // 2
            shape = replace(FOR_SGD, directions=min(FOR_SGD.directions, room))
            made = plant_neurons(
                dense, state, rep.targets, chosen, rep.shadow, shape, generator(rep.seed, "several", many)
            )
        elif kind == "aai":
            made = train_aai(
                dense, state, whole[rep.frequent][None], whole[1 - rep.frequent][None], rep.shadow, aai
            ).install(dense, state, 0)
        else:
            made = train_ami(dense, state, torch.stack(whole, 1).flatten(0, 1)[None], rep.shadow, ami).install(
                dense, state, 0
            )
        each = 1 if kind == "aai" else 2
        right, wrong = [], []
        for place, index in enumerate(chosen):
            rows = neurons(len(state[dense.bias(1)]), each, place, many)
            one = activations(rep, made, index, kind, rows)
            right.append(one["tpr"])
            wrong.append(one["fpr"])
        reading = signals(dense, made, rep.pool.x, rep.pool.y).double().mean(0).cpu()
        rows = torch.cat([neurons(len(reading), each, place, many) for place in range(many)]).reshape(many, each)
        scores = score_of(rep, kind, reading[rows])
        found[str(many)] = {
            "tpr": right,
            "fpr": wrong,
            "scores": _numbers(scores),
            "values": rep.values[chosen].tolist(),
        }
    return found


def _cpu(state: Tensors) -> Tensors:
    return {name: tensor.cpu() for name, tensor in state.items()}


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _numbers(scores: Tensor) -> list[float]:
    return [float(score) if math.isfinite(float(score)) else 0.0 for score in scores]


def full(scale: float) -> list[Job]:
    """Everything, all settings first and then more repetitions."""
    found = []
    for number in range(max(1, round(32 * scale))):
        for elu in (True, False):
            found.append(Job("adult", "sex=Male", elu, number, number < max(1, round(16 * scale))))
    for data, attributes in ATTRIBUTES.items():
        for place, attribute in enumerate(attributes):
            if (data, place) == ("adult", 0):
                continue
            for number in range(max(1, round((8 if data != "adult" else 12) * scale))):
                for elu in (True, False):
                    rich = place == 0 and data != "adult, every column" and number < 7
                    found.append(Job(data, attribute, elu, number, rich, rounds=data.startswith("adult")))
    return sorted(found, key=lambda job: (job.number, not job.rich))


def short() -> list[Job]:
    """What two processor cores measure in half an hour: fewer repetitions, trained attacks at full length once."""
    found = []
    for number in range(4):
        found.append(Job("adult", "sex=Male", True, number, epochs=0, outsiders=False))
        for data in ("celeba", "cop-mode stand-in", "adult"):
            for elu in (True, False):
                guards = Job(data, ATTRIBUTES[data][0], elu, number, rich=True, epochs=60, shadow=200, rounds=False)
                guards = replace(guards, readings=False, per_cell=50 if number == 0 else 2, extras=0)
                found.append(replace(guards, epochs=0) if number or data == "celeba" else guards)
        if number == 0:
            for elu in (True, False):
                found.append(Job("adult", "sex=Male", elu, 7, shadow=500, adam=False, per_cell=4))
        found.append(Job("adult", "sex=Male", False, number, epochs=0, outsiders=False))
        for attribute in ATTRIBUTES["adult"][1:]:
            found.append(Job("adult", attribute, True, number, epochs=0, adam=False))
        found.append(Job("adult, every column", "sex=Male", True, number, epochs=0, outsiders=False))
        found.append(replace(found[0], number=number, rich=True, rounds=False, readings=False, extras=8, per_cell=4))
    return found


def work(asked: argparse.Namespace, mine: list[Job], rank: int) -> None:
    torch.set_num_threads(1)
    with (asked.out / f"lines-{rank}.jsonl").open("a") as out:
        for job in mine:
            if time.time() > asked.until:
                return
            line = measure(job, asked.data_dir, asked.device)
            out.write(json.dumps(line) + "\n")
            out.flush()
            print(f"{job}: {line['seconds']:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("full-004"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the 32 repetitions; 0: the short list")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no repetition after this long")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.until = time.time() + asked.seconds
    todo = full(asked.scale) if asked.scale else short()
    if asked.processes == 1:
        work(asked, todo, 0)
        return
    context = multiprocessing.get_context("spawn")
    running = [
        context.Process(target=work, args=(asked, todo[rank :: asked.processes], rank))
        for rank in range(asked.processes)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join()


if __name__ == "__main__":
    main()
