"""Eight hospitals, five diagnoses that are not equally common, two columns of words and six of numbers."""

import torch
from torch import nn

from fedspill import Dataset, Examples

NUMBERS, WARDS, DRUGS, CLASSES, HOSPITALS = 6, 5, 12, 5, 8


def data():
    rng = torch.Generator().manual_seed(11)
    hospital = torch.randint(HOSPITALS, (1600,), generator=rng)
    odds = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0]) * torch.rand(HOSPITALS, CLASSES, generator=rng).add(0.1)
    y = torch.multinomial(odds[hospital], 1, generator=rng).flatten()
    centres = torch.randn(CLASSES, NUMBERS, generator=rng)
    numbers = centres[y] + torch.randn(1600, NUMBERS, generator=rng)
    ward = (y + torch.randint(2, (1600,), generator=rng)) % WARDS
    drug = (2 * y + torch.randint(4, (1600,), generator=rng)) % DRUGS
    x = torch.cat([numbers, ward[:, None], drug[:, None]], 1)
    test = torch.arange(1600) % 4 == 0
    train, held = (Examples(x[part], y[part], hospital[part]) for part in (~test, test))
    columns = (*(f"value {i}" for i in range(NUMBERS)), "ward", "drug")
    return Dataset("clinics", tuple(f"diagnosis {i}" for i in range(CLASSES)), train, held, columns)


class Net(nn.Module):
    """Embeddings for the words, LayerNorm, and a residual connection."""

    def __init__(self):
        super().__init__()
        self.ward, self.drug = nn.Embedding(WARDS, 4), nn.Embedding(DRUGS, 4)
        self.stem, self.norm = nn.Linear(NUMBERS + 8, 32), nn.LayerNorm(32)
        self.inner, self.head = nn.Linear(32, 32), nn.Linear(32, CLASSES)

    def forward(self, x):
        words = self.ward(x[:, -2].long()), self.drug(x[:, -1].long())
        h = torch.relu(self.norm(self.stem(torch.cat([x[:, :NUMBERS], *words], 1))))
        return self.head(h + torch.relu(self.inner(h)))
