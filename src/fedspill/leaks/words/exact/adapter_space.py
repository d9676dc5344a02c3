"""What an adapter's second matrix tells of the inputs of its layer: they lie where its first matrix maps them.

LoRA adds B A x. The gradient of B is a sum of signals times A x, so that the r numbers A x of every input lie in its
row space, from the first round on, when B is still zero and the gradient of A vanishes. Inputs that were there are
fewer than r, or the space is full and tells nothing.
"""

from __future__ import annotations

import torch

from fedspill.leaks.words.exact.attacked_text import AttackedText
from fedspill.leaks.words.exact.row_space import SPARE, RowSpace, row_spaces


@torch.no_grad()
def adapter_space(attacked: AttackedText, layer: str) -> RowSpace | None:
    """All inputs that the layer's adapter maps into the row space of what was sent; None where that is everything.

    An input x is mapped into it if it is orthogonal to A' n for every n that is orthogonal to the row space.
    """
    name = f"{layer}.lora_B.default"
    rows = attacked.rows_of(name)
    if rows is None or not len(rows):
        return None
    down = attacked.net.get_parameter(f"{layer}.lora_A.default.weight").detach().double()
    spaces = row_spaces(rows).likely
    if not spaces or spaces[0].free < SPARE:
        return None
    inside = spaces[0].basis.to(down)
    every: torch.Tensor = torch.linalg.qr(torch.cat([inside, torch.eye(len(down)).to(down)], 1))[0]
    outside = down.T @ every[:, inside.shape[1] :]
    whole: torch.Tensor = torch.linalg.qr(outside, mode="complete")[0]
    return RowSpace(whole[:, outside.shape[1] :].contiguous(), attacked.width)
