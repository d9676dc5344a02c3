"""Class mix of a client: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.composition.composition_by_counts import CompositionByCounts
from fedspill.leaks.composition.decaf import Decaf
from fedspill.leaks.composition.guess import Proportions
from fedspill.leaks.composition.leak import COMPOSITION
from fedspill.leaks.composition.metrics import CompositionL1, CompositionL2, CompositionLInf, FalseNulls, NullRecall

__all__ = [
    "COMPOSITION",
    "CompositionByCounts",
    "CompositionL1",
    "CompositionL2",
    "CompositionLInf",
    "Decaf",
    "FalseNulls",
    "NullRecall",
    "Proportions",
]
