"""An NVFlare job, recorded as it runs: python job.py FOLDER; the recording is FOLDER/trace, the truth FOLDER/truth."""

import sys
from pathlib import Path

from client import BATCH, LR, Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from fedspill.nvflare import RecordRounds

folder = Path(sys.argv[1]).absolute()
(folder / "truth").mkdir(parents=True)
truth = str(folder / "truth")
recipe = FedAvgRecipe(model=Net(), min_clients=3, num_rounds=3, train_script="client.py", train_args=truth)
recipe.add_server_input_filter(RecordRounds(str(folder / "trace"), lr=LR, batch_size=BATCH), tasks=["train"])
recipe.execute(SimEnv(num_clients=3, num_threads=3, workspace_root=str(folder / "workspace")))
