"""What each update says by itself about its label counts, by the reading with most evidence; nothing is rehearsed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defenses.norms import norm_of
from fedspill.leaks.labels.counts.constants import COUNTS
from fedspill.leaks.labels.counts.defended import read_defended
from fedspill.leaks.labels.counts.defended_layers import look
from fedspill.leaks.labels.counts.layer_signals import linear_signals
from fedspill.leaks.labels.counts.readings import (
    ReadCounts,
    ReadingsOf,
    bias_from_weights,
    counts_by_pulls,
    is_trained,
    read,
    words_of,
)
from fedspill.leaks.labels.counts.returning_clients import read_together, weight_of_first
from fedspill.leaks.labels.counts.span_counts import SpanCounts
from fedspill.leaks.labels.counts.span_reader import SpanReader
from fedspill.leaks.labels.counts.two_classes import read_two_classes
from fedspill.leaks.labels.counts.update_alone import HeadChange, wire_outlook
from fedspill.leaks.labels.counts.whole_counts import Steps
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.llbg import llbg_counts
from fedspill.messages import Kind, Message
from fedspill.observe.known_defenses import KnownDefenses
from fedspill.observe.last_layer import LastLayerGradients, is_update, read_last_layer
from fedspill.observe.lazy_tensors import LazyTensors
from fedspill.observe.local_changes import KnownOptimizer
from fedspill.observe.probe import ModelAnswers, ModelProbe, can_probe
from fedspill.trace import Origin, View
from fedspill.training import gradient


def read_each_update(view: View, rng: torch.Generator) -> LabelCounts:
    """Solves the bias equation for whole counts instead of peeling labels off greedily.

    It uses what the adversary has: the model and auxiliary data (labelled for trained models) to measure the mean
    probability, the update alone otherwise. Of a trained model the hidden layers are read too, as far as the update
    looks like what the adversary rehearsed. Momentum and weight decay are taken out where the optimizer is known;
    several clients' sum is read as one large batch; without a last bias the weight gradient is read. Each origin's
    confidence is the expected share of labels that are right.
    """
    layer = read_last_layer(view)
    optimizer = KnownOptimizer.known_to(view)
    probe = ModelProbe.of(view, layer.classes) if can_probe(view) else None
    if probe is not None and not {origin.round for origin in layer.of} <= probe.models.keys():
        probe = None  # the models were not recorded
    summing = optimizer.name == "sgd" and not optimizer.weight_decay  # decay moves a layer out of its span
    spans = SpanReader(probe, rng) if probe is not None and probe.labels is not None and summing else None
    messages = messages_of(view, layer)
    wire = KnownDefenses.known_to(view)
    bias = None if layer.bias is None else _plain_steps(layer, layer.bias, optimizer, view)
    plain = optimizer.name == "sgd" and _has_plain_head(view) and (bias is None or _adds_up(layer, bias))
    clients: list[Hashable] = list(layer.of)
    if wire is None and _are_same_samples(view, messages.values()):
        clients = [(origin.sender, int(n)) for origin, n in zip(layer.of, layer.samples, strict=True)]
    if layer.classes == 2 and probe is None and wire is None:
        each = _two_classes(view, layer, bias, messages, clients, plain=plain)
    else:
        each = _by_evidence(view, layer, bias, messages, probe, spans, wire, optimizer, plain=plain)
    each = read_together(each, layer.samples, clients)
    routes = list(each.routes)
    notes = [*layer.notes, *_notes(routes, optimizer, no_bias=bias is None)]
    notes += [] if wire is None else [f"the defense is known and reckoned with: {wire.words()}"]
    return LabelCounts(
        layer.of, each.counts, notes, confidence=each.expected, sure=each.sure, routes=each.routes, low=each.low,
        high=each.high,
    )  # fmt: skip


def _two_classes(
    view: View,
    layer: LastLayerGradients,
    bias: Tensor | None,
    messages: dict[Origin, Message],
    clients: Sequence[Hashable],
    *,
    plain: bool,
) -> ReadCounts:
    """Of all origins, where there are two classes and no data; equal `clients` hold the same samples."""
    answers = [_by_itself(view, [messages[origin]]) for origin in layer.of]
    rounds = [origin.round for origin in layer.of]
    seen = layer.weight_sums if bias is None else bias  # features are mostly of one sign
    return read_two_classes(seen, layer.schedules, rounds, answers, clients, plain=plain and bias is not None)


def _by_evidence(
    view: View,
    layer: LastLayerGradients,
    bias: Tensor | None,
    messages: dict[Origin, Message],
    probe: ModelProbe | None,
    spans: SpanReader | None,
    wire: KnownDefenses | None,
    optimizer: KnownOptimizer,
    *,
    plain: bool,
) -> ReadCounts:
    """Of all origins, each by the reading that makes what was seen most likely."""
    pulls_weight = 0.5 if bias is None else _pulls_weight(layer, bias)
    through: list[ReadCounts] = []
    readings: list[ReadingsOf] = []
    chunks = list(_chunks(layer))
    for rows in chunks:
        steps = Steps.of(layer.schedules[int(rows[0])])
        sent = [messages[layer.of[row]] for row in rows.tolist()]
        seen = None if probe is None else probe.answers(sent)
        if wire is not None:
            through.append(_through(wire, layer, rows, messages, probe, seen, view, plain=plain))
            continue
        answers = _by_itself(view, sent) if seen is None else seen
        observed = bias_from_weights(layer.weight_sums[rows], steps, answers) if bias is None else bias[rows]
        hidden = None if spans is None or seen is None else _spans(spans, sent, steps, seen, optimizer, view)
        readings.append(
            read(
                observed, steps, answers, plain=plain, spans=hidden, scaled=bias is not None, pulls=layer.pulls[rows],
                pulls_weight=pulls_weight,
            )
        )  # fmt: skip
    order = torch.cat(chunks)
    if wire is None:
        each = ReadingsOf.joined(readings).believed([layer.of[row].round for row in order.tolist()])
    else:
        each = ReadCounts.joined(through)
    return each.rows(order.argsort())


def _has_plain_head(view: View) -> bool:
    """Whether the last layer is features @ weight + bias, as far as anyone has said otherwise."""
    return view.public.get("head_is_plain") is not False


def _adds_up(layer: LastLayerGradients, bias: Tensor) -> bool:
    """Whether plain SGD at the stated learning rate can have made such updates.

    A step's bias gradient is a mean of probabilities minus labels: what is negative in it adds up to one at most. Where
    more than a few updates have more, the steps were longer than stated: momentum, Adam, another rate.
    """
    steps = torch.tensor([Steps.of(schedule).number for schedule in layer.schedules])
    beyond = -bias.clamp_max(0).sum(1) > COUNTS.rounding * steps
    return float(beyond.double().mean()) <= COUNTS.liars


def _pulls_weight(layer: LastLayerGradients, bias: Tensor) -> float:
    """How much of counts in proportion to what is negative to take beside LLBG's, where both are mixed."""
    unit = torch.tensor([float(Steps.of(schedule).unit) for schedule in layer.schedules])
    samples = torch.tensor([Steps.of(schedule).samples for schedule in layer.schedules])
    untrained = llbg_counts(bias, unit, samples, torch.zeros_like(bias)).double()
    first, second = (counts / samples[:, None] for counts in (counts_by_pulls(layer.pulls, samples), untrained))
    return weight_of_first(first, second, [origin.sender for origin in layer.of])


