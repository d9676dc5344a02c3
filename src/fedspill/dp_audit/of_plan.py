"""The defenses of a plan as code under audit: what leaves a client, and the steps of its training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.defense import DataUse, Defense, Guarantee
from fedspill.defenses.verify import data_use
from fedspill.deployment.deployment import Deployment
from fedspill.dp_audit.client_canaries import audit_clients
from fedspill.dp_audit.cost import calls, records_that_fit, sent_shapes
from fedspill.dp_audit.mechanism import Claim, ClientMechanism, RecordMechanism
from fedspill.dp_audit.record_canaries import audit_records
from fedspill.dp_audit.result import DpResult
from fedspill.errors import NotApplicable
from fedspill.messages import SERVER, Message, client
from fedspill.seeds import generator
from fedspill.training import LocalTraining, trained

_RELEASES = 10  # steps that a run with record canaries takes


@final
class SentByDefense(ClientMechanism):
    """What one defense lets leave a client: every message by itself."""

    alone = True

    def __init__(self, defense: Defense, model: nn.Module, seed: int) -> None:
        self._defense, self._seed = defense, seed
        whole = {name: parameter.shape for name, parameter in trained(model).items()}
        self._shapes = sent_shapes(whole)
        self.calls = calls(self._shapes)
        self.left_out = sum(shape.numel() for shape in whole.values())
        self.spans, start = {}, 0
        for name, shape in self._shapes.items():
            self.spans[name] = slice(start, start + shape.numel())
            start += shape.numel()
        self.left_out -= start

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


def may_claim(defense: Defense) -> bool:
    """Whether it is a defense that can claim an epsilon at all; nothing of it is run for that."""
    return type(defense).claims is not Defense.claims


def claims_something(defense: Defense) -> bool:
    """Whether it claims an epsilon with these options, however its data are used."""
    once = DataUse(rounds=1, steps=1, epochs=1, sampling=1.0, parameters=1, samples=1)
    return may_claim(defense) and defense.claims(once) is not None


def audit_defenses(deployment: Deployment, seed: int) -> list[DpResult]:
    """Every defense that claims an epsilon, tested by itself."""
    found = (audit_defense(deployment, defense, seed) for defense in deployment.settings.defenses)
    return [result for result in found if result is not None]


def audit_defense(deployment: Deployment, defense: Defense, seed: int) -> DpResult | None:
    """One defense by itself; None where it claims nothing. One that cannot be tested says why."""
    if deployment.is_vertical:  # there the server names the batches, and no accountant counts on that
        return None
    settings = deployment.settings
    sizes = [len(own) for own in deployment.shares.clients if len(own)]
    parameters = sum(p.numel() for p in deployment.build_model().parameters())
    guarantee = defense.claims(data_use(settings, sizes, parameters))
    if guarantee is None or not math.isfinite(guarantee.epsilon):
        return None
    try:
        result = _audited(defense, guarantee, deployment, seed)
    except NotApplicable as error:
        return DpResult(
            what=defense.name, claimed=guarantee.epsilon, delta=guarantee.delta, tests=(), not_tested=str(error)
        )
    return result.model_copy(update={"notes": (*result.notes, *_caveats(guarantee)), "whole": guarantee.epsilon})


def _audited(defense: Defense, guarantee: Guarantee, deployment: Deployment, seed: int) -> DpResult:
    effect, model = defense.effect(), deployment.build_model()
    rng = generator(seed, "dp audit", defense.name)
    if guarantee.delta <= 0:
        raise NotApplicable("It claims delta 0, as Laplace noise can; these tests know Gaussian noise.")
    if effect.update_clip is not None and effect.update_noise > 0:
        rounds = deployment.settings.rounds
        claim = Claim(effect.update_noise, effect.update_clip, rounds, guarantee.delta, True, guarantee.epsilon)
        mechanism = SentByDefense(defense, model, seed)
        result = audit_clients(f"{defense.name}, a client's whole data", mechanism, claim, rng)
        return result.model_copy(update={"notes": (*result.notes, *_of_part(mechanism))})
    if effect.sample_clip is not None and effect.sample_sum_noise > 0:
        return _audited_steps(defense, guarantee, deployment, model, rng, seed)
    raise NotApplicable("It changes neither what leaves a client as a whole nor the gradients of single records.")


def _audited_steps(
    defense: Defense, guarantee: Guarantee, deployment: Deployment, model: nn.Module, rng: torch.Generator, seed: int
) -> DpResult:
    effect = defense.effect()
    assert effect.sample_clip is not None
    claim = Claim(effect.sample_sum_noise, effect.sample_clip, _RELEASES, guarantee.delta)
    own = next(own for own in deployment.shares.clients if len(own))
    if not own.x.is_floating_point():
        raise NotApplicable("Its records are no numbers: there are no canaries of noise for texts.")
    canaries, many = records_that_fit(model, own.x)
    real, step = own.take(torch.arange(many)), StepOfDefense(defense, seed)
    found = audit_records(f"{defense.name}, one record", step, claim, model, real, rng, canaries=canaries)
    said = (
        f"tested is the noise of a step: {_RELEASES} steps on all records must have epsilon {claim.claimed:.3g}; "
        f"that the deployment has {guarantee.epsilon:.3g} rests on this and on its accountant: "
        f"{guarantee.accountant}"
    )
    return found.model_copy(update={"notes": (*found.notes, said)})


def _of_part(mechanism: SentByDefense) -> tuple[str, ...]:
    if not mechanism.left_out:
        return ()
    whole = mechanism.numbers + mechanism.left_out
    return (f"it was called with {mechanism.numbers:,} of the model's {whole:,} numbers, a part of every tensor",)


def _caveats(guarantee: Guarantee) -> tuple[str, ...]:
    if guarantee.holds:
        return ()
    return ("the noise comes from a seed that the plan names: whoever knows it can take the noise off",)
