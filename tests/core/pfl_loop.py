"""A federation in pfl-research, recorded by a postprocessor and callback of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from torch import Tensor, nn

from fedspill import record_round

CLIENTS, ROUNDS = 4, 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))  # type: ignore[no-any-return]

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        return nn.functional.cross_entropy(self(x), y.long().flatten())

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


def own_labels(index: int) -> Tensor:
    rng = torch.Generator().manual_seed(index)
    return torch.multinomial(torch.rand(3, generator=rng) + 0.05, 30, replacement=True, generator=rng)


def own_data(index: int) -> Dataset:
    y = own_labels(index)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(9))[y]
    return Dataset((x.numpy(), y.numpy().astype(np.float32)), user_id=index)


class Recorded(Postprocessor, TrainingProcessCallback):
    """Sees each user's statistics before they are summed, and the model after each round."""

    def __init__(self, recorder: record_round) -> None:
        self.recorder = recorder
        self.start: dict[str, Tensor] = {}
        self.states: dict[int, tuple[dict[str, Tensor], int]] = {}

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.start = state_of(model)
        return Metrics()

    def postprocess_one_user(self, *, stats: Any, user_context: Any) -> tuple[Any, Metrics]:
        trained = {name: self.start[name] + stats[name] for name in self.start}
        self.states[int(user_context.user_id)] = (trained, user_context.num_datapoints)
        return stats, Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        labels = {index: own_labels(index) for index in self.states}
        self.recorder(central_iteration, self.start, self.states, labels=labels)
        self.start, self.states = state_of(model), {}
        return False, Metrics()


def state_of(model: PyTorchModel) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.variable_map.items()}


def run(recorder: record_round) -> dict[str, Tensor]:
    """The global model after all rounds."""
    users = iter(list(range(CLIENTS)) * 100)
    data = FederatedDataset(own_data, lambda: next(users))
    net, recorded = Net(), Recorded(recorder)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    backend = SimulatedBackend(data, data, postprocessors=[recorded, WeightByDatapoints()])
    params = NNAlgorithmParams(
        central_num_iterations=ROUNDS,
        evaluation_frequency=100,
        train_cohort_size=CLIENTS,
        val_cohort_size=0,
    )
    train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=10)
    evaluate = NNEvalHyperParams(local_batch_size=10)
    trained = FederatedAveraging().run(params, backend, model, train, evaluate, callbacks=[recorded])
    return state_of(trained)
