"""Multinomial logistic regression: one linear layer, whose gradient is the outer product of error and input."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from typing import final

from torch import nn

from fedspill.model_spec import ModelSpec


@final
@dataclass(frozen=True)
class Logistic(ModelSpec):
    """One linear layer on the flattened input."""

    name = "logistic"
    title = "Logistic regression"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"

    last_bias: bool = True

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        head = nn.Linear(prod(shape), classes, bias=self.last_bias)
        return nn.Sequential(OrderedDict[str, nn.Module](flatten=nn.Flatten(), head=head))
