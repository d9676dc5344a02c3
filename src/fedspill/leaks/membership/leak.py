"""Whether a person took part: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from types import MappingProxyType

from fedspill.leak import MEMBERSHIP_IDS, Leak, told_apart
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.metrics import LabelMatchedAuc, MembershipAuc, MembershipTpr01, MembershipTpr1
from fedspill.leaks.membership.reading import read_members

MEMBERSHIP = Leak(
    name="membership",
    title="Whether a person took part",
    question="Did any client train on this record?",
    guess=Membership,
    metrics=(MembershipAuc(), MembershipTpr1(), MembershipTpr01(), LabelMatchedAuc()),
    control={
        "data": "made-up-people",
        "model": {"name": "mlp", "widths": [48, 24], "logits": 1},
        "partition": "iid",
        "federation": {"clients": 4, "rounds": 2, "secure_aggregation": True},
        "training": {"lr": 0.05, "batch_size": 32},
        "adversary_data": {"per_class": 20, "shadow": 300},
        "targets": {"members": 16, "others": 16},
    },
    figure=told_apart,
    sentence="records that were trained on are {figure} from others",
    claim="tell {often} whether a person's record was trained on",
    taxonomy=MEMBERSHIP_IDS,
    reader=read_members,
)

# Where passive attacks must find something: few people with many columns, learnt by heart.
PASSIVE_CONTROL = MappingProxyType(
    {
        "data": {"name": "made-up-people", "people": 260, "measures": 240},
        "model": {"name": "mlp", "widths": [64]},
        "partition": "iid",
        "federation": {"clients": 4, "rounds": 6},
        "training": {"lr": 0.1, "batch_size": 10, "epochs": 4},
        "adversary_data": {"per_class": 20},
        "membership": {"members": 100, "others": 60},
    }
)
