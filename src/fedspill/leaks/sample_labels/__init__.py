"""The label of each sample: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.sample_labels.active_completion import ActiveCompletion
from fedspill.leaks.sample_labels.cone import Cone
from fedspill.leaks.sample_labels.direct_labels import DirectLabels
from fedspill.leaks.sample_labels.gradient_direction import GradientDirection
from fedspill.leaks.sample_labels.gradient_norm import GradientNorm
from fedspill.leaks.sample_labels.gradient_similarity import GradientSimilarity
from fedspill.leaks.sample_labels.guess import SampleLabels
from fedspill.leaks.sample_labels.leak import SAMPLE_LABELS
from fedspill.leaks.sample_labels.metrics import SampleLabelAccuracy, SampleLabelAuc
from fedspill.leaks.sample_labels.model_completion import ModelCompletion

__all__ = [
    "SAMPLE_LABELS",
    "ActiveCompletion",
    "Cone",
    "DirectLabels",
    "GradientDirection",
    "GradientNorm",
    "GradientSimilarity",
    "ModelCompletion",
    "SampleLabelAccuracy",
    "SampleLabelAuc",
    "SampleLabels",
]
