"""A malicious server: in its second round it plants a neuron that fires for few samples only."""

from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedspill.flower import record
from guarded_app.model import small_classifier

app = ServerApp()


class Planting(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Grid) -> Iterable[Message]:
        if server_round > 1:
            state = arrays.to_torch_state_dict()
            direction = torch.randn(16, generator=torch.Generator().manual_seed(1))
            state["0.weight"][0] = direction / direction.norm()
            state["0.bias"][0] = -2.0
            arrays = ArrayRecord(state)
        return super().configure_train(server_round, arrays, config, grid)


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = record(Planting(fraction_evaluate=0.0), str(context.run_config["trace"]))
    strategy.start(grid, ArrayRecord(small_classifier().state_dict()), num_rounds=2, timeout=120)
