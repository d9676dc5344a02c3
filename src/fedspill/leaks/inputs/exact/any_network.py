"""A small batch of any network with linear layers that read inputs and another one that is fed anything made of them.

The row space V of a layer's gradient holds what the layer was fed, however often it ran and whatever it read: the
sample, a part of it, an affine map of it. Layers that together read all of a sample x leave few coordinates q to it,
and the row space V2 of a further layer's gradient holds what that was fed. So every sample solves

    (I - V2 V2^T) fed(x(q)) = 0,

whatever the network does on the way: connections around layers, gates, several paths. The layers are found by running
the network, and nothing is traced (read_by_layers.py). The further one must be fed something that tells samples from
mixtures of them: a layer that reads the input too, or a layer norm of the first, holds every mixture of samples as well
as the samples.

What a sample that was found gives of the whole gradient is known by running the network on it, with the label for which
the first layer's gradient holds what it sends back. It is taken out, and the rest is sought in what remains. All
samples together are vouched for if they give the whole gradient, each with a whole number of shares of the batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.between_layers import PerSample
from fedspill.leaks.inputs.exact.certificate import mismatch_up_to_scale, times_in_batch
from fedspill.leaks.inputs.exact.gradient_rank import TruncatedSvd, leading_directions, room, truncated_svd
from fedspill.leaks.inputs.exact.read_by_layers import (
    SAME,
    Call,
    Readings,
    fed_by_call,
    is_determined,
    readings_of,
    sample_itself,
    sound_calls,
    tells_mixtures,
)
from fedspill.leaks.inputs.exact.reckoned_time import OUT_OF_TIME, TimeLeft
from fedspill.leaks.inputs.exact.sample_roots import SpanCondition, descend, find_roots, is_known, usual_scale
from fedspill.leaks.inputs.exact.two_linear_layers import CLEAN, SCALES
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.search import one_hot
from fedspill.training import is_single

MOST_SAMPLES = 24  # each is one more direction that every start of the search has to be differentiated along
MOST_UNKNOWNS = 96  # coordinates of a sample, for the same reason
MOST_UNREAD = 256  # values of a sample that no linear layers read, which are then unknowns themselves
USELESS = 0.5  # share of the whole gradient that samples may not leave and still be an answer
IDLE = 2  # searches in a row that find nothing new, to give up after
EXPLAINED = 1e-3  # share of the whole gradient that certified samples may leave
SHOWS = 0.03  # share of its own part of the gradient that may be left for a sample to be vouched for
ROUTE = "a layer that reads inputs, and one that is fed what is made of them"


@dataclass(frozen=True, eq=False)
class ReadNetwork:
    """The network, which calls read its inputs, and which ones tell samples from mixtures of them."""

    model: nn.Module  # float64, evaluation mode
    readings: Readings
    further: Mapping[Call, float]  # with the usual size of what each is fed
    directions: Mapping[str, TruncatedSvd]  # by layer, of the gradients of all samples
    distinct: int  # samples, each counted once
    alone: bool  # whether the sample follows from what linear layers put out, trained or frozen

    @property
    def first(self) -> str:
        """The layer of which it is asked what a sample sends back to it."""
        return [*self.readings.calls, *self.further][0].layer

    def parts(self, gradients: Mapping[str, Tensor], left: int, rng: torch.Generator) -> Mapping[str, TruncatedSvd]:
        """The directions that `left` of the samples have in these gradients, by layer."""
        if left == self.distinct:
            return self.directions
        each = {name: svd.rank * left // self.distinct for name, svd in self.directions.items()}
        return {name: leading_directions(gradients[f"{name}.weight"], rank, rng) for name, rank in each.items()}


def batch_of_any_network(
    attacked: AttackedMessage, shape: tuple[int, ...], classes: int, rng: torch.Generator, seconds: float = 120.0
) -> RecoveredInputs:
    """All samples of one step; raises CannotRecover where the network has no such layers, or batches mix.

    `seconds` are reckoned (reckoned_time.py).
    """
    size = attacked.samples
    if attacked.steps != 1 or attacked.norms.by_batch:
        raise CannotRecover("only one step is read, in which samples do not mix")
    unsent = [n for n, p in attacked.model.named_parameters() if p.requires_grad and n not in attacked.gradients]
    if unsent:
        raise CannotRecover(f"the message holds nothing of {unsent[0]}, so that samples found cannot be proven")
    if size > MOST_SAMPLES:
        raise CannotRecover(f"{size} samples are more than are sought at once")
    network = _read_network(attacked, shape, rng)
    time = TimeLeft(seconds)
    x, labels = _peeled(attacked, network, classes, rng, time)
    if not len(x):
        why = f": {OUT_OF_TIME}" if time.is_over else ""
        return RecoveredInputs.none(f"no sample of {size} is a root of the span condition{why}", tried=True)
    answer = _judged(attacked, network, x, labels, classes)
    return replace(answer, why=f"{answer.why}; {OUT_OF_TIME}") if answer.why and time.is_over else answer


def _judged(
    attacked: AttackedMessage, network: ReadNetwork, x: Tensor, labels: Tensor, classes: int
) -> RecoveredInputs:
    """Samples x (k, *shape) as often as each was in the batch, vouched for if they explain the whole gradient."""
    size, nobody = attacked.samples, torch.zeros(len(x), dtype=torch.bool)
    if len(x) < network.distinct:
        why = f"{len(x)} of {network.distinct} samples are roots of the span condition, too few to vouch for them"
        return RecoveredInputs(x, nobody, None, why, route=ROUTE)
    sent = _sent(network.model, network.first, x, labels)
    bias = attacked.gradients.get(f"{network.first}.bias")
    times = times_in_batch(_shares(network.directions[network.first], sent, bias), size)
    if times is None:
        why = f"the gradient tells {network.distinct} of {size} samples apart, and not which of them is there how often"
        return RecoveredInputs(x, nobody, labels, why, route=ROUTE)
    # One that counts twice may be the mean of two samples that send back the same.
    x, labels, once = (part.repeat_interleave(times, 0) for part in (x, labels, times == 1))
    targets = one_hot(labels, classes).double()
    whole = mismatch_up_to_scale(gradients_of(attacked.model), attacked.gradient_list, x, targets)[0]
    if whole > USELESS:
        return RecoveredInputs.none("the samples that solve the span condition do not explain the gradient", tried=True)
    why = _why_not_sure(attacked, network, x)
    certified = _shows(attacked, x, targets, whole) & (whole < EXPLAINED) & (not why) & once
    if not why and not bool(once.all()):
        why = "what counts twice may be a copy, or the mean of two samples that send back the same"
    elif not why and not bool(certified.all()):
        why = f"the samples found leave {whole:.1e} of the gradient, which is too much to vouch for all of them"
    return RecoveredInputs(x, certified, labels, why, unexplained=whole, route=ROUTE)


def _why_not_sure(attacked: AttackedMessage, network: ReadNetwork, x: Tensor) -> str:
    """Why samples that explain the whole gradient may not be those of the batch, in words; nothing where they are."""
    calls = [*network.readings.calls, *network.further]
    if not network.alone:
        return "what is made of inputs before a linear layer reads them may be the same for others"
    if not bool(is_determined(network.model, calls, x).all()):
        return "the layers that were sent do not see all of an input"
    # Without a bias a sample's size follows from that of the gradient alone, which clipping changes.
    if any(call.bias not in attacked.gradients for call in network.readings.calls or calls):
        return "the layers that read inputs have no bias, whose gradient gives the scale of a sample"
    return "the network puts out the same when parts of a sample change places" if _order_is_open(network, x) else ""


def _peeled(
    attacked: AttackedMessage, network: ReadNetwork, classes: int, rng: torch.Generator, time: TimeLeft
) -> tuple[Tensor, Tensor]:
    """(k, *shape) the samples that are found, and their labels; those found are taken out before others are sought."""
    whole, basis, spread, tolerance = _condition(attacked.gradients, network, network.distinct, rng)
    rest, found, labels = attacked.gradients, basis.new_zeros(0, basis.shape[1]), torch.zeros(0, dtype=torch.int64)
    idle, layer = 0, network.first
    while len(found) < network.distinct and idle < IDLE and not time.is_over:
        left = network.distinct - len(found)
        condition, rows, spread, near = _condition(rest, network, left, rng)
        idle += 1
        q = basis.new_zeros(0, rows.shape[1])
        for share in SCALES:
            scale = share * usual_scale(len(rows))
            q = find_roots(
                condition, left, scale=scale, tolerance=max(tolerance, near), rng=rng, spread=spread, known=q, time=time
            )
            if len(q) >= left or time.is_over:
                break
        if not len(q):
            continue
        y, residual = descend(whole, whole.y(q @ rows.T @ basis), 8, weighted=False)
        for place in residual.argsort().tolist():
            root = whole.q(y[place])
            new = float(residual[place]) < tolerance and not is_known(root, found)
            if new and len(found) < network.distinct:
                found, idle = torch.cat([found, root[None]]), 0
        if not idle:
            x = network.readings.samples(found @ basis.T)
            labels = _labels(network.model, layer, x, network.directions[layer].left, classes)
            rest = _without(attacked, x, one_hot(labels, classes).double())
    return network.readings.samples(found @ basis.T), labels


def _without(attacked: AttackedMessage, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The gradients without what samples x give of them."""
    own = gradients_of(attacked.model)(x[None], targets[None])
    names = [name for name, p in attacked.model.named_parameters() if p.requires_grad]
    share = len(x) / attacked.samples
    given = {name: share * gradient[0].detach() for name, gradient in zip(names, own, strict=True)}
    return {name: attacked.gradients[name] - gradient for name, gradient in given.items()}


