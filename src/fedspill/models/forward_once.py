"""One forward pass that leaves the network and the random state as they were, to see what the network returns."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def forward_once(model: nn.Module, example: Tensor) -> object:
    """The output for `example` in evaluation mode and without gradients; modes and random state are put back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output: object = model(example)
            return output
    finally:
        for module, training in modes:
            module.training = training
