"""Short notes as token ids, and a classifier of them with attention."""

import torch
from torch import nn

WORDS, LENGTH, CLASSES = 200, 16, 4


def data():
    rng = torch.Generator().manual_seed(5)
    y = torch.randint(CLASSES, (800,), generator=rng)
    common = torch.randint(1, 40, (800, LENGTH), generator=rng)
    topic = 40 * (y[:, None] + 1) + torch.randint(40, (800, LENGTH), generator=rng)
    x = torch.where(torch.rand(800, LENGTH, generator=rng) < 0.5, common, topic.clamp(max=WORDS - 1))
    ends = torch.randint(6, LENGTH, (800, 1), generator=rng)
    x = x.masked_fill(torch.arange(LENGTH) >= ends, 0)  # 0 is padding
    return x[:640], y[:640], x[640:], y[640:]


class Classifier(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 24, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(24, classes)

    def forward(self, tokens):
        seen = (tokens != 0).unsqueeze(2)
        h = self.layer(self.embedding(tokens)) * seen
        return self.head(h.sum(1) / seen.sum(1).clamp(min=1))
