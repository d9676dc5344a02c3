"""A workload in pfl: prints the CPU seconds of each round as one JSON line. Runs in the peers' environment."""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workloads import WORKLOADS


class Trained(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return nn.functional.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {}


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.marks = [time.process_time()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
        self.marks.append(time.process_time())
        return False, Metrics()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("rounds", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = WORKLOADS[options.workload]
    x, y = work.data()
    users = FederatedDataset(
        lambda user: Dataset((x[user], y[user]), user_id=str(user)),
        get_user_sampler("random", list(range(work.clients))),
    )
    module = Trained(work.model())
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=options.rounds + 1,
            evaluation_frequency=10**6,
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=PyTorchModel(
            module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=work.batch_size),
        callbacks=[clock],
    )
    seconds = [after - before for before, after in pairwise(clock.marks)]
    print(json.dumps({"seconds": seconds[1:]}))  # the first round warms up


if __name__ == "__main__":
    main()
