"""Is the privacy really on: code that claims differential privacy, tested by replay and by canaries."""

from fedspill.dp_audit.canary_clients import audit_canary_clients
from fedspill.dp_audit.client_canaries import audit_clients
from fedspill.dp_audit.mechanism import Claim, ClientMechanism, RecordMechanism
from fedspill.dp_audit.neighbours import audit_neighbours
from fedspill.dp_audit.record_canaries import audit_records
from fedspill.dp_audit.replay import replay
from fedspill.dp_audit.result import DpResult, DpTest

__all__ = [
    "Claim",
    "ClientMechanism",
    "DpResult",
    "DpTest",
    "RecordMechanism",
    "audit_canary_clients",
    "audit_clients",
    "audit_neighbours",
    "audit_records",
    "replay",
]
