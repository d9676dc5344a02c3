"""GuardModel: a filter for what reaches an NVFlare client: a tampered model is refused or repaired before training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedspill.adapters.client_defenses import inspect, refuse_unable
from fedspill.errors import FedspillError
from fedspill.messages import SERVER, Message
from fedspill.nvflare.defend_update import SECURE_AGGREGATION, defenses_named
from fedspill.nvflare.exchange import parameters_of, replaced, round_of
from fedspill.nvflare.site_memory import SiteMemory
from fedspill.round_recorder import address_of

LOG = logging.getLogger("nvflare.fedspill")


class GuardModel(Filter):
    """`recipe.add_client_input_filter(GuardModel([{"name": "guard"}]), tasks=["train"])`.

    Every model that arrives is shown to the defenses first. A refused one is answered with an error of NVFlare's task
    data filters; training never sees it.

    defenses  in this order, as in a plan
    memory    a folder of this site, for what must survive the end of the job's process: the model last trained on
    """

    def __init__(self, defenses: list[dict[str, Any]], memory: str | None = None) -> None:
        super().__init__()
        self.defenses, self.memory = defenses, memory
        self._made = defenses_named(defenses)
        refuse_unable(self._made, "filter", SECURE_AGGREGATION)
        self._remembered: SiteMemory | None = None

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        try:
            model = parameters_of(shareable)
        except FedspillError as error:
            raise ContentBlockedException(f"fedspill: the model cannot be read: {error}") from None
        site = fl_ctx.get_identity_name()
        memory = self._memory(site, str(fl_ctx.get_job_id("")))
        stated = round_of(shareable)
        number = memory.rounds if stated is None else stated
        incoming = Message(number, SERVER, address_of(site), "model", model.tensors)
        seen = inspect(self._made, incoming, memory.model, memory.notes_of)
        memory.keep_notes(seen.notes)
        if seen.model is None:
            LOG.warning("fedspill: %s", seen.findings)
            raise ContentBlockedException(f"fedspill: {seen.findings}")
        memory.remember(number + 1, seen.model)
        if seen.model is incoming:
            return shareable
        LOG.warning("fedspill: %s", seen.findings)
        return replaced(shareable, seen.model.tensors)

    def _memory(self, site: str, job: str) -> SiteMemory:
        """One for the job; in a simulation with fewer threads than sites, one filter may come to serve another site."""
        if self._remembered is None or self._remembered.belongs_to != (site, job):
            folder = None if self.memory is None else Path(self.memory)
            name = "-".join(defense.name for defense in self._made)
            self._remembered = SiteMemory((site, job), folder, name)
        return self._remembered