def _condition(
    gradients: Mapping[str, Tensor], network: ReadNetwork, left: int, rng: torch.Generator
) -> tuple[SpanCondition, Tensor, Tensor | None, float]:
    """The span condition of so many samples in these gradients, the basis (features, unknowns) of its coordinates, the
    size of the gradient along each if it tells any, and what a root may leave.
    """
    parts = network.parts(gradients, left, rng)
    read, told = [parts[call.layer] for call in network.readings.calls], [parts[call.layer] for call in network.further]
    unread = torch.eye(math.prod(network.readings.shape), dtype=torch.float64)
    basis = _side_by_side([part.right for part in read]) if read else unread
    equations, values = _equations(gradients, network.readings, read, basis)
    counted = [_counted_once(gradients.get(call.bias), part) for call, part in zip(network.further, told, strict=True)]

    def fed(features: Tensor) -> Tensor:
        """What each further call is fed, in its usual size, and what the gradient of its bias says beside."""
        caught = fed_by_call(network.model, network.readings.samples(features.clone()))
        put = []
        for (call, usual), once in zip(network.further.items(), counted, strict=True):
            put.append(caught[call] / usual)
            if once is not None:
                put.append((caught[call] @ once - 1)[:, None])
        return torch.cat(put, 1)

    rows = [part.right for part in told]
    none = torch.zeros(1, 0, dtype=torch.float64)  # of what a bias says nothing may be left
    spaces = [[row] if once is None else [row, none] for row, once in zip(rows, counted, strict=True)]
    row_space = _side_by_side([space for both in spaces for space in both])
    condition = SpanCondition.within(basis, None, PerSample(fed), row_space, equations, values)
    spread = torch.cat([part.sizes / part.sizes[0] for part in read]) if read else None
    tail = max((part.tail for part in read), default=0.0) + max(part.tail for part in told)
    return condition, basis, spread, min(0.05, max(CLEAN, 2 * tail))


