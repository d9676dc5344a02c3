"""NVFlare beside Fedspill: an aggregator that averages as FedAvg does and records what it averaged."""

from pathlib import Path

import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from fedspill.federation.weighted_sum import weighted_sum
from fedspill.messages import AGGREGATOR, SERVER, Message
from fedspill.trace_folder import FolderRecorder


class RecordingAggregator(ModelAggregator):
    def __init__(self, trace: str, rounds: int, lr: float, batch_size: int, head: str, classes: int) -> None:
        super().__init__()
        self.trace, self.rounds, self.lr, self.batch_size, self.head, self.classes = (
            trace, rounds, lr, batch_size, head, classes,
        )  # fmt: skip
        self.got, self.number, self.recorder = [], 0, None

    def accept_model(self, model: FLModel) -> None:
        self.got.append(model)

    def aggregate_model(self) -> FLModel:
        updates = []
        for model in self.got:
            sender = f"client:{model.meta['client_name']}"
            tensors = {name: torch.as_tensor(value) for name, value in model.params.items()}
            info = {"examples": int(model.meta["examples"])}
            updates.append(Message(self.number, sender, SERVER, "update", tensors, info))
        examples = [update.info["examples"] for update in updates]
        total = weighted_sum([update.tensors for update in updates], [n / sum(examples) for n in examples])
        info = {"clients": len(updates), "examples": sum(examples), "of": "update"}
        self._record([*updates, Message(self.number, AGGREGATOR, SERVER, "aggregate", total, info)])
        return FLModel(params={name: step.numpy() for name, step in total.items()}, params_type=ParamsType.DIFF)

    def reset_stats(self) -> None:
        self.got = []

    def _record(self, messages: list[Message]) -> None:
        facts = {"classes": self.classes, "algorithm": "fedavg", "weighting": "examples", "secure_aggregation": False}
        facts |= {"head_weight": f"{self.head}.weight", "head_bias": f"{self.head}.bias", "optimizer": "sgd"}
        facts |= {"local_lr": self.lr, "batch_size": self.batch_size, "local_epochs": 1, "client_count": len(self.got)}
        self.recorder = self.recorder or FolderRecorder(Path(self.trace), facts)
        for message in messages:
            self.recorder.say(message)
        self.recorder.end_round(self.number)
        self.number += 1
        if self.number == self.rounds:
            self.recorder.finish()
