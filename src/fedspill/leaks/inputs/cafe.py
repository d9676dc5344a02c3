"""CAFE by linear algebra: every sample of a vertical federation from what its parties upload (paper 001)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, final

import torch
from torch import Tensor

from fedspill.attack import Attack
from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.vertical.first_layer import (
    COLUMNS,
    FREE,
    FirstLayer,
    first_layer,
    first_layer_of_moving_model,
    unknown_first_layer,
)
from fedspill.leaks.inputs.vertical.invert_features import InversionEffort, PartyFeatures, invert_features
from fedspill.leaks.inputs.vertical.predicted_gradients import nearest_labels, replace_doubtful_gradients
from fedspill.leaks.inputs.vertical.server_observations import (
    NEEDED,
    PartyUploads,
    ServerObservations,
    observe,
    origins,
)
from fedspill.leaks.inputs.vertical.undo_fake_gradients import undo_fake_gradients
from fedspill.leaks.inputs.vertical.undo_model_change import with_model_held_still
from fedspill.models.vertical import Tower, VerticalNet
from fedspill.threat import needs
from fedspill.trace import View

# Steps I and II of one party.
FirstLayerStep: TypeAlias = Callable[[PartyUploads, ServerObservations, torch.Generator], FirstLayer]

_WORTH = 0.9  # a pass that leaves more than this share of the best residual so far is the last one
# Up to this residual the recovered samples are good enough to predict how training changed their features.
_TELLING = 0.045
_CLOSED = 1e-5  # residual of Step II that rounding of float32 gradients explains
CERTIFIED = 3e-3  # relative error of the features up to which a sample is vouched for


@dataclass(frozen=True, eq=False)
class RecoveredSamples:
    """Whole samples (n, *shape), their labels (n,), and for each party how far its features are from fitting (n, m)."""

    x: Tensor
    labels: Tensor
    misfit: Tensor  # infinite where a party's gradients hold nothing of the sample
    layers: tuple[FirstLayer, ...]
    notes: tuple[str, ...]
    evaluations: int
    # For a model that was trained meanwhile: the compensation passes that were kept, and the samples before the first.
    passes: int = 0
    uncompensated: Tensor | None = None

    @property
    def residual(self) -> float:
        """The relative residual of Step II, averaged over the parties whose uploads could be read."""
        residuals = [layer.residual for layer in self.layers if layer.route != "none"]
        return sum(residuals) / max(len(residuals), 1)


@final
@dataclass(frozen=True)
class Cafe(Attack):
    """Reads all samples in index order from as few rounds as three a sample.

    Steps I and II are least squares, by Cholesky or FFT where there are as many rounds as samples, else by intersecting
    the row spaces of the gradients. Step III inverts each party's front, sample by sample. Labels are those whose
    predicted gradients are nearest. A sample whose v vanishes in a party (a blank tile, dead ReLUs) is not in that
    party's gradients: its part is left black and the sample is not certified. Samples that share all their batches
    cannot be told apart; the route by row spaces needs batches no larger than the layer is wide. Horizontal clients
    whose batch indices are known are the case of one party.
    """

    name: ClassVar[str] = "cafe"
    title: ClassVar[str] = "CAFE, exact"
    paper: ClassVar[str] = "001"
    needs = needs(sees=NEEDED, knows=["architecture"])
    leak = INPUTS
    control: ClassVar[Mapping[str, Any]] = {
        "data": "digits",
        "model": {"name": "cafe-towers", "filters": [32, 128], "widths": [32, 16, 10]},
        "federation": {"kind": "vertical", "samples": 40, "rounds": 15, "batches": "anti-twins", "static": True},
        "training": {"batch_size": 8},
    }

    tries: int = 5  # how often an image whose features do not fit is started anew
    unsort: int = 300  # iterations spent on undoing fake gradients, where the server knows of them
    passes: int = 6  # how often the moving of a model that is trained meanwhile is taken out, as long as that helps
    device: str = "cpu"

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        effort = InversionEffort(retry_blurs=InversionEffort.retry_blurs[: self.tries])
        with torch.backends.cudnn.flags(allow_tf32=False):  # the 19 bits of TF32 on a GPU would cap the result at 81 dB
            observed = observe(view, self.device)
            if self.unsort and is_faked(view):
                found = recover_faked(observed, effort, rng, self.unsort)
            elif observed.static:
                found = recover(observed, effort, rng)
            else:
                found = recover_moving(observed, effort, rng, self.passes)
        return as_guess(observed, found)


def is_faked(view: View) -> bool:
    """Whether the server knows that the parties send fake gradients."""
    return view.has("defense") and any(defense.effect().only_order for defense in view.knows("defense"))


def recover(observed: ServerObservations, effort: InversionEffort, rng: torch.Generator) -> RecoveredSamples:
    """Steps I to III for a model that is not trained meanwhile."""
    net = observed.nets(0)
    layers, notes = first_layers(observed, rng, first_layer)
    return labels_and_images(observed, net, replace_doubtful_gradients(observed, net, layers), notes, effort, rng)


def recover_moving(
    observed: ServerObservations, effort: InversionEffort, rng: torch.Generator, passes: int
) -> RecoveredSamples:
    """Steps I to III for a model that is trained meanwhile; the pass with the least residual is returned."""
    place = len(observed.rounds) // 2
    net = observed.nets(place)
    step: FirstLayerStep = first_layer_of_moving_model
    try:
        layers, notes = first_layers(observed, rng, step)
    except NotApplicable:
        step = first_layer
        layers, notes = first_layers(observed, rng, step)
    best = last = first = labels_and_images(observed, net, layers, notes, effort, rng)
    for number in range(passes if first.residual < _TELLING else 0):
        still = with_model_held_still(
            observed, place, last.x, last.labels, features_only=step is first_layer_of_moving_model
        )
        layers, notes = first_layers(still, rng, step)
        last = labels_and_images(still, net, layers, notes, effort, rng, start=best.x)
        if not last.residual < best.residual:
            break
        note = f"moving model: {number + 1} passes of compensation, residual {last.residual:.1e}"
        enough = last.residual > _WORTH * best.residual
        best = replace(last, notes=(*last.notes, note), passes=number + 1)
        if enough:
            break
    return replace(best, uncompensated=first.x)


def recover_faked(
    observed: ServerObservations, effort: InversionEffort, rng: torch.Generator, iterations: int
) -> RecoveredSamples:
    """Steps I to III where parties send fake gradients.

    Undoing them leaves the scale of each round unknown, so the route that lets every round have its own v is taken.
    """
    return recover_moving(
        undo_fake_gradients(observed, iterations, rng), effort, rng, passes=0 if observed.static else 3
    )


def labels_and_images(
    observed: ServerObservations,
    net: VerticalNet,
    layers: Sequence[FirstLayer],
    notes: Sequence[str],
    effort: InversionEffort,
    rng: torch.Generator,
    start: Tensor | None = None,
) -> RecoveredSamples:
    """Labels and Step III, from the samples `start` (n, *shape) where there are some already."""
    labels = nearest_labels(net, layers, observed.classes)
    starts = [None] * net.parties if start is None else net.parts.split(start)
    parts = [torch.zeros(len(labels), *shape, device=labels.device) for shape in net.part_shapes]
    misfits = [layer.error.clone() for layer in layers]
    # Parties with tiles of one shape and features of one width are inverted together, as rows of one problem.
    alike: dict[tuple[tuple[int, ...], int], list[int]] = defaultdict(list)
    for party, layer in enumerate(layers):
        if net.tower(party).reads_input:
            parts[party][layer.known] = layer.h[layer.known].float().reshape(-1, *net.part_shapes[party])
        else:
            alike[net.part_shapes[party], layer.h.shape[1]].append(party)
    evaluations = 0
    for (shape, _), together in alike.items():
        known = [party_features(net.tower(party), layers[party], starts[party]) for party in together]
        found, spent = invert_features(known, shape, effort, rng)
        evaluations += spent
        for party, one in zip(together, found, strict=True):
            parts[party][layers[party].known] = one.x
            misfits[party][layers[party].known] += (2 * one.misfit.double()).sqrt()
    return RecoveredSamples(
        net.parts.join(parts), labels, torch.stack(misfits, 1), tuple(layers), (*observed.notes, *notes), evaluations
    )


def party_features(tower: Tower, layer: FirstLayer, start: Tensor | None) -> PartyFeatures:
    """What Step III of one party begins with: the samples that left a trace in its gradients."""
    rows = layer.known
    return PartyFeatures(tower.front, layer.h[rows], layer.error[rows], None if start is None else start[rows])


def first_layers(
    observed: ServerObservations, rng: torch.Generator, step: FirstLayerStep
) -> tuple[list[FirstLayer], list[str]]:
    """Steps I and II for every party; a party that does not allow them gets a note. Raises if none does."""
    layers, notes, refusals = [], [], []
    for uploads in observed.uploads:
        try:
            layers.append(step(uploads, observed, rng))
            notes.append(f"party:{uploads.party}: {layers[-1].route}, residual {layers[-1].residual:.1e}")
        except NotApplicable as refusal:
            layers.append(unknown_first_layer(uploads, observed))
            notes.append(f"party:{uploads.party} gave nothing: {refusal.problem}")
            refusals.append(refusal)
    if len(refusals) == len(layers):
        raise refusals[0]
    return layers, notes


def certified_parts(found: RecoveredSamples) -> Tensor:
    """Which parts (n, parties) are certified: their features are known, fitted closely, and from a solved system.

    The linear route estimates its own error. The other routes intersect spaces, and where their residual is larger than
    rounding, a direction may belong to another sample without its error showing that: then nothing of that party is
    certified. Nor is a sample whose direction or length was found by its features, which other samples may share.
    """
    closed = [layer.route == "linear" or layer.residual < _CLOSED for layer in found.layers]
    shared = torch.stack([layer.doubtful & (layer.route in (COLUMNS, FREE)) for layer in found.layers], 1)
    return (found.misfit < CERTIFIED) & torch.tensor(closed, device=found.misfit.device) & ~shared


def as_guess(observed: ServerObservations, found: RecoveredSamples) -> Inputs:
    """The samples by the round that first used them, in the order of its indices."""
    of, new = origins(observed)
    x, labels = found.x.cpu(), found.labels.cpu()
    sure = certified_parts(found).all(1).cpu()
    blank = int((~torch.isfinite(found.misfit)).any(1).sum())
    notes = [*found.notes, f"{int(sure.sum())} of {observed.samples} samples certified; {blank} lack a party's part"]
    return Inputs(
        of,
        [x[rows] for rows in new],
        [sure[rows] for rows in new],
        torch.ones(len(of), dtype=torch.bool),
        [labels[rows] for rows in new],
        tuple(notes),
    )