def _side_by_side(blocks: list[Tensor]) -> Tensor:
    """A matrix with these on its diagonal and zeros elsewhere."""
    whole = blocks[0].new_zeros(sum(len(block) for block in blocks), sum(block.shape[1] for block in blocks))
    row = column = 0
    for block in blocks:
        whole[row : row + len(block), column : column + block.shape[1]] = block
        row, column = row + len(block), column + block.shape[1]
    return whole


def _counted_once(bias: Tensor | None, part: TruncatedSvd) -> Tensor | None:
    """(features,) whose product with what the layer is fed is 1 for every sample, by the gradient of its bias."""
    return None if bias is None else part.right @ ((part.left.T @ bias.double()) / part.sizes)


def _equations(
    gradients: Mapping[str, Tensor], readings: Readings, read: list[TruncatedSvd], basis: Tensor
) -> tuple[Tensor, Tensor]:
    """(e, unknowns) and (e,): what every sample's coordinates fulfil.

    The gradient of a bias counts every sample once, and layers that read the same part of a sample must agree on it.
    """
    rows, values = [basis.new_zeros(0, basis.shape[1])], [basis.new_zeros(0)]
    start = 0
    for call, part in zip(readings.calls, read, strict=True):
        once = _counted_once(gradients.get(call.bias), part)
        if once is not None:
            row = basis.new_zeros(1, basis.shape[1])
            row[0, start : start + part.rank] = part.right.T @ once
            rows.append(row / row.norm())
            values.append(1 / row.norm()[None])
        start += part.rank
    if readings.matrix is not None and readings.inverse is not None and len(readings.matrix) > len(readings.inverse):
        outside = torch.eye(len(basis), dtype=basis.dtype) - readings.matrix @ readings.inverse
        rows.append(outside @ basis)
        values.append(outside @ readings.offset)
    return torch.cat(rows), torch.cat(values)


