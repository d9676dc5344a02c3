"""Two clients, three rounds, in NVFlare's simulator: job.py WORKSPACE TRACE."""

import sys
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv
from task import Net

from fedspill.nvflare import DefendUpdate, GuardModel, RecordRounds

workspace, trace = sys.argv[1:]
recipe = FedAvgRecipe(
    name="digits",
    model=Net(),
    min_clients=2,
    num_rounds=3,
    train_script="client.py",
    params_transfer_type=TransferType.DIFF,
)
# What the server sees is recorded; each client inspects the model before it trains, and clips what leaves.
record = RecordRounds(str(Path(trace).absolute()), lr=0.1, batch_size=16)
recipe.add_server_input_filter(record, tasks=["train"])
recipe.add_client_input_filter(GuardModel([{"name": "guard"}]), tasks=["train"])
recipe.add_client_output_filter(DefendUpdate([{"name": "clip-noise", "clip": 0.5, "sigma": 0.0}]), tasks=["train"])
run = recipe.execute(SimEnv(num_clients=2, num_threads=2, workspace_root=workspace))
print(run.get_status(), run.get_result())
