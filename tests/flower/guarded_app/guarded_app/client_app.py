"""Clients that keep watch: they train a small classifier, and refuse a model that no training makes."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedspill.defenses.guard import Guard
from fedspill.flower import mod
from guarded_app.model import small_classifier

app = ClientApp(mods=[mod(Guard(on_alarm="refuse"))])


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = small_classifier()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    rng = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    x, y = torch.randn(64, 16, generator=rng), torch.randint(3, (64,), generator=rng)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=msg)
