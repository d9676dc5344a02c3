"""Scale-MIA (Shi et al. 2025): features are read from bins behind any convolutions, and decoded to inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from fedspill.attack import ActiveAttack
from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.planted_guess import PLANT_CONTROL, guess_of_batches, vouches_for_none
from fedspill.messages import Message
from fedspill.planting.arrival import Way
from fedspill.planting.first_layer import PlantedLayer, first_layer_of
from fedspill.planting.latent_code import fit_decoder, latent, plant_latent_bins
from fedspill.planting.planted_rounds import PlantedRounds
from fedspill.planting.read_batches import PLANT_NEEDS, PlantedBatch, planted_batches, refuse_large_sums
from fedspill.planting.readings import readings_of
from fedspill.planting.robbing_rows import strongest_quotients
from fedspill.trace import View
from fedspill.training import Tensors


@final
@dataclass(frozen=True)
class ScaleMia(ActiveAttack):
    """Trains what comes before the first linear layer as an encoder, on inputs at hand, and reads features from bins.

    For networks with convolutions, pooled ones too. What comes back is as sharp as the decoder is, on inputs that it
    has not seen: hardly ever exact, and nothing is vouched for. The authors' decoder is the mirror of their networks;
    here it has one hidden layer, and batches, learning rate and steps are ours, since the paper's text was not at hand.
    """

    name: ClassVar[str] = "scale-mia"
    title: ClassVar[str] = "Scale-MIA: features read from bins, and decoded"
    paper: ClassVar[str] = "Shi, Wang, Xiao, Zhang, Shi, Hou, Lou, NDSS 2025"
    needs = PLANT_NEEDS
    leak = INPUTS
    control: ClassVar[Mapping[str, Any] | None] = {
        **PLANT_CONTROL,
        "model": {"name": "cnn-flat", "first": 8, "second": 8, "dense": 64},
        "adversary_data": {"per_class": 100},
    }

    first: int = 1  # honest rounds before it plants
    arrival: int = 1  # rounds in which the plant comes in
    way: Way = "line"
    rounds_read: int = 1
    steps: int = 1000  # of training the encoder with its decoder
    hidden: int = 256  # units of the decoder
    draw: int = 0  # of the decoder's first weights; the same in all rounds of an arrival

    def rounds(self, view: View) -> range:
        refuse_large_sums(view)
        if not _place_of(view)[1].before:
            raise NotApplicable("Scale-MIA trains what comes before the first linear layer; here that is nothing.")
        return self._when.planted

    def plant(self, model: Message, view: View, rng: torch.Generator) -> Message:
        network, layer, known = _place_of(view)
        honest = dict(model.tensors)
        network.load_state_dict(honest, strict=False)
        same = torch.Generator().manual_seed(self.draw)
        fit_decoder(network, layer, known, self.steps, self.hidden, same, with_encoder=True)
        trained = {name: network.state_dict()[name].clone() for name in honest}
        with torch.no_grad():
            goal = plant_latent_bins(layer, trained, latent(network, layer, known))
        return replace(model, tensors=self._when.handed_out(model.round, honest, goal, layer))

    def run(self, view: View, rng: torch.Generator) -> Inputs:
        network, layer, known = _place_of(view)
        batches, notes = planted_batches(view, self._when.read, layer)
        found: list[Tensor] = []
        decoders: dict[int, nn.Module] = {}  # one for each model that was handed out
        for batch in batches:
            state = next(iter(batch.models.values()))
            if batch.of.round not in decoders:
                network.load_state_dict(state, strict=False)
                same = torch.Generator().manual_seed(self.draw)
                fitted = fit_decoder(network, layer, known, self.steps, self.hidden, same, with_encoder=False)
                decoders[batch.of.round] = fitted
            found.append(_read(decoders[batch.of.round], state, layer, known, batch))
        return guess_of_batches(batches, found, [vouches_for_none(one) for one in found], notes=notes)

    @property
    def _when(self) -> PlantedRounds:
        return PlantedRounds(self.first, self.arrival, self.rounds_read, self.way)


def _read(decoder: nn.Module, state: Tensors, layer: PlantedLayer, known: Tensor, batch: PlantedBatch) -> Tensor:
    """Inputs made of the features that the bins hold."""
    rows = (state[name].double() for name in (layer.weight, layer.bias, layer.second_weight))
    codes = strongest_quotients(readings_of(*rows), *batch.of_first(layer), batch.samples)
    with torch.no_grad():
        made: Tensor = decoder(codes.float()).reshape(-1, *known.shape[1:])
    return made.nan_to_num().clamp(float(known.min()), float(known.max()))


def _place_of(view: View) -> tuple[nn.Module, PlantedLayer, Tensor]:
    """The network, its first linear layer, and inputs at hand."""
    network = view.knows("architecture")()
    return network, first_layer_of(network), view.knows("unlabelled_aux")
