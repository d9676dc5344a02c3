"""One forward pass that leaves the network and the random state as they were, to see what the network returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def forward_once(model: nn.Module, example: Tensor) -> object:
    """The output for `example` in evaluation mode and without gradients; modes and random state are put back."""
    with evaluated(model), torch.no_grad():
        output: object = model(example)
        return output


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within; modes and random state are put back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes:
            module.training = training