def _read_network(attacked: AttackedMessage, shape: tuple[int, ...], rng: torch.Generator) -> ReadNetwork:
    """The first calls, in running order, that read all of an input, and all others that have enough room."""
    size = attacked.samples
    model = copy.deepcopy(attacked.model).requires_grad_(False)
    probe = torch.randn(3, *shape, generator=rng, dtype=torch.float64)
    seen = sound_calls(model, probe)
    times: dict[str, int] = {}
    for call in seen:
        times[call.layer] = times.get(call.layer, 0) + 1
    directions: dict[str, TruncatedSvd] = {}
    for name, often in times.items():
        gradient = attacked.gradients.get(f"{name}.weight")
        # A gate of a few units, or a head, does not hold samples apart: others may.
        if gradient is not None and room(gradient) > size:
            found = truncated_svd(gradient, None, rng) or truncated_svd(gradient, often * size, rng)
            if found is not None and found.rank < room(gradient):
                directions[name] = found
    distinct = min(size, max((svd.rank // times[name] for name, svd in directions.items()), default=0))
    # A gradient with fewer directions than samples does not hold what the layer was fed for each.
    directions = {name: svd for name, svd in directions.items() if svd.rank >= times[name] * distinct}
    roomy = [call for call in seen if call.layer in directions]
    readings = readings_of(model, roomy, probe, seen)
    if readings is None and math.prod(shape) > MOST_UNREAD:
        raise CannotRecover(f"no linear layers with room for {size} samples read all of the input itself")
    readings = readings or sample_itself(shape)
    if sum(directions[call.layer].rank for call in readings.calls) > MOST_UNKNOWNS:
        raise CannotRecover(f"the layers that read inputs do not tell {size} samples apart")
    others = [call for call in roomy if call not in readings.calls]
    if readings.calls:  # what reads the input as they do holds every mixture of samples too
        others = [call for call in others if tells_mixtures(model, call, shape, rng)]
    elif not others or not bool(is_determined(model, others, probe).all()):
        raise CannotRecover(f"layers with room for {size} samples do not see all of an input")
    equations = sum(seen[call].shape[1] - directions[call.layer].rank for call in others)
    unknowns = sum(directions[call.layer].rank for call in readings.calls) or math.prod(shape)
    if equations < unknowns:
        raise CannotRecover(
            f"layers with a direction for each of {size} samples give {equations} equations for {unknowns} unknowns"
        )
    further = {call: float(seen[call].norm(dim=1).mean()) for call in others}
    alone = bool(readings.calls) or readings_of(model, [*seen], probe, seen) is not None
    return ReadNetwork(model, readings, further, directions, distinct, alone)


def _sent(model: nn.Module, layer: str, x: Tensor, labels: Tensor) -> Tensor:
    """(n, rows) what samples of these labels send back to a layer, in all of its calls together."""
    return _sent_by_label(model, layer, x, [labels])[0]


def _sent_by_label(model: nn.Module, layer: str, x: Tensor, labels: list[Tensor]) -> list[Tensor]:
    """The same for several labels (n,) of each sample."""
    module = model.get_submodule(layer)
    assert isinstance(module, nn.Linear)
    added = x.new_zeros(len(x), module.out_features).requires_grad_()
    hook = module.register_forward_hook(lambda _, fed, out: out + added)
    try:
        with torch.enable_grad():
            logits = model(x)
            logits = logits[:, None] if logits.ndim == 1 else logits
    finally:
        hook.remove()
    back: list[Tensor] = []
    for label in labels:
        if is_single(logits):
            residuals = torch.sigmoid(logits.detach()) - label[:, None].to(logits)
        else:
            residuals = torch.softmax(logits.detach(), 1) - nn.functional.one_hot(label, logits.shape[1]).to(logits)
        back += torch.autograd.grad((logits * residuals).sum(), [added], retain_graph=True)
    return back


def _labels(model: nn.Module, layer: str, x: Tensor, columns: Tensor, classes: int) -> Tensor:
    """(n,) the labels for which what samples x send back lies best in the column space (rows, r) of the gradient."""
    outside = []
    for sent in _sent_by_label(model, layer, x, [torch.full((len(x),), label) for label in range(classes)]):
        outside.append((sent - (sent @ columns) @ columns.T).norm(dim=1) / sent.norm(dim=1).clamp_min(1e-300))
    return torch.stack(outside, 1).argmin(1)


def _shares(directions: TruncatedSvd, sent: Tensor, bias: Tensor | None) -> Tensor:
    """(k,) how often each sample is in the batch, but for a common factor, by what it sends back (k, rows)."""
    if bias is None:
        return torch.ones(len(sent), dtype=sent.dtype)
    given, whole = (sent @ directions.left).T, directions.left.T @ bias.double()
    shares: Tensor = torch.linalg.lstsq(given, whole[:, None]).solution[:, 0]
    return shares


def _shows(attacked: AttackedMessage, x: Tensor, targets: Tensor, whole: float) -> Tensor:
    """(n,) whether an error of the sample would show: what it gives of the gradient stands out of what is left."""
    own = []
    for place in range(len(x)):
        one = gradients_of(attacked.model)(x[None, place : place + 1], targets[None, place : place + 1])
        own.append(sum(float(gradient.detach().square().sum()) for gradient in one) ** 0.5 / len(x))
    seen = sum(float(gradient.square().sum()) for gradient in attacked.gradient_list) ** 0.5
    return torch.tensor([whole * seen < SHOWS * part for part in own])


def _order_is_open(network: ReadNetwork, x: Tensor) -> bool:
    """Whether other samples put out the same: those with parts exchanged that one layer reads."""
    with torch.no_grad():
        out = network.model(x)
        others = [network.model(other) for other in network.readings.swapped(x)]
    return any(bool(((other - out).norm(dim=-1) <= 1e3 * SAME * out.norm(dim=-1)).any()) for other in others)
