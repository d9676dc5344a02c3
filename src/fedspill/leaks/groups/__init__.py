"""Common and rare classes of the federation: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.groups.guess import Groups
from fedspill.leaks.groups.leak import GROUPS
from fedspill.leaks.groups.metrics import ExactGroups, LargestGroup, RankCorrelation
from fedspill.leaks.groups.whole_determination import WholeDetermination

__all__ = [
    "GROUPS",
    "ExactGroups",
    "Groups",
    "LargestGroup",
    "RankCorrelation",
    "WholeDetermination",
]
