"""A server that hands out another model in its second round."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedspill.flower import record

app = ServerApp()


class Planting(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Grid) -> Iterable[Message]:
        if server_round > 1:
            arrays = ArrayRecord([array + 9 for array in arrays.to_numpy_ndarrays()])
        return super().configure_train(server_round, arrays, config, grid)


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = record(Planting(fraction_evaluate=0.0), str(context.run_config["trace"]))
    strategy.start(grid, ArrayRecord([np.zeros((2, 3), np.float32)]), num_rounds=2, timeout=120)
