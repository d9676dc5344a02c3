"""Model, data and local training: handwritten digits that come with scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def load_data(part: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[part::parts]
    return torch.from_numpy(images / 16).float()[order], torch.from_numpy(labels)[order]


def train(net: Net, x: torch.Tensor, y: torch.Tensor, lr: float, batch_size: int) -> None:
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for batch in torch.randperm(len(y)).split(batch_size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
