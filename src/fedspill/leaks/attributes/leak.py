"""A hidden attribute of a person: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import ATTRIBUTE_IDS, Leak, told_apart
from fedspill.leaks.attributes.guess import Attributes
from fedspill.leaks.attributes.metrics import AttributeAuc, OutsiderAttributeAuc
from fedspill.leaks.attributes.reading import read_attributes

ATTRIBUTES = Leak(
    name="attributes",
    title="A hidden attribute of a person",
    question="Which value does a yes-or-no attribute of a known record have?",
    guess=Attributes,
    metrics=(AttributeAuc(), OutsiderAttributeAuc()),
    control={
        "data": "made-up-people",
        "model": {"name": "mlp", "widths": [48, 24], "activation": "elu", "alpha": -2.0, "logits": 1},
        "partition": "iid",
        "federation": {"clients": 4, "rounds": 2, "secure_aggregation": True},
        "training": {"lr": 0.05, "batch_size": 32},
        "adversary_data": {"per_class": 20, "shadow": 300},
        "targets": {"attribute": "secret", "members": 32, "others": 0},
    },
    figure=told_apart,
    sentence="people who have the attribute are {figure} from others",
    claim="tell {often} a hidden attribute of a known person",
    taxonomy=ATTRIBUTE_IDS,
    reader=read_attributes,
)
