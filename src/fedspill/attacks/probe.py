"""What an adversary learns by running the model it was shown on data of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedspill.data.base import Examples
from fedspill.errors import NotApplicable
from fedspill.trace import View


def models_before(view: View) -> dict[int, nn.Module]:
    """For each round the model that the clients were handed, in evaluation mode."""
    models = {}
    for message in view.get("model"):
        model: nn.Module = view.knows("architecture")()
        missing, unexpected = model.load_state_dict(dict(message.tensors), strict=False)
        if missing or unexpected:
            raise NotApplicable(
                f"The recorded model lacks {len(missing)} tensors of the architecture: {', '.join(missing[:4])}.",
                remedy="Record all layers of the model.",
            )
        models[message.round] = model.eval()
    return models


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor, batch: int = 256) -> Tensor:
    """Softmax outputs (n, classes) in float64."""
    device = next(model.parameters()).device
    return torch.cat([model(part.to(device)).double().softmax(1).cpu() for part in torch.split(x, batch)])


def class_confidence(model: nn.Module, labelled: Examples, classes: int) -> Tensor:
    """(classes,) the mean probability that the model gives each class on samples of that class."""
    own = probabilities(model, labelled.x).gather(1, labelled.y[:, None]).squeeze(1)
    total = torch.zeros(classes, dtype=own.dtype).index_add_(0, labelled.y, own)
    number = torch.bincount(labelled.y, minlength=classes)
    if bool((number == 0).any()):
        raise NotApplicable("The auxiliary data lack some class; its confidence cannot be measured.")
    return total / number
