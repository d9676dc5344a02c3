"""What attacks by neurons in closed form need, and how the neurons are fitted to the clients and the network."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fedspill.errors import NotApplicable
from fedspill.planting.closed_form import NeuronDesign
from fedspill.planting.dense_network import DenseNetwork
from fedspill.threat import needs
from fedspill.trace import View

ACTIVE_NEEDS = needs(sees=["aggregate"], knows=["architecture", "targets", "unlabelled_aux"], does=["alter_model"])
# Adam moves every weight by its learning rate, however small the gradient; beside large first-layer weights that is
# little. Under SGD large weights would make the gradients of other neurons explode.
REACH = {"adam": 1e4}
REACH_OTHERWISE = 50.0


def reach_for(view: View) -> float:
    """The size of first-layer weights that suits the clients' optimizer, where it is known."""
    settings = view.knows("optimizer") if view.has("optimizer") else "sgd"
    name = settings.get("name") if isinstance(settings, dict) else settings
    return REACH.get(str(name), REACH_OTHERWISE)


def fitted_to_width(
    design: NeuronDesign, dense: DenseNetwork, state: dict[str, Tensor], at_once: int, *, secret: bool
) -> NeuronDesign:
    """The design with so few directions that the first layer has room for all targets of a round."""
    if dense.hidden == 1 or at_once == 0:
        return design
    room = (len(state[dense.weight(0)]) // at_once - secret) // 2
    if room < 1:
        raise NotApplicable(
            f"{at_once} targets at once do not fit into {len(state[dense.weight(0)])} first-layer units."
        )
    return replace(design, directions=min(design.directions, room))
