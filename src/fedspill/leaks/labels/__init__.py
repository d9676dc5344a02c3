"""Labels in a round: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.labels.ebi import EBI
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.labels import Labels
from fedspill.leaks.labels.leak import LABELS
from fedspill.leaks.labels.llbg import LLBG
from fedspill.leaks.labels.llbg_aux import LLBGAux
from fedspill.leaks.labels.llbg_gamma import LLBGGamma
from fedspill.leaks.labels.llg import LLG
from fedspill.leaks.labels.metrics import LabelCountError, LabelSuccess

__all__ = [
    "EBI",
    "LABELS",
    "LLBG",
    "LLG",
    "LLBGAux",
    "LLBGGamma",
    "LabelCountError",
    "LabelCounts",
    "LabelSuccess",
    "Labels",
]
