"""Fedspill measures what federated learning leaks: to whom, how surely, and what stops it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedspill.attacks.base import ActiveAttack, Attack
    from fedspill.audit.deployment import Deployment
    from fedspill.audit.plan import Plan
    from fedspill.data.base import Dataset, Examples
    from fedspill.defenses.base import Defense, Verdict
    from fedspill.errors import FedspillError
    from fedspill.federation.horizontal import Horizontal, Settings
    from fedspill.federation.local import LocalTraining
    from fedspill.guesses import Guess, LabelCounts
    from fedspill.messages import Message
    from fedspill.metrics.base import Metric, Score
    from fedspill.threat import ThreatModel, adversary
    from fedspill.trace import MemoryTrace, Origin, Trace, View
    from fedspill.tracefolder import FolderRecorder, FolderTrace

# Where each public name lives; imported on first use, so that `import fedspill` costs nothing.
_HOMES = {
    "ActiveAttack": "attacks.base",
    "Attack": "attacks.base",
    "Dataset": "data.base",
    "Defense": "defenses.base",
    "Deployment": "audit.deployment",
    "Examples": "data.base",
    "FedspillError": "errors",
    "FolderRecorder": "tracefolder",
    "FolderTrace": "tracefolder",
    "Guess": "guesses",
    "Horizontal": "federation.horizontal",
    "LabelCounts": "guesses",
    "LocalTraining": "federation.local",
    "MemoryTrace": "trace",
    "Message": "messages",
    "Metric": "metrics.base",
    "Origin": "trace",
    "Plan": "audit.plan",
    "Score": "metrics.base",
    "Settings": "federation.horizontal",
    "ThreatModel": "threat",
    "Trace": "trace",
    "Verdict": "defenses.base",
    "View": "trace",
    "adversary": "threat",
}
__all__ = [
    "ActiveAttack",
    "Attack",
    "Dataset",
    "Defense",
    "Deployment",
    "Examples",
    "FedspillError",
    "FolderRecorder",
    "FolderTrace",
    "Guess",
    "Horizontal",
    "LabelCounts",
    "LocalTraining",
    "MemoryTrace",
    "Message",
    "Metric",
    "Origin",
    "Plan",
    "Score",
    "Settings",
    "ThreatModel",
    "Trace",
    "Verdict",
    "View",
    "__version__",
    "adversary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedspill' has no attribute {name!r}")
    return getattr(import_module(f"fedspill.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
