"""DefendUpdate: a filter for what leaves an NVFlare client: the update is defended, or it does not leave."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import Tensor

from fedspill.adapters.client_defenses import defended, refuse_unable
from fedspill.defense import Defense
from fedspill.errors import FedspillError
from fedspill.messages import SERVER, Message
from fedspill.nvflare.exchange import change_by, parameters_of, replaced, round_of
from fedspill.registry import make
from fedspill.round_recorder import address_of
from fedspill.seeds import generator

SECURE_AGGREGATION = "NVFlare's homomorphic encryption"


def defenses_named(described: Sequence[Mapping[str, Any]]) -> tuple[Defense, ...]:
    """As in a plan: [{"name": "clip-noise", "sigma": 0.01}]."""
    return tuple(make("defenses", one["name"], {k: v for k, v in one.items() if k != "name"}) for one in described)


class DefendUpdate(Filter):
    """`recipe.add_client_output_filter(DefendUpdate([{"name": "clip-noise", "sigma": 0.01}]), tasks=["train"])`.

    What training returns leaves as the model that was sent plus the defended update, or as the defended update alone
    where differences travel. A result that cannot be read, or does not fit the model, does not leave.

    defenses  in this order, as in a plan
    seed      for simulations that shall repeat; without it, noise comes from the system's own randomness
    """

    def __init__(self, defenses: list[dict[str, Any]], seed: int | None = None) -> None:
        super().__init__()
        self.defenses, self.seed = defenses, seed
        self._made = defenses_named(defenses)
        refuse_unable(self._made, "filter", SECURE_AGGREGATION)
        self._sent: dict[str, Tensor] = {}  # the model as the server sent it
        self._start: dict[str, Tensor] = {}  # the model that was trained, repaired or not
        self._round = 0

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.BEFORE_TASK_DATA_FILTER:
            self._sent, self._start = {}, {}
            self._sent = self._model(fl_ctx)
        elif event_type == EventType.BEFORE_TASK_EXECUTION:
            self._start = self._model(fl_ctx)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        if shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return shareable  # there is no update in it
        try:
            return self._defended(shareable, address_of(fl_ctx.get_identity_name()))
        except FedspillError as error:
            raise ContentBlockedException(f"fedspill: the update was not sent: {error}") from None

    def _defended(self, shareable: Shareable, sender: str) -> Shareable:
        came = parameters_of(shareable)
        start = self._start
        update = change_by(came, start)
        misfits = sorted(name for name in update if name not in start or start[name].shape != update[name].shape)
        if misfits:
            raise FedspillError(f"it does not fit the model at {', '.join(misfits[:8])}")
        message = Message(self._round, sender, SERVER, "update", update)
        safe = defended(self._made, message, lambda defense: self._rng(defense, sender))
        base: Mapping[str, Tensor] = self._sent or start
        if safe is message and (came.is_difference or base is start):
            return shareable
        if came.is_difference:
            return replaced(shareable, safe.tensors)
        return replaced(shareable, {name: base[name] + change for name, change in safe.tensors.items()})

    def _model(self, fl_ctx: FLContext) -> dict[str, Tensor]:
        """The model of the task in hand; none where it cannot be read, and then no update of it leaves."""
        data = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        if not isinstance(data, Shareable):
            return {}
        self._round = self._round if (stated := round_of(data)) is None else stated
        try:
            return parameters_of(data).tensors
        except FedspillError:
            return {}

    def _rng(self, defense: Defense, sender: str) -> torch.Generator:
        if self.seed is None:
            return torch.Generator().manual_seed(secrets.randbits(63))
        return generator(self.seed, defense.name, self._round, sender)
