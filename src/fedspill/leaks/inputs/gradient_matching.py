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
    AttackedMessage,
    RecoveredInputs,
    attacked_messages,
    guess_of,
    refuse_contradiction,
    sample_shape,
)
from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction, gradients_of, local_steps_of
from fedspill.leaks.inputs.search.priors import BatchNormStatistics
from fedspill.leaks.inputs.search.recipes import dlg, inverting_gradients
from fedspill.leaks.inputs.search.saved_search import SavedSearches
from fedspill.leaks.inputs.search.search import Box, Recipe, SearchResult, SearchState, one_hot, reconstruct
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.placement import moved
from fedspill.progress import UNWATCHED, Progress
from fedspill.registry import make
from fedspill.threat import Needs, needs
from fedspill.trace import Origin, View

MATCH_NEEDS: Needs = needs(sees=["update|gradient", "model"], knows=["architecture", "batch_size", "local_lr"])
UNEXPLAINED = 0.5  # share of the gradient that a candidate may leave unexplained and still be an answer
CERTAIN = 1e-4  # relative mismatch below which a batch is vouched for (docs/design/inversion.md)
STATISTICS = 0.01  # weight, in our own recipes, of the statistics that buffers show


@dataclass(frozen=True)
class GradientMatching(Attack, ABC):
    """A published attack that optimizes inputs until their gradients match: a recipe, and where labels come from."""

    needs = MATCH_NEEDS
    leak = INPUTS
    # One sample, which all of these attacks are made for; they differ on batches.
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
        messages, notes = attacked_messages(view, self.origins, rng)
        small = any(attacked.samples <= self.most_samples for attacked in messages)
        labels = labels_from_attack(self.labels_from, view, rng) if self.labels_from and small else {}
        if self.labels_from and small:
            notes.append(f"labels by {self.labels_from}" if labels else f"{self.labels_from} gave no labels")
        answers = []
        for attacked in (moved(message, view.device) for message in messages):
            shape = sample_shape(view, attacked)
            if attacked.samples > self.most_samples:
                why = f"batches of more than {self.most_samples} samples are not tried (option most_samples)"
                answers.append(RecoveredInputs.none(why, tried=False))
            elif shape is None:
                answers.append(RecoveredInputs.none("the shape of an input is not known", tried=False))
            else:
                known = labels.get(attacked.of)
                saves = SavedSearches(Path(self.keep_in)) if self.keep_in else None
                recipes = [self.recipe(attacked.norms.with_batch_statistics(attacked.model))]
                answers.append(best_explanation(recipes, attacked, shape, view, rng, known, self.unexplained, saves))
        return guess_of(messages, answers, notes)


def match_gradients(
    attacked: AttackedMessage, shape: tuple[int, ...], classes: int, view: View, rng: torch.Generator, *, moves: int
) -> RecoveredInputs:
    """Our own choice for small batches: two recipes that fail on different networks, of which the better one counts."""
    attacked = moved(attacked, view.device)
    recipes = _recipes(attacked, moves)
    able = all(view.has(word) for word in ("batch_size", "local_lr"))
    known = labels_from_attack("labels", view, rng).get(attacked.of) if able else None
    return best_explanation(recipes, attacked, shape, view, rng, known, contrast=True)


def best_explanation(
    recipes: Sequence[Recipe],
    attacked: AttackedMessage,
    shape: tuple[int, ...],
    view: View,
    rng: torch.Generator,
    labels: Tensor | None,
    unexplained: float = UNEXPLAINED,
    saves: SavedSearches | None = None,
    *,
    contrast: bool = False,
) -> RecoveredInputs:
    """The best explanation that any of the recipes finds; nothing where none explains enough of the gradient.

    `contrast`: what is found is scaled to the contrast that the client's buffers show, if they do.
    """
    classes = classes_of(view, attacked)
    try:
        refuse_contradiction(attacked)
    except CannotRecover as refusal:
        return RecoveredInputs.none(refusal.problem, tried=True)
    gradients, precise = candidate_gradients(attacked, torch.float32), candidate_gradients(attacked, torch.float64)
    observed = [tensor.float() for tensor in attacked.gradient_list]
    usable = labels is not None and len(labels) == attacked.samples and int(labels.max()) < classes
    targets = one_hot(labels, classes) if labels is not None and usable else None
    best: tuple[float, float, Tensor, Tensor] | None = None
    for recipe in recipes:
        size, box = (attacked.samples, *shape), _box(view)
        found = search_and_save(recipe, gradients, observed, size, classes, rng, targets, box, saves, view.progress)
        x, soft = found.x[found.best].double(), found.targets[found.best].double()
        x = attacked.in_known_contrast(x) if contrast else x
        if bool(torch.isfinite(x).all()):
            missed, _ = mismatch_up_to_scale(precise, attacked.gradient_list, x, soft)
            whole = attacked.unexplained(x, missed)
            if best is None or whole < best[0]:
                best = (whole, missed, x, soft)
    if best is None or not best[1] < unexplained:
        why = f"every candidate leaves more than {unexplained:.0%} of the observed gradient unexplained"
        return RecoveredInputs.none(why, tried=True)
    whole, missed, x, soft = best
    certain = missed < CERTAIN and attacked.can_vouch(x)
    return RecoveredInputs(x.cpu(), torch.full((len(x),), certain), soft.argmax(1).cpu(), unexplained=whole)


