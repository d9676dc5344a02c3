"""A Flower app: six clinics, a CNN with batch norm, FedAdam on the server. Recorded as it runs: python app.py FOLDER"""

import sys
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from torch import nn

from fedspill.flower import record, truth_mod

CLIENTS, LR, BATCH, FOLDER = 6, 0.05, 16, Path(sys.argv[-1])


def net():
    torch.manual_seed(0)
    stem = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*stem, nn.Flatten(), nn.Linear(128, 10))


def own_data(context):
    """Every clinic has its own mix of classes."""
    rng = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    rows = torch.rand(10, generator=rng).pow(3)[y].multinomial(80, generator=rng)
    return x[rows].float().reshape(-1, 1, 8, 8) / 16, y[rows]


client = ClientApp(mods=[truth_mod(lambda context: own_data(context)[1], FOLDER.parent / "truth")])
server = ServerApp()


@client.train()
def train(msg, context):
    model, (x, y) = net(), own_data(context)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for batch in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    strategy = record(FedAdam(fraction_evaluate=0.0, eta=0.01), FOLDER, lr=LR, batch_size=BATCH)
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=3)


if __name__ == "__main__":
    run_simulation(server, client, CLIENTS)
