"""Fedspill in a running Flower federation: record what the server sees, guard the client, defend its updates.

    strategy = record(strategy, "digits.trace", lr=0.1, batch_size=16)      # in the ServerApp
    app = ClientApp(mods=[mod(defense)])                                    # in the ClientApp
    app = ClientApp(mods=[canary_client(clip=1.0, to="canary")])            # a client that audits the server's noise
    app = ClientApp(mods=[SameModel(FolderBoard("/shared/digests"))])       # clients compare what they were handed

Only this folder imports flwr; the rest of Fedspill works without it.
"""

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:
    raise ImportError("fedspill.flower needs Flower. Install it with: pip install 'fedspill[flower]'") from error

from fedspill.adapters.digest_board import FolderBoard
from fedspill.flower.canary_client import canary_client
from fedspill.flower.mods import mod
from fedspill.flower.record import record
from fedspill.flower.same_model import SameModel
from fedspill.flower.truth_mod import truth_mod

__all__ = ["FolderBoard", "SameModel", "canary_client", "mod", "record", "truth_mod"]
