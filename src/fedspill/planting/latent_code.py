"""Scale-MIA (Shi et al. 2025): features that a decoder turns back into inputs, read by rows planted behind them.

What comes before the first linear layer is trained, on inputs at hand and with a decoder of the server's own, to keep
what inputs look like. The layer then sorts samples by the mean of their features, as Robbing the Fed does by their
brightness, and the decoder makes inputs of the features that are read. That gets through pooling, which exact plants do
not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedspill.planting.bins import place_rows
from fedspill.planting.first_layer import PlantedLayer
from fedspill.planting.input_packing import InputPacking
from fedspill.training import Tensors

_BATCH, _LR = 64, 3e-3


def latent(model: nn.Module, layer: PlantedLayer, x: Tensor) -> Tensor:
    """(n, features) what the first linear layer reads of inputs x, with a graph to the weights before it."""
    caught: list[Tensor] = []
    handle = model.get_submodule(layer.name).register_forward_hook(lambda _, inputs, __: caught.append(inputs[0]))
    try:
        model(x)
    finally:
        handle.remove()
    return caught[0]


def make_decoder(features: int, inputs: int, hidden: int, rng: torch.Generator) -> nn.Sequential:
    """From features to flat inputs; the authors mirror their convolutions, which only fits their networks."""
    sizes = ((features, hidden), (hidden, inputs))
    parts = [nn.utils.skip_init(nn.Linear, *size) for size in sizes]  # type: ignore[no-untyped-call]
    for part in parts:
        with torch.no_grad():
            part.weight.copy_(torch.randn(part.weight.shape, generator=rng) / part.in_features**0.5)
            part.bias.zero_()
    return nn.Sequential(parts[0], nn.ReLU(), parts[1])


@torch.enable_grad()
def fit_decoder(
    model: nn.Module,
    layer: PlantedLayer,
    known: Tensor,
    steps: int,
    hidden: int,
    rng: torch.Generator,
    *,
    with_encoder: bool,
) -> nn.Sequential:
    """A decoder, trained by mean squared error on inputs `known` (n, *shape); if asked, with what is before the layer.

    The model is in evaluation mode, as it is when it is read.
    """
    model.eval()
    with torch.no_grad():
        features = latent(model, layer, known[:1]).shape[1]
    decoder = make_decoder(features, known[0].numel(), hidden, rng).to(known.device)
    before = [parameter for name in layer.before for parameter in model.get_submodule(name).parameters()]
    optimizer = torch.optim.Adam([*decoder.parameters(), *(before if with_encoder else [])], lr=_LR)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x = known[torch.randint(len(known), (min(_BATCH, len(known)),), generator=rng)]
        code = latent(model, layer, x)
        loss = (decoder(code if with_encoder else code.detach()) - x.flatten(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return decoder


@torch.no_grad()
def plant_latent_bins(layer: PlantedLayer, state: Tensors, codes: Tensor) -> Tensors:
    """The state with rows that average features, an equal share of `codes` (n, features) between their thresholds, and
    columns behind them that are alike.
    """
    planted = {name: tensor.clone() for name, tensor in state.items()}
    weight, second = planted[layer.weight], planted[layer.second_weight]
    heights, rows = codes.double().mean(1), len(weight)
    thresholds = torch.quantile(heights, torch.arange(rows).to(heights) / rows)
    thresholds[0] = heights.min() - 10 * heights.std()
    w = torch.full((rows, codes.shape[1]), 1 / codes.shape[1], dtype=torch.float64, device=codes.device)
    place_rows(weight, planted[layer.bias], torch.arange(rows), w, -thresholds, [InputPacking.flat(codes)])
    second.copy_(second.mean(1, keepdim=True).expand_as(second))
    return planted
