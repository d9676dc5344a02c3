"""The defenses of a plan as code under audit: what leaves a client, and the steps of its training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defense import Defense, Guarantee
from fedspill.defenses.verify import data_use
from fedspill.deployment.deployment import Deployment
from fedspill.dp_audit.client_canaries import audit_clients
from fedspill.dp_audit.mechanism import Claim, ClientMechanism, RecordMechanism
from fedspill.dp_audit.record_canaries import audit_records
from fedspill.dp_audit.result import DpResult
from fedspill.messages import SERVER, Message, client
from fedspill.seeds import generator
from fedspill.training import LocalTraining, trained

_RELEASES = 10  # steps that a run with record canaries takes
_REAL = 200  # records beside the canaries


@final
class SentByDefense(ClientMechanism):
    """What one defense lets leave a client: every message by itself."""

    alone = True

    def __init__(self, defense: Defense, model: nn.Module, seed: int) -> None:
        self._defense, self._seed = defense, seed
        self._shapes = {name: parameter.shape for name, parameter in trained(model).items()}
        self.spans, start = {}, 0
        for name, shape in self._shapes.items():
            self.spans[name] = slice(start, start + math.prod(shape))
            start += math.prod(shape)

    def release(self, updates: Tensor, number: int) -> Tensor:
        (update,) = updates
        tensors = {name: update[self.spans[name]].reshape(shape) for name, shape in self._shapes.items()}
        message = Message(number, client(0), SERVER, "update", tensors, {"examples": 1})
        sent = self._defense.outgoing(message, generator(self._seed, self._defense.name, number, 0))
        return torch.cat([sent.tensors[name].flatten() for name in self._shapes])


@final
@dataclass(frozen=True, eq=False)
class StepOfDefense(RecordMechanism):
    """The summed gradient of one step of local training that a defense changed."""

    defense: Defense
    seed: int

    def release(self, model: nn.Module, x: Tensor, y: Tensor, number: int) -> Mapping[str, Tensor]:
        training = self.defense.local(LocalTraining(algorithm="fedsgd", batch_size=len(x)))
        rng = generator(self.seed, self.defense.name, "step", number)
        mean = training.gradient_of(model, Examples(x, y), rng)
        return {name: len(x) * tensor for name, tensor in mean.items()}


def audit_defenses(deployment: Deployment, seed: int) -> list[DpResult]:
    """Every defense that claims an epsilon, tested by itself."""
    settings = deployment.settings
    sizes = [len(own) for own in deployment.shares.clients if len(own)]
    parameters = sum(p.numel() for p in deployment.build_model().parameters())
    found = []
    for defense in settings.defenses:
        guarantee = defense.claims(data_use(settings, sizes, parameters))
        if guarantee is not None and math.isfinite(guarantee.epsilon):
            result = _audited(defense, guarantee, deployment, seed)
            if result is not None:
                found.append(result.model_copy(update={"notes": (*result.notes, *_caveats(guarantee))}))
    return found


def _audited(defense: Defense, guarantee: Guarantee, deployment: Deployment, seed: int) -> DpResult | None:
    effect, model = defense.effect(), deployment.build_model()
    rng = generator(seed, "dp audit", defense.name)
    if effect.update_clip is not None and effect.update_noise > 0 and guarantee.delta > 0:
        rounds = deployment.settings.rounds
        claim = Claim(effect.update_noise, effect.update_clip, rounds, guarantee.delta, True, guarantee.epsilon)
        return audit_clients(f"{defense.name}, a client's whole data", SentByDefense(defense, model, seed), claim, rng)
    if effect.sample_clip is not None and effect.sample_sum_noise > 0 and guarantee.delta > 0:
        claim = Claim(effect.sample_sum_noise, effect.sample_clip, _RELEASES, guarantee.delta)
        own = deployment.shares.clients[0]
        real = own.take(torch.arange(min(_REAL, len(own))))
        found = audit_records(f"{defense.name}, one record", StepOfDefense(defense, seed), claim, model, real, rng)
        said = (
            f"tested is the noise of a step: {_RELEASES} steps on all records must have epsilon {claim.claimed:.3g}; "
            f"that the deployment has {guarantee.epsilon:.3g} rests on this and on its accountant: "
            f"{guarantee.accountant}"
        )
        return found.model_copy(update={"notes": (*found.notes, said)})
    return None


def _caveats(guarantee: Guarantee) -> tuple[str, ...]:
    if guarantee.holds:
        return ()
    return ("the noise comes from a seed that the plan names: whoever knows it can take the noise off",)
