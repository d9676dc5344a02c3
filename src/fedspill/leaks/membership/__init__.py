"""Whether a person took part: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.membership.ami import AMI
from fedspill.leaks.membership.avg_cosine import AvgCosine
from fedspill.leaks.membership.fedmia_i import FedMiaI
from fedspill.leaks.membership.fedmia_ii import FedMiaII
from fedspill.leaks.membership.grad_cosine import GradCosine
from fedspill.leaks.membership.grad_diff import GradDiff
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import MEMBERSHIP
from fedspill.leaks.membership.loss import Loss
from fedspill.leaks.membership.loss_series import LossSeries
from fedspill.leaks.membership.membership import PassiveMembership
from fedspill.leaks.membership.metrics import LabelMatchedAuc, MembershipAuc, MembershipTpr01, MembershipTpr1
from fedspill.leaks.membership.planted_membership import PlantedMembership
from fedspill.leaks.membership.rmia import Rmia
from fedspill.leaks.membership.zari import Zari

__all__ = [
    "AMI",
    "MEMBERSHIP",
    "AvgCosine",
    "FedMiaI",
    "FedMiaII",
    "GradCosine",
    "GradDiff",
    "LabelMatchedAuc",
    "Loss",
    "LossSeries",
    "Membership",
    "MembershipAuc",
    "MembershipTpr01",
    "MembershipTpr1",
    "PassiveMembership",
    "PlantedMembership",
    "Rmia",
    "Zari",
]
