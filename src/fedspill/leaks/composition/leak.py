"""Class mix of a client: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import PROPERTY_IDS, Leak
from fedspill.leaks.composition.guess import Proportions
from fedspill.leaks.composition.metrics import CompositionL1, CompositionL2, CompositionLInf, FalseNulls, NullRecall
from fedspill.leaks.composition.reading import read_shares


def _share_right(distance: float) -> float:
    """Half of the L1 distance is the share of samples that are put into a wrong class."""
    return min(max(1 - distance / 2, 0.0), 1.0)


def _samples_right(distance: float) -> str:
    return f"{round(100 * _share_right(distance))} of 100 samples"


COMPOSITION = Leak(
    name="composition",
    title="Class mix of a client",
    question="Which share of a client's data does each class have?",
    guess=Proportions,
    metrics=(CompositionL1(), CompositionL2(), CompositionLInf(), FalseNulls(), NullRecall()),
    control={
        "data": "digits",
        "model": {"name": "mlp", "widths": [32]},
        "partition": {"name": "dirichlet", "alpha": 0.3},
        "federation": {"clients": 8, "rounds": 1},
        "training": {"lr": 0.02, "batch_size": 16},
        "adversary_data": {"per_class": 20},
    },
    figure=_samples_right,
    sentence="{figure} of a client are put into the right class of its mix",
    claim="tell {much} of the mix of classes that a client holds",
    share=_share_right,
    taxonomy=PROPERTY_IDS,
    reader=read_shares,
)
