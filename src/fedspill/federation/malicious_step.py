"""How a malicious party of a vertical federation trains: faster than the others, so that the head comes to rely on it.

Fu et al., Label Inference Attacks Against Vertical Federated Learning, USENIX Security 2022, section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class MaliciousStep:
    """Takes the party's own optimizer step, each weight's up to `most` times as far as honest training would.

    How far is decided weight by weight: 1 + gain * g / g', where g and g' are its gradients of this step and of the one
    before, held between 1 and `most`. A weight whose gradient keeps its sign is hurried on.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, gain: float = 1.0, most: float = 5.0) -> None:
        self._parameters = list(parameters)
        self._before: list[Tensor] | None = None
        self._gain, self._most = gain, most

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in self._parameters]
        honest = [parameter.detach().clone() for parameter in self._parameters]
        optimizer.step()
        if self._before is not None:
            with torch.no_grad():
                for parameter, start, now, last in zip(self._parameters, honest, gradients, self._before, strict=True):
                    ratio = (1 + self._gain * now / (last + 1e-7 * last.sign() + 1e-12)).clamp(1, self._most)
                    parameter.copy_(start + ratio * (parameter - start))
        self._before = gradients
