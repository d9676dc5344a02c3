"""Which of the records that a row space holds were trained on, with which labels, and whether they explain everything.

If two records differ from two others in the same way, their sums and differences are valid records too. The second
layer tells them apart: what a record makes the first layer put out must lie in the row space of the second layer's
change, exactly so after one step and nearly so after a few. The records that are chosen are then trained on, as the
client would have: only if that gives the whole update, down to rounding, are they vouched for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certificate import mismatch_up_to_scale
from fedspill.leaks.inputs.exact.gradient_rank import TruncatedSvd, truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import leading_pair, module_chain
from fedspill.leaks.inputs.exact.sample_roots import SpanCondition, find_roots, usual_scale
from fedspill.leaks.inputs.observed_gradients import AttackedMessage
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of, local_steps_of
from fedspill.leaks.inputs.search.search import one_hot

DEPENDENT_ROUNDS = 10  # of starts, where what was found cannot be taken out
APART = 1e-3  # share of a record that the records before it must leave over, for it to be a new one
ROUNDING = 2.0**-24  # of float32, relative
EXPLAINED = 8.0  # times the rounding of float32 weights that an update may differ from the one that was sent


@dataclass(frozen=True, eq=False)
class ExplainedUpdate:
    """Labels of the records, and whether training on them gives the whole update, as far as float32 shows it."""

    labels: Tensor  # (k,)
    explained: bool


def choose_records(attacked: AttackedMessage, found: Tensor, rows: TruncatedSvd, rng: torch.Generator) -> Tensor:
    """Of `found` (k, columns) as many as there were samples, the likeliest first.

    First those that fill the row space, each of them new; records that depend on each other make it smaller than their
    number, and then the likeliest of the others are among them too.
    """
    order = _by_likelihood(attacked, found, rng)
    chosen: list[int] = []
    known = rows.right.new_zeros(rows.rank, 0)
    for index in order:
        q = found[index] @ rows.right
        rest = q - known @ (known.T @ q)
        if float(rest.norm()) > APART * float(q.norm()):
            chosen.append(index)
            known = torch.cat([known, (rest / rest.norm())[:, None]], 1)
        if len(chosen) == rows.rank:
            break
    others = [index for index in order if index not in set(chosen)]
    return found[[*chosen, *others[: attacked.samples - len(chosen)]]]


def roots_of_dependent(attacked: AttackedMessage, rows: TruncatedSvd, rng: torch.Generator) -> Tensor:
    """(k, columns) samples of one step where records depend on each other, so that they cannot be peeled off in turn.

    The second layer still has a direction for each of them. Raises CannotRecover where that does not help.
    """
    pair = leading_pair(attacked.model)
    second = truncated_svd(attacked.gradients[pair.second.weight_name].double(), attacked.samples, rng)
    if attacked.steps > 1 or second is None or not rows.rank < second.rank < pair.second.weight.shape[1]:
        raise CannotRecover("the second layer does not tell records apart that depend on each other")
    bias = None if pair.first.bias_name is None else attacked.gradients[pair.first.bias_name].double()
    equation = None if bias is None else (rows.left.T @ bias) / rows.sizes
    seen = pair.first.weight @ rows.right
    condition = SpanCondition.of(seen, pair.first.bias, pair.between, second.right, equation)
    scale = usual_scale(len(rows.right))
    roots = find_roots(condition, attacked.samples, scale=scale, tolerance=1e-3, rng=rng, rounds=DEPENDENT_ROUNDS)
    return roots @ rows.right.T


def _by_likelihood(attacked: AttackedMessage, found: Tensor, rng: torch.Generator) -> list[int]:
    """Which record is likeliest by the second layer, then the next; in any order where there is no such layer."""
    try:
        pair = leading_pair(attacked.model)
    except CannotRecover:
        return list(range(len(found)))
    second = truncated_svd(attacked.gradients[pair.second.weight_name].double(), attacked.samples, rng)
    if second is None or second.rank >= pair.second.weight.shape[1]:
        return list(range(len(found)))
    bias = 0 if pair.first.bias is None else pair.first.bias
    put_out = pair.between.value(found @ pair.first.weight.T + bias)
    missed = put_out - (put_out @ second.right) @ second.right.T
    order: list[int] = (missed.norm(dim=1) / put_out.norm(dim=1).clamp_min(1e-300)).argsort().tolist()
    return order


def labels_by_last_layer(attacked: AttackedMessage, records: Tensor) -> Tensor:
    """(k,) the labels of records (k, columns): the last layer's gradient is (p - y) times features, and both are known.

    Exact after one step; after more of them nearly so, as long as the model did not move far.
    """
    chain = module_chain(attacked.model)
    last = max(place for place, (_, module) in enumerate(chain) if isinstance(module, nn.Linear))
    name, head = chain[last]
    with torch.no_grad():
        features = nn.Sequential(*(module for _, module in chain[:last]))(records)
        logits = head(features)
    gradient = attacked.gradients[f"{name}.weight"].double() / attacked.steps
    sent = torch.linalg.lstsq(features.T, gradient.T).solution * attacked.samples  # (k, logits)
    if logits.shape[1] == 1:
        binary: Tensor = ((logits.sigmoid() - sent)[:, 0] > 0.5).long()
        return binary
    labels: Tensor = (logits.softmax(1) - sent).argmax(1)
    return labels


def explain_update(attacked: AttackedMessage, records: Tensor, classes: int) -> ExplainedUpdate:
    """For records (k, columns): each label by the last layer; then all of them by the update as a whole.

    Batches that are cut at random cannot be trained on again, and then nothing is explained.
    """
    labels = labels_by_last_layer(attacked, records)
    whole_batches = attacked.schedule.batch_size >= attacked.samples
    if len(records) != attacked.samples or not whole_batches or not (attacked.plain or attacked.steps == 1):
        return ExplainedUpdate(labels, explained=False)
    model = attacked.as_client_ran
    steps = [slice(0, attacked.samples)] * attacked.steps
    trained = gradients_of(model) if attacked.steps == 1 else local_steps_of(model, steps, attacked.lr or 1.0)
    room = EXPLAINED * _rounding(attacked)

    def missed(of: Tensor) -> float:
        return mismatch_up_to_scale(trained, attacked.gradient_list, records, one_hot(of, classes).double())[0]

    least = missed(labels)
    for index in range(len(labels)):  # a label that was read wrong shows in the whole
        if least < room:
            break
        for other in range(classes):
            tried = labels.clone()
            tried[index] = other
            if other != int(labels[index]) and (now := missed(tried)) < least:
                labels, least = tried, now
    return ExplainedUpdate(labels, least < min(room, 1e-2))


def _rounding(attacked: AttackedMessage) -> float:
    """What float32 leaves of the message, relative: the rounding of gradients, and of weights in an update."""
    sent = torch.stack([g.square().sum() for g in attacked.gradient_list]).sum().sqrt()
    relative = 16 * ROUNDING
    if attacked.lr is not None:
        weights = torch.stack([p.detach().square().sum() for p in attacked.model.parameters()]).sum().sqrt()
        relative += ROUNDING * attacked.steps**0.5 * float(weights) / (attacked.lr * float(sent))
    return relative
