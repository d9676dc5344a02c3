"""Gradient matching as an attack: labels from a label attack or sought jointly, a recipe, its best restart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedspill.attack import Attack
from fedspill.errors import FedspillError
from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certificate import mismatch_up_to_scale
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.observed_gradients import (
    Answer,
    Case,
    cases_of,
    guess_of,
    refuse_contradiction,
    sample_shape,
)
from fedspill.leaks.inputs.search.candidate_gradients import Gradients, gradients_of, local_steps_of
from fedspill.leaks.inputs.search.priors import BatchNormStatistics
from fedspill.leaks.inputs.search.recipes import dlg, inverting_gradients
from fedspill.leaks.inputs.search.saved_search import Keep
from fedspill.leaks.inputs.search.search import Box, Found, Recipe, State, one_hot, reconstruct
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.progress import UNWATCHED, Progress
from fedspill.registry import make
from fedspill.threat import Needs, needs
from fedspill.trace import Origin, View

MATCH_NEEDS: Needs = needs(sees=["update|gradient", "model"], knows=["architecture", "batch_size", "local_lr"])
UNEXPLAINED = 0.5  # share of the gradient that a candidate may leave unexplained and still be an answer
CERTAIN = 1e-4  # relative mismatch below which a batch is vouched for (docs/design/inversion.md)
STATISTICS = 0.01  # weight of the statistics that buffers tell, in our own recipes


@dataclass(frozen=True)
class GradientMatching(Attack, ABC):
    """A published attack that optimizes inputs until their gradients match: a recipe, and where labels come from."""

    needs = MATCH_NEEDS
    leak = INPUTS
    # One sample: what all of them are made for. Batches are where they differ.
    control: ClassVar[Mapping[str, Any] | None] = {
        **INPUTS.control,
        "partition": {"name": "uniform-batch", "batch": 1},
        "model": {"name": "mlp", "widths": [32, 32], "activation": "tanh", "last_activation": "sigmoid"},
    }

    origins: int = 3  # messages that are attacked, drawn at random
    most_samples: int = 4  # larger batches are not tried
    labels_from: str = "labels"  # a label attack; empty: sought together with the inputs
    unexplained: float = UNEXPLAINED  # share of the gradient that an answer may leave unexplained
    keep_in: str = ""  # folder in which unfinished searches are kept, to be taken up again; empty: nowhere

    @abstractmethod
    def recipe(self, model: nn.Module) -> Recipe:
        """What the author writes; the running statistics of `model` are the batch's own where the client sent them."""

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        cases, notes = cases_of(view, self.origins, rng)
        small = any(case.samples <= self.most_samples for case in cases)
        labels = labels_by(self.labels_from, view, rng) if self.labels_from and small else {}
        if self.labels_from and small:
            notes.append(f"labels by {self.labels_from}" if labels else f"{self.labels_from} gave no labels")
        answers = []
        for case in cases:
            shape = sample_shape(view, case)
            if case.samples > self.most_samples:
                why = f"batches of more than {self.most_samples} samples are not tried (option most_samples)"
                answers.append(Answer.none(why, tried=False))
            elif shape is None:
                answers.append(Answer.none("the shape of an input is not known", tried=False))
            else:
                known = labels.get(case.of)
                keep = Keep(Path(self.keep_in)) if self.keep_in else None
                recipes = [self.recipe(case.norms.told(case.model))]
                answers.append(best_of(recipes, case, shape, view, rng, known, self.unexplained, keep))
        return guess_of(cases, answers, notes)


def match(case: Case, shape: tuple[int, ...], classes: int, view: View, rng: torch.Generator, *, moves: int) -> Answer:
    """Our own choice for small batches: two recipes that fail on different networks, the better explanation wins."""
    recipes = _recipes(case, moves)
    able = all(view.has(word) for word in ("batch_size", "local_lr"))
    known = labels_by("labels", view, rng).get(case.of) if able else None
    return best_of(recipes, case, shape, view, rng, known, contrast=True)


