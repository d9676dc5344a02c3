"""Which engine runs a deployment's federation: our own, or Flower's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedspill.defense import Defense
from fedspill.deployment.deployment import Deployment
from fedspill.errors import UsageError
from fedspill.federation.horizontal import Horizontal
from fedspill.federation.private_towers import PrivateTowers
from fedspill.federation.trainers import Engine
from fedspill.federation.vertical import Vertical
from fedspill.trace import NoRecorder, Recorder

if TYPE_CHECKING:
    from fedspill.flower.engine import FlowerFederation


def federation_of(
    deployment: Deployment,
    recorder: Recorder | None = None,
    *,
    device: str = "cpu",
    workers: int = 1,
    engine: Engine = "auto",
) -> Horizontal | Vertical | PrivateTowers | FlowerFederation:
    """Ready to run, by the engine that the plan names."""
    if deployment.plan.federation.engine == "own":
        return deployment.federation(recorder, device=device, workers=workers, engine=engine)
    if device != "cpu":
        raise UsageError(f"Under Flower clients train on the CPU, not on {device}.", remedy='Use engine = "own".')
    mixing = [one.name for one in deployment.settings.defenses if type(one).data is not Defense.data]
    if mixing:
        raise UsageError(f"{mixing[0]} gives clients public samples, which no Flower app of ours does.")
    try:
        from fedspill.flower.engine import FlowerFederation
    except ImportError as error:
        raise UsageError(str(error)) from None
    return FlowerFederation(deployment, recorder or NoRecorder())
