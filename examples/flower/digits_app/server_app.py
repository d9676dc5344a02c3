"""The server side. The two lines marked with `fedspill` are all that recording takes."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import save_file

from digits_app.task import Net
from fedspill.flower import record  # fedspill: line 1

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes = int(config["min-nodes"])
    strategy = FedAvg(fraction_train=config["fraction-train"], fraction_evaluate=0.0, min_available_nodes=nodes)
    strategy = record(strategy, config["trace"], lr=config["lr"], batch_size=config["batch-size"])  # fedspill: line 2
    torch.manual_seed(0)
    result = strategy.start(
        grid,
        ArrayRecord(Net().state_dict()),
        num_rounds=config["num-server-rounds"],
        timeout=300,
        train_config=ConfigRecord({key: config[key] for key in ("lr", "local-epochs", "batch-size")}),
    )
    if config["model"]:
        save_file(result.arrays.to_torch_state_dict(), config["model"])
