"""A hidden attribute of a person: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.attributes.aai import AAI
from fedspill.leaks.attributes.guess import Attributes
from fedspill.leaks.attributes.leak import ATTRIBUTES
from fedspill.leaks.attributes.metrics import AttributeAuc, OutsiderAttributeAuc
from fedspill.leaks.attributes.mia2aia import MIA2AIA
from fedspill.leaks.attributes.planted import Planted

__all__ = [
    "AAI",
    "ATTRIBUTES",
    "MIA2AIA",
    "AttributeAuc",
    "Attributes",
    "OutsiderAttributeAuc",
    "Planted",
]
