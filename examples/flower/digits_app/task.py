"""Model, data and local training: handwritten digits that come with scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def load_data(partition_id: int, num_partitions: int) -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    mine = order[partition_id::num_partitions]
    return TensorDataset(torch.from_numpy(images / 16).float()[mine], torch.from_numpy(labels)[mine])


def train(net: Net, data: TensorDataset, epochs: int, lr: float, batch_size: int, seed: int) -> float:
    torch.set_num_threads(1)
    loader = DataLoader(data, batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
    return loss.item()


@torch.no_grad()
def test(net: Net, data: TensorDataset) -> tuple[float, float]:
    images, labels = data.tensors
    logits = net(images)
    return nn.functional.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()
