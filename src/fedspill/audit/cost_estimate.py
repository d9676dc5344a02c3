"""What an audit would do and cost, told without running it: by a short calibration, and by figures once measured."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedspill.attack import ActiveAttack
from fedspill.audit.advice import acts_on
from fedspill.audit.defense_frontier import candidates_of
from fedspill.audit.matrix import Pair, pairs_of
from fedspill.audit.planted_run import trainings_of
from fedspill.audit.process_tree import held_by
from fedspill.audit.sealed_attack import is_foreign
from fedspill.audit.severity import MAY_BE_CAUGHT
from fedspill.audit.target import Target
from fedspill.audit.unit_needs import UnitNeeds, gpus_of
from fedspill.audit.why_not import reason
from fedspill.dataset import Examples
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan
from fedspill.errors import FedspillError
from fedspill.federation.local import state_of, train
from fedspill.federation.trainers import clients_side_by_side, is_to_be_replayed
from fedspill.leaks.composition.shares.rehearsed_clients import MOST_FLOPS as MOST_FLOPS_OF_DECAF
from fedspill.leaks.labels.counts.trial import FIRST_TRIED, TRIED
from fedspill.observe.habits import unsaid_habits
from fedspill.observe.make_believe import Workshop
from fedspill.observe.rehearsal_plan import (
    GPU_IS_FASTER,
    LEAST_NEAR,
    MOST_FLOPS,
    MOST_MESSAGES,
    affordable,
    operations_of_training,
)
from fedspill.observe.rehearsed_shares import RehearsalSizes
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.tensor_file import bytes_of, is_large
from fedspill.threat import ALTERING


@dataclass(frozen=True)
class AttackCost:
    """CPU seconds of one unit, and of its control, on the machine of REFERENCE."""

    once: float = 0.1
    per_message: float = 0.002
    control: float = 0.25
    per_parameter: float = 2e-8  # of each message
    per_class: float = 0.0  # of each message
    per_count: float = 0.0  # of each message, for each class and each sample: counts that the class may have
    per_schedule: float = 0.0  # messages of clients with as many samples are read together
    per_class_pair: float = 0.0  # of each message: bases and samples of all classes meet each other
    per_product: float = 0.0  # of each message, for a record and a weight of a layer that sees one vector a record
    rehearses: float = 0.0  # operations that it pays for each message; 0 where it trains no make-believe clients
    rehearsed: float = 1.0  # share of the messages for which it then does


# What grows was timed part by part on federations of `benchmarks/growth.py` (20 clients in 4 and 16 rounds, 100 in 4;
# 20 and 500 thousand parameters; 10 to 160 classes; 16 to 256 samples of a client) and on the default plan.
# Make-believe clients are beside it, see `_rehearsals`. Whom Decaf rehearses is not known beforehand: under plain SGD
# few, behind defenses and in deep networks nearly all; half is a guess between. Attacks that plant run a federation of
# their own, whatever is recorded; these and controls are from the stores of audits of the default plan,
# single-gradients and bank_and_shop.
_READING = AttackCost(  # counts, of each message by itself
    0.15, 0.0068, per_class=1.8e-4, per_count=2e-5, per_schedule=0.24, rehearses=MOST_FLOPS
)
COSTS = {
    "composition-by-counts": replace(_READING, control=2.2),
    "labels": replace(_READING, control=0.6),
    "decaf": AttackCost(
        0.2, 0.003, 0.2, per_parameter=9e-8, per_class_pair=1.5e-5, rehearses=MOST_FLOPS_OF_DECAF, rehearsed=0.5
    ),
    "membership": AttackCost(0.1, 0.0, 0.25, per_parameter=0.0, per_product=2.4e-10),
    "inputs": AttackCost(0.1, 0.02, 0.4),
    "summed-inputs": AttackCost(0.1, 0.02, 0.4),
    "planted": AttackCost(1.4, 0.0, 0.6),
    "planted-membership": AttackCost(2.0, 0.0, 0.6),
    "planted-inputs": AttackCost(2.0, 0.0, 0.25),
    "planted-records": AttackCost(2.0, 0.0, 0.25),
    "scale-mia": AttackCost(6.0, 0.0, 1.0),
    "robbing-the-fed": AttackCost(2.0, 0.0, 0.2),
    "trap-weights": AttackCost(2.2, 0.0, 0.2),
    "class-fishing": AttackCost(6.0, 0.0, 0.35),
    "class-sniffing": AttackCost(1.3, 0.0, 0.3),
    "cone": AttackCost(2.9, 0.0, 2.1),
    "active-completion": AttackCost(2.3, 0.0, 1.6),
    "model-completion": AttackCost(1.4, 0.0, 1.6),
    "generative-regression": AttackCost(2.5, 0.0, 2.5),
}
OTHERS = AttackCost()
NEEDED_TO_REHEARSE = frozenset({"architecture", "aux_data"})  # by an adversary
REFERENCE = 0.107  # CPU seconds of `_fixed_work` there
# CPU seconds there of fitting to make-believe clients: those of a round at one degree of knowledge, and those of one
# message, and what of the latter is due to a class and to a parameter.
FIT_OF_ROUND, FIT_OF_MESSAGE, FIT_PER_CLASS, FIT_PER_PARAMETER = 0.032, 0.01, 5.5e-4, 1.1e-7
REPORTS = 1.5  # CPU seconds there to write the reports
MOST_LOADING = 5.0  # CPU seconds of this process, which has loaded torch and done little else
# Share of the attacks that run which find enough for defenses to be tried on: in seconds, and in number.
TRIED_COST, TRIED_UNITS = 0.5, 0.2
# Every process is a copy of one that has loaded torch, and memory of copies is counted for each: a worker, its fork
# server, and an attack with the process that waits for it; beside all workers their owner and its own fork server.
COPIES_OF_UNIT, COPIES_OF_OWNER = 5, 2
MOST_EMPTY = 400 << 20  # bytes of a process that has loaded torch and done nothing, at most
HELD = 6  # times the recorded messages, while an attack works on them: on both sides of the pipe, and stacked
HELD_MAPPED = 9  # messages in all where they are mapped from files: 8 and 9 in benchmarks/large_models.py
UNIT_BYTES, REPORT_BYTES = 22_000, 60_000  # of one unit in store and reports; of the reports of none
TRUTH_BYTES = 24  # of one sample that was trained on
GPU_CONTEXT = 500 << 20  # bytes that CUDA takes for each process; an order of magnitude, not measured


@dataclass(frozen=True)
class Estimate:
    """The matrix, and about how many recordings, attacks, minutes and bytes."""

    description: str
    pairs: list[tuple[Pair, str]]  # and why one does not run
    recordings: int
    attacks: int
    minutes: float
    bytes: int  # of all recordings
    cpu_seconds: float
    gpu_seconds: float  # during which units have a GPU; 0 without
    memory_bytes: int  # at the most, all workers together, as `[limits]` counts it
    unit_memory_bytes: int  # the same of one worker
    gpu_memory_bytes: int  # of one worker; 0 without a GPU
    disk_bytes: int  # at the most, in the folder of the audit

    def as_json(self) -> dict[str, object]:
        """What a program reads."""
        names = ("recordings", "attacks", "minutes", "cpu_seconds", "gpu_seconds", "memory_bytes")
        more = ("unit_memory_bytes", "gpu_memory_bytes", "disk_bytes")
        runs = [pair.id for pair, why_not in self.pairs if not why_not]
        return {"description": self.description, "runs": runs} | {name: getattr(self, name) for name in names + more}


@dataclass(frozen=True)
class _Calibration:
    """What was measured on this machine, just now."""

    slowness: float  # its CPU seconds over those of the reference
    client_seconds: float  # one client, one round
    first_use: float  # what the first client of a process pays beyond that: torch loads more of itself
    gpu_bytes: int


@dataclass(frozen=True)
class _Sizes:
    """What the costs of attacks grow with."""

    rounds: float
    messages: float
    parameters: int
    classes: int
    products: float  # records that membership asks about and knows, times weights of layers that see one vector each
    samples: float = 16.0  # of a client
    schedules: float = 1.0  # different numbers of samples among those who sent
    trial_messages: float = 32.0  # of make-believe clients that are read by themselves, where clients are rehearsed
    trial_schedules: float = 2.0  # different numbers of samples among these


@dataclass(frozen=True)
class _Rehearsals:
    """Make-believe clients that an attack trains, where it does."""

    operations: float  # that it must pay for a message; infinite where it never rehearses
    training: float = 0.0  # CPU seconds on this machine
    fitting: float = 0.0  # CPU seconds on the reference machine


def estimate(plan: Plan, data_dir: Path | None) -> Estimate:
    """Trains one client once to learn what a round costs; what defenses will be tried on is a guess."""
    empty, loading = _empty_process(), min(time.process_time(), MOST_LOADING)
    deployment = Deployment.of(plan, data_dir)
    measured = _calibrated(deployment)
    candidates = candidates_of(plan)
    pairs = [(pair, reason(pair, deployment)) for pair in pairs_of(plan)]
    runnable = [pair for pair, why_not in pairs if not why_not]
    together = 1 if candidates else 0
    recordings = (1 + len(candidates) + together) * plan.repeats
    attacks = plan.repeats * round((1 + together + TRIED_UNITS * len(candidates)) * len(runnable))

    sizes = _sizes(deployment)
    some = any(COSTS.get(pair.attack, OTHERS).rehearses for pair in runnable)
    rehearsals = _rehearsals(deployment, sizes, measured) if some else _Rehearsals(math.inf)
    costs = {
        pair.id: _unit_seconds(pair, sizes, rehearsals, measured.slowness)
        + measured.client_seconds * _own_trainings(pair, deployment)
        for pair in runnable
    }
    tried = [sum(costs[pair.id] for pair in runnable if acts_on(setting, pair)) for setting in candidates]
    once = (1 + together) * sum(costs.values()) + TRIED_COST * sum(tried)
    controls = sum(COSTS.get(pair.attack, OTHERS).control for pair in runnable)
    training = recordings * measured.client_seconds * _clients_a_round(deployment) * plan.federation.rounds
    units = training + plan.repeats * once + measured.slowness * controls
    # The command and the server of workers load torch, a worker and the process of its attacks the rest of it.
    starting = 2 * (loading + measured.first_use) + measured.slowness * REPORTS

    first, others = (deployment.recording_bytes(keep) for keep in (deployment.keep(), plan.record.keep()))
    size = plan.repeats * first + (recordings - plan.repeats) * others
    truth = recordings * sizes.messages * TRUTH_BYTES * _samples(deployment)
    unit_memory = _unit_memory(deployment, empty)
    on_gpu = plan.device != "cpu"
    return Estimate(
        description=deployment.describe(),
        pairs=pairs,
        recordings=recordings,
        attacks=attacks,
        minutes=(units / plan.workers + starting) / 60,
        bytes=size,
        cpu_seconds=units + starting,
        gpu_seconds=units if on_gpu else 0.0,
        memory_bytes=COPIES_OF_OWNER * empty + plan.workers * unit_memory,
        unit_memory_bytes=unit_memory,
        gpu_memory_bytes=GPU_CONTEXT + measured.gpu_bytes if on_gpu else 0,
        disk_bytes=round(size + truth) + UNIT_BYTES * (attacks + recordings + len(runnable)) + REPORT_BYTES,
    )


def needs_of(target: Target) -> UnitNeeds:
    """For a cluster: twice the memory that the dry run tells of one unit, since it may be wrong by so much, but no more
    than the plan allows it.
    """
    plan = target.plan
    most = plan.limits.memory_mb << 20
    empty = _empty_process()
    if target.trace is not None:
        size = sum(path.stat().st_size for path in target.trace.rglob("*.safetensors"))
        expected = COPIES_OF_UNIT * empty + HELD * size
    else:
        expected = _unit_memory(Deployment.of(plan, target.data_dir), empty)
    return UnitNeeds(min(most, 2 * expected), gpus_of(plan.device, plan.limits.gpu_share))


def _empty_process() -> int:
    """Bytes of a process that has loaded torch and done nothing: this one, unless it has long done other work."""
    return min(held_by(os.getpid()), MOST_EMPTY)


def _own_trainings(pair: Pair, deployment: Deployment) -> float:
    """How many times a client trains in the federation that an attack runs for itself, where it does."""
    if is_foreign(pair.attack):
        return 0.0
    if pair.facts.needed().does & ALTERING:
        return _clients_a_round(deployment) * deployment.plan.federation.rounds
    attack = make("attacks", pair.attack, pair.options)
    try:
        return float(trainings_of(attack, pair.threat, deployment)) if isinstance(attack, ActiveAttack) else 0.0
    except FedspillError:  # it will say so itself
        return 0.0


def _unit_seconds(pair: Pair, sizes: _Sizes, rehearsals: _Rehearsals, slowness: float) -> float:
    """On this machine."""
    cost = COSTS.get(pair.attack, OTHERS)
    if pair.facts.needed().does & MAY_BE_CAUGHT:  # it runs a federation of its own, one round for each record asked for
        return slowness * cost.once
    per_message = (
        cost.per_message
        + cost.per_parameter * sizes.parameters
        + cost.per_class * sizes.classes
        + cost.per_class_pair * sizes.classes**2
        + cost.per_count * sizes.classes * sizes.samples
        + cost.per_product * sizes.products
    )
    rehearses = rehearsals.operations <= cost.rehearses and pair.threat.knows >= NEEDED_TO_REHEARSE
    messages, schedules = sizes.messages, sizes.schedules
    if rehearses and cost.per_schedule:  # then only make-believe clients are read by themselves
        messages, schedules = sizes.trial_messages, sizes.trial_schedules
    alone = slowness * (cost.once + messages * per_message + schedules * cost.per_schedule)
    if not rehearses:
        return alone
    return alone + cost.rehearsed * (rehearsals.training + slowness * rehearsals.fitting)


def _sizes(deployment: Deployment) -> _Sizes:
    model = deployment.build_model()
    messages = _messages(deployment)
    rounds = messages if deployment.is_vertical else messages / max(_clients_a_round(deployment), 1)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    classes = len(deployment.dataset.classes)
    if deployment.is_vertical:
        return _Sizes(rounds, messages, parameters, classes, 0.0)
    asked, test = deployment.plan.membership, deployment.dataset.test
    held = sum(map(len, deployment.shares.clients))
    records = min(asked.members, held) + min(asked.others, len(test)) + len(deployment.shares.auxiliary)
    products = float(records * _weights_at_vectors(model, deployment.dataset.train.x[:1]))
    clients, a_round, leading = len(deployment.shares.clients), _clients_a_round(deployment), RehearsalSizes().leading

    def schedules(rounds: float, a_round: float) -> float:
        """Different sizes among the clients that have taken part after so many rounds."""
        missed = math.pow(1 - min(a_round / clients, 1), rounds)
        return len(set(map(len, deployment.shares.clients))) * (1 - missed)

    tried = min(TRIED / min(leading, rounds), a_round)
    return _Sizes(
        rounds,
        messages,
        parameters,
        classes,
        products,
        samples=held / max(clients, 1),
        schedules=schedules(rounds, a_round),
        trial_messages=float(FIRST_TRIED + TRIED),
        trial_schedules=schedules(1, tried) + schedules(min(leading, rounds), tried),
    )


def _weights_at_vectors(model: nn.Module, example: Tensor) -> int:
    """Weights of linear layers that see one vector for each record; `example` is a batch of one."""
    seen = set[nn.Linear]()

    def look(layer: nn.Linear, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].ndim == 2:
            seen.add(layer)

    handles = [layer.register_forward_pre_hook(look) for layer in model.modules() if isinstance(layer, nn.Linear)]
    try:
        with torch.no_grad():
            model.eval()(example)
    finally:
        for handle in handles:
            handle.remove()
    return sum(layer.weight.numel() for layer in seen)


def _rehearsals(deployment: Deployment, sizes: _Sizes, measured: _Calibration) -> _Rehearsals:
    """Trainings as `rehearsed_shares` makes them: in some rounds at all degrees of knowledge, in the others at one, for
    all clients of a round together; and for each message some around what was found.
    """
    operations = _operations_of_rehearsals(deployment, sizes.messages)
    if operations > max(cost.rehearses for cost in COSTS.values()) or not len(deployment.shares.auxiliary):
        return _Rehearsals(math.inf)
    shop = Workshop(
        deployment.build_model(),
        deployment.settings.training,
        deployment.shares.auxiliary,
        device=deployment.plan.device,
    )
    samples = max(map(len, deployment.shares.clients))
    try:
        plan = affordable(shop, samples * deployment.settings.training.epochs, math.inf)
        few = int(MOST_FLOPS * LEAST_NEAR / operations)  # a dry run shall not take longer for a larger model
        once = _make_believe_seconds(shop, max(min(plan.near, few), 1), samples)
    except (RuntimeError, ValueError, TypeError):  # what cannot be trained here is not rehearsed by attacks either
        return _Rehearsals(math.inf)
    leading = min(plan.leading, sizes.rounds)
    tries = leading * len(plan.known) + sizes.rounds - leading
    learnt = leading * sum(plan.known) + (sizes.rounds - leading) * sum(plan.known) / len(plan.known)
    # Habits that no protocol says are tried in one round: by half of the clients, at every other degree of knowledge.
    habits, degrees = 1 + len(list(unsaid_habits(shop.training, shop.auxiliary.x))), plan.known[::2]
    tests = habits * len(degrees)
    learnt += habits * sum(degrees)
    passes = learnt * len(shop.auxiliary) / samples  # as many samples as so many clients have
    around = sizes.messages
    if shop.training.algorithm == "fedavg":  # a client holds the same samples in all rounds, and is rehearsed in some
        around = min(around, plan.leading * len(deployment.shares.clients))
    trained = tries * plan.broad + tests * max(plan.broad // 2, plan.least_broad) + around * plan.near
    per_message = FIT_OF_MESSAGE + FIT_PER_CLASS * sizes.classes + FIT_PER_PARAMETER * sizes.parameters
    return _Rehearsals(
        operations,
        trained * once + passes * measured.client_seconds,
        (tries + tests) * FIT_OF_ROUND + sizes.messages * per_message,
    )


def _make_believe_seconds(shop: Workshop, clients: int, samples: int) -> float:
    """Seconds of one make-believe client, by training as many as there are around one message, or fewer large ones."""
    start = {name: tensor.clone() for name, tensor in state_of(shop.model).items()}
    rows = torch.arange(clients * samples).remainder(len(shop.auxiliary)).view(clients, samples)
    last, took = list(start)[-1:], []
    clock = _clock(torch.device(shop.device))
    for _ in range(2):  # the first one also finds out whether they can be trained together
        began = clock()
        shop.send(start, rows, last, generator(0, "estimate"))
        took.append(clock() - began)
    return min(took) / clients


def _operations_of_rehearsals(deployment: Deployment, messages: float) -> float:
    """What an attack must pay for each message to train make-believe clients; infinite where it never does."""
    if deployment.is_vertical or messages > MOST_MESSAGES:
        return math.inf
    training = deployment.settings.training
    samples = training.epochs * max(map(len, deployment.shares.clients))
    once = operations_of_training(
        deployment.build_model(), deployment.dataset.train.x[:1], samples, training.batch_size
    )
    return LEAST_NEAR * once / (1 if deployment.plan.device == "cpu" else GPU_IS_FASTER)


def _messages(deployment: Deployment) -> float:
    """Updates that are recorded, or, in a vertical federation, rounds."""
    plan = deployment.plan
    rounds = len(plan.record.rounds) if plan.record.rounds is not None else plan.federation.rounds
    return rounds * (1 if deployment.is_vertical else plan.federation.clients_per_round or plan.federation.clients)


def _samples(deployment: Deployment) -> float:
    """That one message tells of."""
    clients = deployment.shares.clients
    if deployment.is_vertical:
        return deployment.plan.training.batch_size
    return sum(map(len, clients)) / max(len(clients), 1)


def _clients_a_round(deployment: Deployment) -> float:
    plan = deployment.plan
    if deployment.is_vertical:  # a round is one batch, not one pass
        return plan.training.batch_size / len(deployment.shares.clients[0])
    return plan.federation.clients_per_round or plan.federation.clients


def _unit_memory(deployment: Deployment, empty: int) -> int:
    """Bytes of a worker and all that it starts; the data are there whole, and once more as shares."""
    data = sum(_bytes(part) for part in (deployment.dataset.train, deployment.dataset.test))
    held = HELD * deployment.recording_bytes(deployment.plan.record.keep())
    message = state_of(deployment.build_model())
    if not deployment.is_vertical and is_large(message):
        held = min(held, HELD_MAPPED * bytes_of(message))
    return COPIES_OF_UNIT * empty + 2 * data + held


def _bytes(examples: Examples) -> int:
    return examples.x.numel() * examples.x.element_size() + 8 * len(examples)


def _calibrated(deployment: Deployment) -> _Calibration:
    torch.set_num_threads(1)
    device = torch.device(deployment.plan.device)
    model, training = deployment.build_model().to(device), deployment.settings.training
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    share = deployment.shares.clients[0].to(device)
    on_gpu = device.type == "cuda"
    clock = _clock(device)
    took = []
    for _ in range(2):  # the first one also pays for what torch sets up once
        began = clock()
        train(model, start, share, training, generator(0, "estimate"))
        if on_gpu:
            torch.cuda.synchronize(device)
        took.append(clock() - began)
    reserved = torch.cuda.max_memory_reserved(device) if on_gpu else 0
    if is_to_be_replayed(training, device, "auto"):
        reserved *= clients_side_by_side(model, len(deployment.shares.clients))
    slowness = min(_fixed_work() for _ in range(2)) / REFERENCE
    return _Calibration(slowness, min(took), max(took) - min(took), reserved)


def _clock(device: torch.device) -> Callable[[], float]:
    """Who waits for a GPU takes no CPU time."""
    return time.perf_counter if device.type == "cuda" else time.process_time


def _fixed_work() -> float:
    """CPU seconds of a piece of work that is the same everywhere: small products and a small network, as attacks do."""
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, generator=rng)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    began = time.process_time()
    for _ in range(300):
        model(weight).square().mean().backward()
        torch.linalg.svdvals(weight)
    return time.process_time() - began
