"""Whether another machine would come to the same results: its code, what it sees, its data."""

from __future__ import annotations

from fedspill.audit.code_fingerprint import fingerprint
from fedspill.audit.data_digest import data_digest
from fedspill.audit.target import Target
from fedspill.errors import UsageError


def refuse_other_machine(target: Target, digest: str) -> None:
    """Raises where this machine has other code or other data than the one that asks."""
    if fingerprint(target.plan) != target.code:
        raise UsageError("its code is another.", remedy="Install the same fedspill, and your own code, on all of them.")
    for path in (target.trace, target.truth, target.nodes):
        if path is not None and not path.exists():
            raise UsageError(f"it does not see {path}.", remedy="Put it on a disk that all of them share.")
    if data_digest(target) != digest:
        raise UsageError(f"its {target.plan.data.name} are other data.", remedy="Give all of them the same data.")
