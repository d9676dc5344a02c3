"""Fedspill measures what federated learning leaks: to whom, how surely, and what stops it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedspill.version import __version__

if TYPE_CHECKING:
    from fedspill.attack import ActiveAttack, Attack
    from fedspill.attack_run import Outcome, run_attack
    from fedspill.audit.result import AuditResult, Finding
    from fedspill.audit.run_audit import run_audit
    from fedspill.dataset import Dataset, DataSource, Examples
    from fedspill.defense import Defense, Verdict
    from fedspill.deployment.deployment import Deployment
    from fedspill.deployment.plan import Plan
    from fedspill.errors import FedspillError
    from fedspill.federation.horizontal import Horizontal, Settings
    from fedspill.guess import Guess
    from fedspill.leak import Leak
    from fedspill.leaks.labels.guess import LabelCounts
    from fedspill.messages import Message
    from fedspill.metric import Metric, Score
    from fedspill.round_recorder import record_round
    from fedspill.threat import ThreatModel, adversary
    from fedspill.trace import MemoryTrace, Origin, Trace, View
    from fedspill.trace_folder import FolderRecorder, FolderTrace
    from fedspill.training import LocalTraining

# Where each public name lives; imported on first use, so that `import fedspill` costs nothing.
_HOMES = {
    "ActiveAttack": "attack",
    "Attack": "attack",
    "AuditResult": "audit.result",
    "DataSource": "dataset",
    "Dataset": "dataset",
    "Defense": "defense",
    "Deployment": "deployment.deployment",
    "Examples": "dataset",
    "FedspillError": "errors",
    "Finding": "audit.result",
    "FolderRecorder": "trace_folder",
    "FolderTrace": "trace_folder",
    "Guess": "guess",
    "Horizontal": "federation.horizontal",
    "LabelCounts": "leaks.labels.guess",
    "Leak": "leak",
    "LocalTraining": "training",
    "MemoryTrace": "trace",
    "Message": "messages",
    "Metric": "metric",
    "Origin": "trace",
    "Outcome": "attack_run",
    "Plan": "deployment.plan",
    "Score": "metric",
    "Settings": "federation.horizontal",
    "ThreatModel": "threat",
    "Trace": "trace",
    "Verdict": "defense",
    "View": "trace",
    "adversary": "threat",
    "record_round": "round_recorder",
    "run_attack": "attack_run",
    "run_audit": "audit.run_audit",
}
__all__ = [
    "ActiveAttack",
    "Attack",
    "AuditResult",
    "DataSource",
    "Dataset",
    "Defense",
    "Deployment",
    "Examples",
    "FedspillError",
    "Finding",
    "FolderRecorder",
    "FolderTrace",
    "Guess",
    "Horizontal",
    "LabelCounts",
    "Leak",
    "LocalTraining",
    "MemoryTrace",
    "Message",
    "Metric",
    "Origin",
    "Outcome",
    "Plan",
    "Score",
    "Settings",
    "ThreatModel",
    "Trace",
    "Verdict",
    "View",
    "__version__",
    "adversary",
    "record_round",
    "run_attack",
    "run_audit",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedspill' has no attribute {name!r}")
    return getattr(import_module(f"fedspill.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
