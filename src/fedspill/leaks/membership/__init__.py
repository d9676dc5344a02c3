"""Whether a person took part: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.membership.ami import AMI
from fedspill.leaks.membership.guess import Membership
from fedspill.leaks.membership.leak import MEMBERSHIP
from fedspill.leaks.membership.metrics import MembershipAuc
from fedspill.leaks.membership.planted_membership import PlantedMembership

__all__ = [
    "AMI",
    "MEMBERSHIP",
    "Membership",
    "MembershipAuc",
    "PlantedMembership",
]