def best_of(
    recipes: Sequence[Recipe],
    case: Case,
    shape: tuple[int, ...],
    view: View,
    rng: torch.Generator,
    labels: Tensor | None,
    unexplained: float = UNEXPLAINED,
    keep: Keep | None = None,
    *,
    contrast: bool = False,
) -> Answer:
    """The best explanation that any of the recipes finds; nothing where none explains enough of what was seen.

    `contrast`: what is found is put into the contrast that the client's buffers tell, if they do.
    """
    classes = classes_of(view, case)
    try:
        refuse_contradiction(case)
    except CannotRecover as refusal:
        return Answer.none(refusal.problem, tried=True)
    gradients, precise = _gradients(case, torch.float32), _gradients(case, torch.float64)
    observed = [tensor.float() for tensor in case.observed]
    usable = labels is not None and len(labels) == case.samples and int(labels.max()) < classes
    targets = one_hot(labels, classes) if labels is not None and usable else None
    best: tuple[float, float, Tensor, Tensor] | None = None
    for recipe in recipes:
        size, box = (case.samples, *shape), _box(view)
        found = searched(recipe, gradients, observed, size, classes, rng, targets, box, keep, view.progress)
        x, soft = found.x[found.best].double(), found.targets[found.best].double()
        x = case.in_contrast(x) if contrast else x
        if bool(torch.isfinite(x).all()):
            missed, _ = mismatch_up_to_scale(precise, case.observed, x, soft)
            whole = case.unexplained(x, missed)
            if best is None or whole < best[0]:
                best = (whole, missed, x, soft)
    if best is None or not best[1] < unexplained:
        why = f"every candidate leaves more than {unexplained:.0%} of the observed gradient unexplained"
        return Answer.none(why, tried=True)
    whole, missed, x, soft = best
    certain = missed < CERTAIN and case.can_vouch(x)
    return Answer(x, torch.full((len(x),), certain), soft.argmax(1), unexplained=whole)


def searched(
    recipe: Recipe,
    gradients: Gradients,
    observed: Sequence[Tensor],
    shape: Sequence[int],
    classes: int,
    rng: torch.Generator,
    targets: Tensor | None = None,
    box: Box | None = None,
    keep: Keep | None = None,
    progress: Progress = UNWATCHED,
) -> Found:
    """A search with its loss on a progress bar; with `keep`, one that outlives its process."""
    page = keep.page(recipe, observed, shape, targets, rng.get_state()) if keep else None
    keeper = page.keeper() if page else None
    with progress.bar("matching gradients", recipe.steps) as bar:

        def watch(state: State) -> None:
            bar(state.steps, f"loss {float(state.least.min()):.3g}")
            if keeper:
                keeper(state)

        state = page.read() if page else None
        found = reconstruct(
            recipe, gradients, observed, shape, classes, rng=rng, targets=targets, box=box, state=state, watch=watch
        )
    if page:
        page.remove()
    return found


def labels_by(source: str, view: View, rng: torch.Generator) -> dict[Origin, Tensor]:
    """Labels (samples,) of every origin that the named label attack can read; none where it cannot run."""
    seed = int(torch.randint(1 << 31, (1,), generator=rng))
    try:
        guess = make("attacks", source)(view, seed=seed)
    except FedspillError:
        return {}
    assert isinstance(guess, LabelCounts)
    classes = torch.arange(guess.counts.shape[1])
    return {
        origin: classes.repeat_interleave(counts)
        for origin, counts in zip(guess.of, guess.counts, strict=True)
        if int(counts.sum()) <= 1 << 16
    }


def classes_of(view: View, case: Case) -> int:
    """As many as the network has logits; two for a single one."""
    last = [module for module in case.model.modules() if isinstance(module, nn.Linear)]
    if last:
        return max(2, last[-1].out_features)
    return int(view.public["classes"])


def _recipes(case: Case, moves: int) -> list[Recipe]:
    """L-BFGS runs off to any contrast where the batch normalised itself: good only if that can be put right."""
    if not case.norms.by_batch:
        return [dlg(moves), inverting_gradients(moves, 1e-3)]
    cosine = inverting_gradients(moves, 1e-2)
    if case.norms.moments:
        told = BatchNormStatistics(case.norms.told(case.model).float(), STATISTICS)
        cosine = replace(cosine, priors=(*cosine.priors, told))
    return [dlg(moves), cosine] if case.statistics_known else [cosine]


def _gradients(case: Case, dtype: torch.dtype) -> Gradients:
    model = case.as_run.to(dtype)
    if case.lr is None or case.steps == 1:
        return gradients_of(model)
    sizes = case.schedule.sizes() * case.schedule.epochs
    cuts = [case.schedule.batch_size * (index % len(case.schedule.sizes())) for index in range(len(sizes))]
    return local_steps_of(model, [slice(cut, cut + size) for cut, size in zip(cuts, sizes, strict=True)], case.lr)


def _box(view: View) -> Box | None:
    """The range of the adversary's own inputs."""
    if not view.has("unlabelled_aux"):
        return None
    inputs: Tensor = view.knows("unlabelled_aux")
    return Box(inputs.min(), inputs.max())
