"""A training loop of one's own: a backbone that stays frozen, a new head that six clients train. Recorded as it runs.

python federate.py FOLDER [truth]      then: fedspill audit --trace FOLDER
"""

import copy
import sys

import torch
from torch import nn

from fedspill import record_round

CLASSES, CLIENTS, ROUNDS, LR, BATCH = 4, 6, 3, 0.2, 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)  # stands for pretrained weights
        self.backbone = nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Linear(40, 24), nn.GELU())
        self.head = nn.Linear(24, CLASSES)
        self.backbone.requires_grad_(False)

    def forward(self, x):
        return self.head(self.backbone(x))


def client_data(index):
    rng = torch.Generator().manual_seed(index)
    y = torch.multinomial(torch.rand(CLASSES, generator=rng) + 0.05, 96, replacement=True, generator=rng)
    return torch.randn(CLASSES, 20, generator=torch.Generator().manual_seed(99))[y] + 0.5 * torch.randn(96, 20), y


def trained(model, x, y):
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.head.parameters(), lr=LR)
    for batch in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(x[batch]), y[batch]).backward()
        optimizer.step()
    return local.state_dict(), len(y)


def main(folder, with_truth):
    model, data = Net(), [client_data(index) for index in range(CLIENTS)]
    labels = {index: y for index, (_, y) in enumerate(data)} if with_truth else None
    with record_round(folder, lr=LR, batch_size=BATCH, head="head") as recorder:
        for number in range(ROUNDS):
            states = {index: trained(model, x, y) for index, (x, y) in enumerate(data)}
            recorder(number, model.state_dict(), states, labels=labels)
            model.load_state_dict({k: sum(s[k] for s, _ in states.values()) / CLIENTS for k in model.state_dict()})


if __name__ == "__main__":
    main(sys.argv[1], "truth" in sys.argv[2:])
