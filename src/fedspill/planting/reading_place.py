"""Where a network can be made to read its inputs: in its first linear layer, behind convolutions that pass them on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.planting.first_layer import PlantedLayer, first_layer_of
from fedspill.planting.input_packing import InputPacking
from fedspill.planting.pass_through import PassThrough, pass_through_of, plant_pass_through
from fedspill.trace import View
from fedspill.training import Tensors


@dataclass(frozen=True, eq=False)
class ReadingPlace:
    """The first linear layer of a network, and how inputs of the kind `known` (n, *shape) get there."""

    model: nn.Module
    layer: PlantedLayer
    known: Tensor
    through: PassThrough | None  # None: the layer reads inputs as they are
    limits: tuple[float, float] | None = None  # of all values that an input may have, where they are known

    @staticmethod
    def known_to(view: View) -> ReadingPlace:
        """The place in the network whose code the server has; inputs of the kind say between which values they lie, or
        the schema where they are records of a table.
        """
        place = ReadingPlace.of(view.knows("architecture")(), view.knows("unlabelled_aux"))
        return replace(place, limits=view.knows("table_schema").limits()) if view.has("table_schema") else place

    @staticmethod
    def of(model: nn.Module, known: Tensor) -> ReadingPlace:
        layer, shape = first_layer_of(model), tuple(known.shape[1:])
        if not all(parameter.requires_grad for parameter in model.get_submodule(layer.name).parameters()):
            raise NotApplicable("The first linear layer is frozen, so that nothing of it is sent.")
        if layer.before:
            return ReadingPlace(model, layer, known, pass_through_of(model, layer.name, shape))
        features, inputs = model.get_submodule(layer.name).in_features, known[0].numel()
        if features != inputs:
            raise NotApplicable(f"The first linear layer reads {features} numbers, and an input has {inputs}.")
        return ReadingPlace(model, layer, known, None)

    @property
    def rows(self) -> int:
        weight = self.model.get_submodule(self.layer.name).weight
        assert isinstance(weight, Tensor)
        return len(weight)

    @property
    def blocks(self) -> int:
        """Clients whose inputs have room beside each other."""
        return 1 if self.through is None else self.through.blocks

    def packing(self, block: int = 0) -> InputPacking:
        through = self.through
        packing = InputPacking.flat(self.known) if through is None else through.packing(self.known, block)
        if self.limits is None:
            return packing
        return replace(packing, low=min(packing.low, self.limits[0]), high=max(packing.high, self.limits[1]))

    def opened(self, state: Tensors, block: int = 0) -> Tensors:
        """The state with the way to the layer made free, for inputs of that block."""
        if self.through is None:
            return state
        return plant_pass_through(self.model, state, self.through, float(self.known.min()), block)

    def inputs(self) -> Tensor:
        """(n, inputs) the inputs at hand, flat."""
        return self.known.flatten(1)

    def features(self) -> Tensor:
        """(n, features) the inputs at hand as the layer will read them."""
        if self.through is None:
            return self.inputs()
        wide = self.model.get_submodule(self.layer.name).in_features
        assert isinstance(wide, int)
        read = torch.zeros(len(self.known), wide)
        packing = self.packing()
        read[:, packing.places] = self.inputs() + packing.shift
        return read
