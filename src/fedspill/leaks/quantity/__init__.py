"""Clients that own a class: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.quantity.guess import ClassQuantities
from fedspill.leaks.quantity.leak import QUANTITY
from fedspill.leaks.quantity.metrics import QuantityError, WithinFivePercent, WithinOne
from fedspill.leaks.quantity.quantity_inference import QuantityInference

__all__ = [
    "QUANTITY",
    "ClassQuantities",
    "QuantityError",
    "QuantityInference",
    "WithinFivePercent",
    "WithinOne",
]