def _spans(
    spans: SpanReader, sent: Sequence[Message], steps: Steps, seen: ModelAnswers, optimizer: KnownOptimizer, view: View
) -> SpanCounts:
    """What the hidden layers of some origins with one schedule say, where the model is trained."""
    scale = float(steps.unit)
    if is_update(sent[0]):
        passes = int(view.knows("local_epochs")) if view.has("local_epochs") else 1
        number = passes * steps.number
        scale *= -number / optimizer.unit_steps(number) / (float(view.knows("local_lr")) * passes)
    return spans.read(sent, steps.samples, scale, is_trained(seen, spans.probe.classes))


def _by_itself(view: View, sent: Sequence[Message]) -> ModelAnswers | None:
    """What a plain last layer says without any data, where the models that clients got were seen."""
    if not _has_plain_head(view):
        return None
    weight, bias = str(view.public.get("head_weight")), str(view.public.get("head_bias"))
    before = {message.round: message.tensors for message in view.get("model")} if view.sees("model") else {}
    heads = []
    for message in sent:
        own = before.get(message.round, {})
        if any(
            name not in own or name not in message.tensors or own[name].shape != message.tensors[name].shape
            for name in (weight, bias)
        ):
            return None
        change = message.tensors[weight], message.tensors[bias]
        heads.append(HeadChange(own[weight], own[bias], *change, is_change=is_update(message)))
    return wire_outlook(heads)


def _through(
    wire: KnownDefenses,
    layer: LastLayerGradients,
    rows: Tensor,
    messages: dict[Origin, Message],
    probe: ModelProbe | None,
    outlook: ModelAnswers | None,
    view: View,
    *,
    plain: bool,
) -> ReadCounts:
    """The reading of some origins with one schedule, behind defenses that the adversary knows."""
    sent = [messages[layer.of[row]] for row in rows.tolist()]
    schedule, steps = layer.schedules[int(rows[0])], Steps.of(layer.schedules[int(rows[0])])
    lr, updates = float(view.knows("local_lr")), is_update(sent[0])
    scale = -1.0 / (lr * schedule.epochs) if updates else 1.0
    weight, bias = str(view.public["head_weight"]), view.public.get("head_bias")
    head = (weight, bias if isinstance(bias, str) and layer.bias is not None else None)
    rounds = {message.round for message in sent}
    signals = {r: linear_signals(probe.models[r], probe.inputs, layer.classes) if probe else [] for r in rounds}
    gradients = [_precise(message.tensors, scale) for message in sent]
    clients = [int(message.info.get("clients", 1)) for message in sent]
    noise = wire.noise(steps.number, schedule.epochs, lr, updates) / max(clients) ** 0.5
    seen = look(
        wire,
        gradients,
        noise,
        head,
        [[s for s in signals[m.round] if s.weight in m.tensors] for m in sent],
        steps,
        [wire.left_whole(message.tensors) for message in sent],
    )
    same = _are_same_samples(view, sent)
    names = [message.sender if same else str(i) for i, message in enumerate(sent)]
    numbers = {name: index for index, name in enumerate(dict.fromkeys(names))}
    expected = None
    if probe is not None and wire.effect.step_clip is not None:
        models = [probe.models[message.round] for message in sent]
        expected = partial(expected_scale, models, probe.inputs, int(steps.unit), wire.effect.step_clip)
    return read_defended(wire, seen, steps, outlook, [numbers[n] for n in names], expected, plain=plain)


