"""Two clients, three rounds, in NVFlare's simulator: job.py WORKSPACE TRACE."""

import sys
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv
from record import RecordingAggregator
from task import Net

workspace, trace = sys.argv[1:]
recipe = FedAvgRecipe(
    name="digits",
    model=Net(),
    min_clients=2,
    num_rounds=3,
    train_script="client.py",
    params_transfer_type=TransferType.DIFF,
    aggregator=RecordingAggregator(
        str(Path(trace).absolute()), rounds=3, lr=0.1, batch_size=16, head="fc2", classes=10
    ),
)
run = recipe.execute(SimEnv(num_clients=2, num_threads=2, workspace_root=workspace))
print(run.get_status(), run.get_result())
