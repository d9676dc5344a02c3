"""CompareModels: a filter by which NVFlare clients find out whether the server handed all of them the same model.

Every client publishes the digest of each model that it is asked to train, on a folder that all clients share and the
server cannot write, and looks at what the others published: for this round as far as they have come, and for its last
round, by when all have. A model that differs is not trained on. A client that lies can stop a round; it cannot hide one
from the others.
"""

from __future__ import annotations

import logging
from pathlib import Path

from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedspill.adapters.digest_board import FolderBoard
from fedspill.defenses.model_checks.digests import digest_of, disagreement
from fedspill.errors import FedspillError
from fedspill.nvflare.exchange import parameters_of, round_of

LOG = logging.getLogger("nvflare.fedspill")


class CompareModels(Filter):
    """`recipe.add_client_input_filter(CompareModels("/shared/digests"), tasks=["train"])`, the first of all filters."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = str(folder)
        self._last: dict[tuple[str, str], tuple[int, str]] = {}  # by job and site: the round before, and its digest

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        site, job = str(fl_ctx.get_identity_name()), str(fl_ctx.get_job_id(""))
        try:
            digest = digest_of(parameters_of(shareable).tensors)
        except FedspillError as error:
            raise ContentBlockedException(f"fedspill: the model cannot be read: {error}") from None
        board, before = FolderBoard(Path(self.folder) / job), self._last.get((job, site))
        stated = round_of(shareable)
        number = stated if stated is not None else (before[0] + 1 if before else 0)
        board.publish(number, site, digest)
        wrong = ""
        if before and (found := disagreement(before[1], board.others(before[0], site))):
            wrong = f"of round {before[0]}: {found}"
        wrong = wrong or disagreement(digest, board.others(number, site))
        self._last[job, site] = (number, digest)
        if wrong:
            LOG.warning("fedspill: %s", wrong)
            raise ContentBlockedException(f"fedspill: {wrong}")
        return shareable