def _are_same_samples(view: View, sent: Iterable[Message]) -> bool:
    """A client that sends updates of all its samples in every round holds the same ones each time."""
    return view.public.get("algorithm", "fedavg") == "fedavg" and all(message.kind == "update" for message in sent)


def _precise(tensors: Mapping[str, Tensor], scale: float) -> LazyTensors:
    """`scale` times each tensor, in float64."""
    return LazyTensors(tensors, lambda name: scale * tensors[name].double())


def expected_scale(
    models: Sequence[nn.Module], inputs: Tensor, batch: int, clip: float, index: int, counts: Tensor
) -> float:
    """What clipping every step to `clip` leaves of a batch with such label counts, on the adversary's own inputs."""
    model, rng = models[index], torch.Generator().manual_seed(0)
    shares = counts.double() / counts.sum().clamp_min(1)
    left = []
    for _ in range(COUNTS.norm_batches):
        rows = torch.randint(len(inputs), (batch,), generator=rng)
        labels = torch.multinomial(shares, batch, replacement=True, generator=rng)
        device = next(model.parameters()).device
        norm = norm_of(gradient(model, Examples(inputs[rows].to(device), labels.to(device))))
        left.append(min(1.0, clip / max(norm, 1e-12)))
    return sum(left) / len(left)


def best_reading(layer: LastLayerGradients, outlook: ModelAnswers | None = None) -> ReadCounts:
    """Counts of origins with one schedule from the last layer alone, or with an outlook."""
    assert layer.bias is not None
    return read(layer.bias, Steps.of(layer.schedules[0]), outlook, pulls=layer.pulls).each_alone()


def _chunks(layer: LastLayerGradients) -> Iterator[Tensor]:
    """Row numbers of origins with one schedule, few enough to be looked at together."""
    most = max(1, COUNTS.cells // layer.classes**2)
    for schedule in dict.fromkeys(layer.schedules):
        rows = torch.tensor([index for index, other in enumerate(layer.schedules) if other == schedule])
        yield from torch.split(rows, min(most, 64))


def messages_of(view: View, layer: LastLayerGradients) -> dict[Origin, Message]:
    kinds: tuple[Kind, ...] = ("update", "gradient", "aggregate")
    seen = [message for kind in kinds if view.sees(kind) for message in view.get(kind)]
    found = {Origin(message.round, message.sender): message for message in seen}
    return {origin: found[origin] for origin in layer.of}


def _plain_steps(layer: LastLayerGradients, bias: Tensor, optimizer: KnownOptimizer, view: View) -> Tensor:
    """The bias gradients (origins, classes) that plain SGD would have summed: momentum and weight decay taken out."""
    if optimizer.name != "sgd" or not (optimizer.momentum or optimizer.weight_decay):
        return bias
    name = str(view.public.get("head_bias"))
    models = view.get("model") if view.sees("model") else []
    starts = {message.round: message.tensors[name].double() for message in models if name in message.tensors}
    lr = float(view.knows("local_lr"))
    plain = bias.clone()
    messages = messages_of(view, layer)
    for row, (origin, schedule) in enumerate(zip(layer.of, layer.schedules, strict=True)):
        if not is_update(messages[origin]):
            continue
        plain[row] *= schedule.steps / optimizer.unit_steps(schedule.steps)
        if optimizer.weight_decay and origin.round in starts:
            middle = starts[origin.round] - 0.5 * lr * schedule.epochs * bias[row]
            plain[row] -= optimizer.weight_decay * (schedule.steps // schedule.epochs) * middle
    return plain


def _notes(routes: list[str], optimizer: KnownOptimizer, *, no_bias: bool) -> list[str]:
    """What was assumed, for the report."""
    notes = words_of(routes)
    if no_bias:
        notes.append("no last bias: read from the weight gradient, features taken as alike")
    if optimizer.name != "sgd":
        notes.append(f"{optimizer.name} rescales every step: counts are proportions of what is left")
    elif optimizer.momentum or optimizer.weight_decay:
        notes.append("momentum and weight decay taken out as the optimizer's constants say")
    return notes
