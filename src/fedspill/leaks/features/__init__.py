"""What another party holds of each sample: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.features.equality_solving import EqualitySolving
from fedspill.leaks.features.generative_regression import GenerativeRegression
from fedspill.leaks.features.guess import FeatureRows
from fedspill.leaks.features.leak import FEATURES
from fedspill.leaks.features.linear_program import LinearProgram
from fedspill.leaks.features.metrics import FeatureCells, FeatureRowsExact, FeatureVariance
from fedspill.leaks.features.ridge_pairs import RidgePairs

__all__ = [
    "FEATURES",
    "EqualitySolving",
    "FeatureCells",
    "FeatureRows",
    "FeatureRowsExact",
    "FeatureVariance",
    "GenerativeRegression",
    "LinearProgram",
    "RidgePairs",
]
