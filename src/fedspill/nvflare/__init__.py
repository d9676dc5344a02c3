"""Fedspill in a running NVFlare federation: record what the server sees, guard the client, defend its updates.

    recipe.add_server_input_filter(RecordRounds("digits.trace", lr=0.1, batch_size=16), tasks=["train"])
    recipe.add_client_input_filter(GuardModel([{"name": "guard"}]), tasks=["train"])
    recipe.add_client_output_filter(DefendUpdate([{"name": "clip-noise", "sigma": 0.01}]), tasks=["train"])

Only this folder imports nvflare; the rest of Fedspill works without it.
"""

try:
    import nvflare.apis.filter as _filter  # noqa: F401
except ImportError as error:
    raise ImportError("fedspill.nvflare needs NVFlare. Install it with: pip install 'fedspill[nvflare]'") from error

from fedspill.nvflare.compare_models import CompareModels
from fedspill.nvflare.defend_update import DefendUpdate
from fedspill.nvflare.guard_model import GuardModel
from fedspill.nvflare.record_rounds import RecordRounds

__all__ = ["CompareModels", "DefendUpdate", "GuardModel", "RecordRounds"]