def search_and_save(
    recipe: Recipe,
    gradients: GradientFunction,
    observed: Sequence[Tensor],
    shape: Sequence[int],
    classes: int,
    rng: torch.Generator,
    targets: Tensor | None = None,
    box: Box | None = None,
    saves: SavedSearches | None = None,
    progress: Progress = UNWATCHED,
) -> SearchResult:
    """A search with its loss on a progress bar; with `saves`, it can be resumed after its process has died."""
    saved = saves.file_of(recipe, observed, shape, targets, rng.get_state()) if saves else None
    write = saved.writer() if saved else None
    with progress.bar("matching gradients", recipe.steps) as bar:

        def watch(state: SearchState) -> None:
            bar(state.steps, f"loss {float(state.least.min()):.3g}")
            if write:
                write(state)

        state = saved.read() if saved else None
        found = reconstruct(
            recipe, gradients, observed, shape, classes, rng=rng, targets=targets, box=box, state=state, watch=watch
        )
    if saved:
        saved.remove()
    return found


def labels_from_attack(source: str, view: View, rng: torch.Generator) -> dict[Origin, Tensor]:
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


def classes_of(view: View, attacked: AttackedMessage) -> int:
    """As many as the network has logits; two for a single one. The linear layer listed last need not give them."""
    shape = sample_shape(view, attacked)
    if shape is not None:
        try:
            with torch.no_grad():
                return max(2, int(attacked.model(torch.zeros(1, *shape, dtype=torch.float64)).flatten(1).shape[1]))
        except Exception:  # noqa: S110 - inputs of another kind; the layers tell it then
            pass
    last = [module for module in attacked.model.modules() if isinstance(module, nn.Linear)]
    if last:
        return max(2, last[-1].out_features)
    return int(view.public["classes"])


def _recipes(attacked: AttackedMessage, moves: int) -> list[Recipe]:
    """Where batches are normalised by themselves L-BFGS ends in any contrast: only used if the contrast is known."""
    if not attacked.norms.by_batch:
        return [dlg(moves), inverting_gradients(moves, 1e-3)]
    cosine = inverting_gradients(moves, 1e-2)
    if attacked.norms.moments:
        statistics = BatchNormStatistics(attacked.norms.with_batch_statistics(attacked.model).float(), STATISTICS)
        cosine = replace(cosine, priors=(*cosine.priors, statistics))
    return [dlg(moves), cosine] if attacked.statistics_known else [cosine]


def candidate_gradients(attacked: AttackedMessage, dtype: torch.dtype) -> GradientFunction:
    """What a candidate batch would have sent: one gradient, or the sum over local steps in the batch's order."""
    model = attacked.as_client_ran.to(dtype)
    if attacked.lr is None or attacked.steps == 1:
        return gradients_of(model)
    sizes = attacked.schedule.sizes() * attacked.schedule.epochs
    cuts = [attacked.schedule.batch_size * (index % len(attacked.schedule.sizes())) for index in range(len(sizes))]
    steps = [slice(cut, cut + size) for cut, size in zip(cuts, sizes, strict=True)]
    return local_steps_of(model, steps, attacked.lr, attacked.momentum)


def _box(view: View) -> Box | None:
    """The range of the adversary's own inputs."""
    if not view.has("unlabelled_aux"):
        return None
    inputs: Tensor = view.knows("unlabelled_aux")
    return Box(inputs.min(), inputs.max())
