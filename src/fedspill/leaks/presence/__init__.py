"""Classes that took part in a round: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.presence.class_sniffing import ClassSniffing
from fedspill.leaks.presence.guess import Presence
from fedspill.leaks.presence.leak import PRESENCE
from fedspill.leaks.presence.metrics import BalancedPresence, PresenceSuccess

__all__ = [
    "PRESENCE",
    "BalancedPresence",
    "ClassSniffing",
    "Presence",
    "PresenceSuccess",
]
