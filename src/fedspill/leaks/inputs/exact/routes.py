"""Which exact route a case allows, decided by what is observed, and its answer with a certificate for each sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certificate import (
    certify,
    copies,
    is_scale_free,
    mismatch_up_to_scale,
    scales_without_bias,
)
from fedspill.leaks.inputs.exact.convolution_chain import single_sample
from fedspill.leaks.inputs.exact.leading_layers import Pair, leading_pair
from fedspill.leaks.inputs.exact.local_steps import seen_in, walk
from fedspill.leaks.inputs.exact.match_features import sample_by_features
from fedspill.leaks.inputs.exact.two_linear_layers import Effort, recover
from fedspill.leaks.inputs.observed_gradients import Answer, Case
from fedspill.leaks.inputs.search.candidate_gradients import gradients_of
from fedspill.leaks.inputs.search.search import one_hot

# A sample is vouched for when the network sends back for it what was peeled off, to this sine of the angle.
CERTAIN = 0.02
# For one sample, routes and the share of its whole gradient that may be left unexplained. Small shares are no proof for
# saturated units, whose layers are solved; rectifiers that sit on their kink leave more than that of a perfect sample.
ROUTES = ((single_sample, 1e-3), (sample_by_features, 1e-2))


def exact_answer(
    case: Case, shape: tuple[int, ...] | None, classes: int, effort: Effort, rng: torch.Generator
) -> Answer:
    """Exact recovery where the network and the number of samples allow it; else why not."""
    if case.samples == 1 and case.steps == 1:
        return _single(case, shape, classes)
    try:
        pair = leading_pair(case.model)
    except CannotRecover as refusal:
        return Answer.none(f"exact recovery of {_plural(case)} does not apply: {refusal.problem}", tried=False)
    try:
        _refuse_too_many(case, pair)
    except CannotRecover as refusal:
        return Answer.none(f"exact recovery does not apply: {refusal.problem}", tried=False)
    if case.steps == 1:
        return _batch(case, pair, shape, effort, rng)
    return _steps(case, pair, shape, classes, effort, rng)


def _refuse_too_many(case: Case, pair: Pair) -> None:
    """Raises CannotRecover where the layers cannot hold so many samples, or their steps cannot be followed."""
    units, features = pair.first.weight.shape
    room = min(units, features, len(pair.second.weight)) - 1
    if case.samples > room:
        raise CannotRecover(f"{case.samples} samples do not fit into the first two layers, which hold {room}")
    if case.steps > 1 and (case.schedule.epochs > 1 or not case.plain):
        raise CannotRecover("local steps are followed only through one pass of plain SGD at a known learning rate")


def _batch(case: Case, pair: Pair, shape: tuple[int, ...] | None, effort: Effort, rng: torch.Generator) -> Answer:
    """All samples of one step."""
    try:
        found = recover(pair, seen_in(case.gradients, pair), rng, case.samples, effort)
    except CannotRecover as refusal:
        return Answer.none(f"exact recovery does not apply: {refusal.problem}", tried=False)
    if not len(found.x):
        return Answer.none(
            f"no sample is a root of the span condition: the search gave up on {_plural(case)}", tried=True
        )
    factors = scales_without_bias(case.model, pair, found.x, found.delta, case.samples)[:, None]
    x, delta = found.x * factors, found.delta / factors
    z = x @ pair.first.weight.T + (0 if pair.first.bias is None else pair.first.bias)
    certificate = certify(case.model, pair.first.weight_name.rpartition(".")[0], z, delta)
    certified = (certificate.error < CERTAIN) & (not is_scale_free(pair))
    times = copies(certificate, case.samples)
    x, certified, labels = (part.repeat_interleave(times, 0) for part in (x, certified, certificate.labels))
    return _answer(x, certified, labels, shape)


def _steps(
    case: Case, pair: Pair, shape: tuple[int, ...] | None, classes: int, effort: Effort, rng: torch.Generator
) -> Answer:
    """All samples of several local steps, one step after the other."""
    assert case.lr is not None
    flat = shape or (pair.first.weight.shape[1],)
    try:
        found = walk(case.model, pair, case.gradients, case.schedule.sizes(), case.lr, flat, classes, rng, effort)
    except CannotRecover as refusal:
        return Answer.none(refusal.problem, tried=True)
    return _answer(found.x, (found.error < CERTAIN) & (not is_scale_free(pair)), found.labels, shape)


def _single(case: Case, shape: tuple[int, ...] | None, classes: int) -> Answer:
    """One sample in closed form, by one linear solve for each layer, or by its features; certified by what it explains.

    The next route is tried while none explains the whole gradient.
    """
    if shape is None:
        return Answer.none("the shape of an input is not known", tried=False)
    reasons: list[str] = []
    best: tuple[float, Tensor, int, bool] | None = None
    model = case.as_run
    for route, bar in ROUTES:
        try:
            found = route(model, case.gradients, shape)
        except CannotRecover as refusal:
            reasons.append(refusal.problem)
            continue
        if not bool(torch.isfinite(found).all()):
            reasons.append("the layers' equations have no finite solution")
            continue
        found = case.in_contrast(found[None])[0]
        label, missed = _best_label(case, model, found, classes)
        certain = missed < bar and case.can_vouch(found[None])
        if best is None or missed < best[0]:
            best = (missed, found, label, certain)
        if certain:
            break
    if best is None:
        return Answer.none(f"exact recovery of one sample does not apply: {reasons[0]}", tried=False)
    missed, x, label, certain = best
    if missed > 0.5:
        return Answer.none("the sample that solves the layers' equations does not explain the gradient", tried=True)
    whole = case.unexplained(x[None], missed)
    return Answer(x[None], torch.tensor([certain]), torch.tensor([label]), unexplained=whole)


def _best_label(case: Case, model: nn.Module, x: Tensor, classes: int) -> tuple[int, float]:
    """The label that explains the gradient of one sample best, by the model as it was run, and what it leaves of it.

    A last bias has one negative entry, that of the label; without one all labels are tried.
    """
    last = [name for name, module in case.model.named_modules() if isinstance(module, nn.Linear)][-1]
    bias = case.gradients.get(f"{last}.bias")
    labels = range(classes) if bias is None or len(bias) != classes else [int(bias.argmin())]
    return min(((label, _mismatch(case, model, x, label, classes)) for label in labels), key=lambda pair: pair[1])


def _mismatch(case: Case, model: nn.Module, x: Tensor, label: int, classes: int) -> float:
    targets = one_hot(torch.tensor([label]), classes)
    return mismatch_up_to_scale(gradients_of(model), case.observed, x[None], targets)[0]


def _answer(x: Tensor, certified: Tensor, labels: Tensor, shape: tuple[int, ...] | None) -> Answer:
    return Answer(x.reshape(len(x), *(shape or x.shape[1:])), certified, labels)


def _plural(case: Case) -> str:
    return f"{case.samples} sample{'s' if case.samples > 1 else ''}"
