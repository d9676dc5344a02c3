"""From a view to a stage: what an adversary needs to rehearse the rounds that it has seen, as far as it has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.federation.local import state_of
from fedspill.messages import Message
from fedspill.observe.head_readings import HeadReader
from fedspill.observe.local_changes import KnownOptimizer
from fedspill.observe.make_believe import Workshop
from fedspill.observe.rehearsed_shares import RehearsalSizes, RoundScene, SentUpdate
from fedspill.placement import CPU
from fedspill.trace import View
from fedspill.training import LocalTraining, Tensors
from fedspill.training import Optimizer as OptimizerName

MOST_FLOPS = 5e10  # of an update's rehearsals: about a second of one core (convention)
ENOUGH_FLOPS = 5e9  # of an update's rehearsals by a core: what takes more is done less often (convention)
GPU_IS_FASTER = 400  # times a core: an H200 trains 230 clients of Table II's network a second (20 against .04 Tflop/s)
GPU_LAYERS = 3  # times that whole layers are read there, where rehearsals are cheap
MOVED = 10  # operations that a step costs for each parameter, used or not; an embedding costs little else (convention)
LEAST_NEAR = 24  # make-believe clients around an estimate; with fewer there is nothing to fit to (convention)
MOST_MESSAGES = 1_000  # rehearsed in one call: some minutes (convention)
MOST_SAMPLES = 100_000  # of a client: a message can claim any number


@dataclass(frozen=True, eq=False)
class RehearsalPlan:
    """All rounds of a trace, ready to be rehearsed."""

    scenes: dict[int, RoundScene]
    updates: list[SentUpdate]
    messages: list[Message]
    classes: int
    plan: RehearsalSizes
    same: bool  # whether a client holds the same samples whenever it takes part


def plan_rehearsal(view: View, messages: Sequence[Message], flops: float = MOST_FLOPS) -> RehearsalPlan:
    """The stage for messages whose last layer can be read; `flops` pay for one update. NotApplicable: what lacks."""
    lacking = [word for word in ("architecture", "aux_data", "batch_size", "local_lr") if not view.has(word)]
    if lacking or not view.sees("model"):
        raise NotApplicable("Not rehearsed: the adversary has no " + (lacking[0] if lacking else "model"))
    if any(message.kind == "aggregate" for message in messages) or len({m.kind for m in messages}) > 1:
        raise NotApplicable("Not rehearsed: only sums were seen")
    training = _training(view, messages)
    auxiliary: Examples = view.knows("aux_data")
    classes = int(view.public["classes"] or 0)
    held = torch.bincount(auxiliary.y, minlength=classes)
    if len(held) != classes or bool((held == 0).any()):
        raise NotApplicable("Not rehearsed: the auxiliary data lack some class, or have others")
    model: nn.Module = view.knows("architecture")().to(CPU)  # the workshop brings it to the view's device
    own = {name: tensor.shape for name, tensor in state_of(model).items()}
    starts = {message.round: dict(message.tensors) for message in view.get("model")}
    starts = {number: start for number, start in starts.items() if {n: t.shape for n, t in start.items()} == own}
    if not {message.round for message in messages} <= starts.keys():
        raise NotApplicable("Not rehearsed: the models were not recorded, or are of another architecture")
    updates = [SentUpdate(m.round, m.sender, int(m.info.get("examples", 0)), dict(m.tensors)) for m in messages]
    if len(messages) > MOST_MESSAGES:
        raise NotApplicable(f"Not rehearsed: {len(messages)} messages are too many")
    if not all(1 < update.samples <= MOST_SAMPLES for update in updates):
        raise NotApplicable("Not rehearsed: clients of such sizes are not rehearsed")
    defenses = tuple(view.knows("defense")) if view.has("defense") else ()
    for defense in defenses:
        training = defense.local(training)
    shop = Workshop(model, training, auxiliary, defenses, view.device)
    weight, bias = str(view.public["head_weight"]), view.public.get("head_bias")
    bias = bias if all(bias in message.tensors for message in messages) else None
    try:
        paid = flops if view.device == CPU else GPU_IS_FASTER * flops
        plan = affordable(shop, max(update.samples for update in updates) * training.epochs, paid)
        scenes = {number: _scene(shop, starts[number], weight, bias, classes) for number in {u.round for u in updates}}
    except (AttributeError, RuntimeError, ValueError, TypeError) as error:
        raise NotApplicable("Not rehearsed: the architecture cannot be run on the auxiliary data") from error
    same = training.algorithm == "fedavg"
    return RehearsalPlan(scenes, updates, list(messages), classes, plan, same)


def _scene(shop: Workshop, start: Tensors, weight: str, bias: str | None, classes: int) -> RoundScene:
    decays = shop.training.weight_decay > 0 or bool(shop.defenses)  # noise makes weights rise too
    reader = HeadReader.of(shop.model, start, weight, bias, shop.auxiliary, classes, decays=decays)
    return RoundScene(shop, reader, start)


def _training(view: View, messages: Sequence[Message]) -> LocalTraining:
    """How the clients train; whether batch norm took their batches is seen by its statistics, which then move."""
    known = KnownOptimizer.known_to(view)
    if known.name not in get_args(OptimizerName):
        raise NotApplicable(f"Not rehearsed: nobody here has the clients' optimizer, {known.name}")
    statistics = [t for m in messages for name, t in m.tensors.items() if name.endswith("running_mean")]
    frozen = bool(statistics) and not any(bool(tensor.any()) for tensor in statistics)
    training = LocalTraining(
        optimizer=known.name,  # type: ignore[arg-type]
        lr=view.knows("local_lr"),
        momentum=known.momentum,
        weight_decay=known.weight_decay,
        batch_size=view.knows("batch_size"),
        epochs=view.knows("local_epochs") if view.has("local_epochs") else 1,
        batch_norm="eval" if frozen else "train",
    )
    if messages[0].kind == "gradient":
        most = max(int(message.info.get("examples", 1)) for message in messages)
        return replace(training, algorithm="fedsgd", batch_size=most, epochs=1)
    return training


def affordable(shop: Workshop, samples: int, flops: float) -> RehearsalSizes:
    """As many rehearsals of clients with so many samples as an update is worth; fewer where they are dear.

    `flops` is what the fewest that tell anything may cost. Dear is what takes more than ENOUGH_FLOPS of a core, and
    clients that are trained one by one.
    """
    once = operations_of_training(shop.model, shop.auxiliary.x[:1], samples, shop.training.batch_size)
    if flops < LEAST_NEAR * once:  # before anything is trained to see how fast it goes
        raise NotApplicable("Not rehearsed: the model is too large to be trained so often")
    sizes = RehearsalSizes()
    on_gpu = shop.device != CPU
    if on_gpu:
        sizes = replace(sizes, layers=GPU_LAYERS)
    if not shop.is_stacked or (not on_gpu and sizes.near * once > ENOUGH_FLOPS):
        sizes = replace(sizes, broad=sizes.broad // 2, near=LEAST_NEAR)
    return sizes


def operations_of_training(model: nn.Module, example: torch.Tensor, samples: int, batch_size: int) -> int:
    """Of one client with so many samples; `example` is a batch of one."""
    model.eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(example)
    arithmetic = 3 * counter.get_total_flops() * samples  # back is twice as far as forth
    parameters = sum(parameter.numel() for parameter in model.parameters())
    steps = -(-samples // batch_size)
    return max(arithmetic, MOVED * parameters * steps, 1)
