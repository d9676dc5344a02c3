"""Exact recovery of one attacked message: the route that its network allows, and a certificate for each sample."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.affine_front import AffineFront
from fedspill.leaks.inputs.exact.any_network import batch_of_any_network
from fedspill.leaks.inputs.exact.behind_convolutions import batch_behind_convolutions, has_convolutions
from fedspill.leaks.inputs.exact.certificate import (
    certify,
    copies,
    counts_once,
    found_again,
    is_scale_free,
    mismatch_up_to_scale,
    scales_without_bias,
)
from fedspill.leaks.inputs.exact.convolution_chain import single_sample
from fedspill.leaks.inputs.exact.epochs_behind_convolutions import epochs_behind_convolutions
from fedspill.leaks.inputs.exact.explained_update import EXPLAINED, is_sgd, room_for_rounding
from fedspill.leaks.inputs.exact.leading_layers import LayerPair, LinearLayer, leading_pair, module_chain
from fedspill.leaks.inputs.exact.local_steps import follow_local_steps, pair_gradients_in
from fedspill.leaks.inputs.exact.many_epochs import recover_many_epochs
from fedspill.leaks.inputs.exact.match_features import sample_by_features
from fedspill.leaks.inputs.exact.one_softmax_layer import only_layer, recover_softmax_batch
from fedspill.leaks.inputs.exact.read_by_layers import SAME
from fedspill.leaks.inputs.exact.two_linear_layers import RootSearchEffort, recover_batch
from fedspill.leaks.inputs.exact.weight_norm import with_made_weights
from fedspill.leaks.inputs.exact.wide_batches import network_above
from fedspill.leaks.inputs.observed_gradients import AttackedMessage, RecoveredInputs
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.search import one_hot

# A sample is certified when what the network sends back for it is this near to the delta that was solved for with it.
CERTAIN = 0.02
# The routes for one sample, each with the share of the whole gradient that a certified sample may leave unexplained.
# Solving layer by layer needs the lower bound, since saturated units hide errors of the sample. Matching features needs
# the higher one, since a rectifier whose input is near zero may switch and then even a perfect sample leaves more.
ROUTES = ((single_sample, 1e-3), (sample_by_features, 1e-2))


def recover_exactly(
    attacked: AttackedMessage,
    shape: tuple[int, ...] | None,
    classes: int,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> RecoveredInputs:
    """Exact recovery where the network and the number of samples allow it; else the answer says why not."""
    if attacked.steps == 1:
        attacked = replace(attacked, gradients=with_made_weights(attacked.model, attacked.gradients))
    front = AffineFront.of(attacked, shape)
    if front is not None:
        return front.undone(recover_exactly(front.behind, front.shape, classes, effort, rng))
    answer = _by_its_route(attacked, shape, classes, effort, rng)
    proven = _as_it_runs(attacked, answer)
    return answer if proven is answer else _of_any_network(attacked, proven, shape, classes, effort, rng)


def _as_it_runs(attacked: AttackedMessage, answer: RecoveredInputs) -> RecoveredInputs:
    """Withdraws certificates where the network does something else with a sample than its parts in a row.

    A forward that branches is traced along one branch, and samples may take another.
    """
    if not bool(answer.certified.any()):
        return answer
    try:
        parts = nn.Sequential(*(module for _, module in module_chain(attacked.model)))
    except CannotRecover:
        return answer  # found by running the network itself
    try:
        with torch.no_grad():
            traced, run = parts(answer.samples), attacked.model(answer.samples)
    except Exception:  # whatever the user's forward does with samples that it was not written for
        alike = torch.zeros_like(answer.certified)
    else:
        alike = (traced - run).flatten(1).norm(dim=1) <= SAME * run.flatten(1).norm(dim=1)
    if bool(alike[answer.certified].all()):
        return answer
    why = "the network does not run on the samples found as it was traced, so that nobody vouches for them"
    return replace(answer, certified=answer.certified & alike, why=answer.why or why)


def _by_its_route(
    attacked: AttackedMessage,
    shape: tuple[int, ...] | None,
    classes: int,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> RecoveredInputs:
    if attacked.samples == 1 and attacked.steps == 1:
        answer = _single(attacked, shape, classes)
        return answer if answer.tried else _of_any_network(attacked, answer, shape, classes, effort, rng)
    try:
        pair = leading_pair(attacked.model, mixing=bool(attacked.norms.by_batch))
    except CannotRecover as refusal:
        return _without_pair(attacked, refusal, shape, classes, effort, rng)
    try:
        _refuse_unsent(attacked, pair.first.weight_name, pair.first.bias_name, pair.second.weight_name)
        _refuse_too_many(attacked, pair)
    except CannotRecover as refusal:
        return RecoveredInputs.none(f"exact recovery does not apply: {refusal.problem}", tried=False)
    if attacked.steps == 1:
        return _batch(attacked, pair, shape, effort, rng)
    if attacked.schedule.epochs > 1 or not attacked.plain:
        flat = shape or (pair.first.weight.shape[1],)
        try:
            return recover_many_epochs(attacked, pair, flat, classes, effort, rng)
        except CannotRecover as refusal:
            return RecoveredInputs.none(f"exact recovery does not apply: {refusal.problem}", tried=False)
    return _steps(attacked, pair, shape, classes, effort, rng)


def _without_pair(
    attacked: AttackedMessage,
    refusal: CannotRecover,
    shape: tuple[int, ...] | None,
    classes: int,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> RecoveredInputs:
    """Networks that do not begin with two linear layers: one layer alone, or a pair behind convolutions."""
    if attacked.norms.by_batch:
        return _does_not_apply(attacked, refusal)
    behind = has_convolutions(attacked.model)
    try:
        layer = only_layer(attacked.model) if attacked.steps == 1 else None
    except CannotRecover:
        layer = None
    try:
        if layer is not None:
            return _one_layer(attacked, layer, shape, effort, rng)
        if shape is not None and behind and attacked.steps == 1:
            return batch_behind_convolutions(attacked, shape, classes, effort, rng)
        if shape is not None and behind:
            return epochs_behind_convolutions(attacked, shape, classes, rng)
    except CannotRecover as other:
        refusal = other
    answer = _does_not_apply(attacked, refusal)
    return answer if layer is not None else _of_any_network(attacked, answer, shape, classes, effort, rng)


def _of_any_network(
    attacked: AttackedMessage,
    answer: RecoveredInputs,
    shape: tuple[int, ...] | None,
    classes: int,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> RecoveredInputs:
    """What is found without taking the network apart; `answer` where that does not apply either, with both reasons."""
    if shape is None:
        return answer
    if attacked.steps > 1:
        return replace(answer, why=f"{answer.why}; what is no chain of layers is read after one step only")
    try:
        return batch_of_any_network(attacked, shape, classes, rng, effort.seconds)
    except CannotRecover as refusal:
        return replace(answer, why=f"{answer.why}; nor can it be read as it runs: {refusal.problem}")


def _does_not_apply(attacked: AttackedMessage, refusal: CannotRecover) -> RecoveredInputs:
    return RecoveredInputs.none(f"exact recovery of {_plural(attacked)} does not apply: {refusal.problem}", tried=False)


def _one_layer(
    attacked: AttackedMessage,
    layer: LinearLayer,
    shape: tuple[int, ...] | None,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> RecoveredInputs:
    """All samples of one step of a network that is one layer with softmax."""
    _refuse_unsent(attacked, layer.weight_name, layer.bias_name)
    bias = None if layer.bias_name is None else attacked.gradients[layer.bias_name].double()
    gradient = attacked.gradients[layer.weight_name].double()
    found = recover_softmax_batch(layer, gradient, bias, attacked.samples, rng, effort.seconds)
    return replace(_answer(found.x, found.certified, found.labels, shape), why=found.why, route="one softmax layer")


def _refuse_unsent(attacked: AttackedMessage, *read: str | None) -> None:
    """Raises CannotRecover where a layer that is read is frozen, or its gradient was held back."""
    for name in read:
        if name is not None and name not in attacked.gradients:
            raise CannotRecover(f"the message holds nothing of {name}: it is frozen, or was held back")


def _refuse_too_many(attacked: AttackedMessage, pair: LayerPair) -> None:
    """Raises CannotRecover where the layers cannot hold so many samples, or their steps cannot be followed."""
    units, features = pair.first.weight.shape
    room = min(units, features, len(pair.second.weight)) - 1
    if attacked.samples > room:
        raise CannotRecover(f"{attacked.samples} samples do not fit into the first two layers, which hold {room}")
    if attacked.steps > 1 and not is_sgd(attacked):
        raise CannotRecover("local steps are followed only through SGD at a known learning rate")


def _batch(
    attacked: AttackedMessage,
    pair: LayerPair,
    shape: tuple[int, ...] | None,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> RecoveredInputs:
    """All samples of one step."""
    try:
        above = network_above(attacked.model, pair, attacked.gradients, attacked.samples, rng)
        seen = pair_gradients_in(attacked.gradients, pair)
        found = recover_batch(pair, seen, rng, attacked.samples, effort, above=above)
    except CannotRecover as refusal:
        return RecoveredInputs.none(f"exact recovery does not apply: {refusal.problem}", tried=False)
    if not len(found.x):
        return RecoveredInputs.none(f"no sample is a root of the span condition: {found.why_not_whole}", tried=True)
    factors = scales_without_bias(attacked.model, pair, found.x, found.delta, attacked.samples)[:, None]
    x, delta = found.x * factors, found.delta / factors
    z = x @ pair.first.weight.T + (0 if pair.first.bias is None else pair.first.bias)
    certificate = certify(attacked.model, pair.first.weight_name.rpartition(".")[0], z, delta)
    times = copies(certificate, attacked.samples)
    certified = (certificate.error < CERTAIN) & (not is_scale_free(pair))
    certified &= counts_once(certificate, times, attacked.samples) & ~found_again(x, found.residual)
    x, certified, labels = (part.repeat_interleave(times, 0) for part in (x, certified, certificate.labels))
    return replace(_answer(x, certified, labels, shape), why=found.why_not_whole)


def _steps(
    attacked: AttackedMessage,
    pair: LayerPair,
    shape: tuple[int, ...] | None,
    classes: int,
    effort: RootSearchEffort,
    rng: torch.Generator,
) -> RecoveredInputs:
    """All samples of several local steps, one step after the other."""
    assert attacked.lr is not None
    flat, sizes = shape or (pair.first.weight.shape[1],), attacked.schedule.sizes()
    sent = torch.stack([part.square().sum() for part in attacked.gradient_list]).sum().sqrt()
    rounding = float(sent) * room_for_rounding(attacked) / EXPLAINED
    try:
        found = follow_local_steps(
            attacked.model, pair, attacked.gradients, sizes, attacked.lr, flat, classes, rng, effort, rounding
        )
    except CannotRecover as refusal:
        return RecoveredInputs.none(refusal.problem, tried=True)
    certified = (found.error < CERTAIN) & found.sure & (not is_scale_free(pair))
    return _answer(found.x, certified, found.labels, shape)


def _single(attacked: AttackedMessage, shape: tuple[int, ...] | None, classes: int) -> RecoveredInputs:
    """One sample in closed form, by one linear solve for each layer, or by its features; certified by what it explains.

    The next route is tried while none explains the whole gradient.
    """
    if shape is None:
        return RecoveredInputs.none("the shape of an input is not known", tried=False)
    reasons: list[str] = []
    best: tuple[float, Tensor, int, bool] | None = None
    model = attacked.as_client_ran
    for route, most_unexplained in ROUTES:
        try:
            found = route(model, attacked.gradients, shape)
        except CannotRecover as refusal:
            reasons.append(refusal.problem)
            continue
        if not bool(torch.isfinite(found).all()):
            reasons.append("the layers' equations have no finite solution")
            continue
        found = attacked.in_known_contrast(found[None])[0]
        label, missed = _best_label(attacked, model, found, classes)
        certain = missed < most_unexplained and attacked.can_vouch(found[None])
        if best is None or missed < best[0]:
            best = (missed, found, label, certain)
        if certain:
            break
    if best is None:
        return RecoveredInputs.none(f"exact recovery of one sample does not apply: {reasons[0]}", tried=False)
    missed, x, label, certain = best
    if missed > 0.5:
        return RecoveredInputs.none(
            "the sample that solves the layers' equations does not explain the gradient", tried=True
        )
    whole = attacked.unexplained(x[None], missed)
    return RecoveredInputs(x[None], torch.tensor([certain]), torch.tensor([label]), unexplained=whole)


def _best_label(attacked: AttackedMessage, model: nn.Module, x: Tensor, classes: int) -> tuple[int, float]:
    """The label that explains the gradient of one sample best, by the model as it was run, and what it leaves of it.

    A last bias has one negative entry, that of the label; without one all labels are tried.
    """
    last = [name for name, module in attacked.model.named_modules() if isinstance(module, nn.Linear)][-1]
    bias = attacked.gradients.get(f"{last}.bias")
    labels = range(classes) if bias is None or len(bias) != classes else [int(bias.argmin())]
    return min(((label, _mismatch(attacked, model, x, label, classes)) for label in labels), key=lambda pair: pair[1])


def _mismatch(attacked: AttackedMessage, model: nn.Module, x: Tensor, label: int, classes: int) -> float:
    targets = one_hot(torch.tensor([label]), classes)
    return mismatch_up_to_scale(gradients_of(model), attacked.gradient_list, x[None], targets)[0]


def _answer(x: Tensor, certified: Tensor, labels: Tensor, shape: tuple[int, ...] | None) -> RecoveredInputs:
    return RecoveredInputs(x.reshape(len(x), *(shape or x.shape[1:])), certified, labels)


def _plural(attacked: AttackedMessage) -> str:
    return f"{attacked.samples} sample{'s' if attacked.samples > 1 else ''}"
