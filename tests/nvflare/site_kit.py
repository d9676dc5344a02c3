"""Rounds between an NVFlare server and its sites, filter by filter, without NVFlare's processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor

from fedspill.nvflare import RecordRounds
from fedspill.trace_folder import FolderTrace


def context(me: str, peer: str, task: str, name: str, data: Any = None, result: Any = None) -> FLContext:
    """What NVFlare's runners put into a context before filters and events."""
    fl_ctx, other = FLContext(), FLContext()
    fl_ctx.set_prop(ReservedKey.IDENTITY_NAME, me, private=True, sticky=False)
    other.put(ReservedKey.IDENTITY_NAME, peer, private=False, sticky=False)
    fl_ctx.set_peer_context(other)
    fl_ctx.put(ReservedKey.RUN_NUM, "job", private=False, sticky=False)
    for key, value in (
        (FLContextKey.TASK_ID, task),
        (FLContextKey.TASK_NAME, name),
        (FLContextKey.TASK_DATA, data),
        (FLContextKey.TASK_RESULT, result),
    ):
        fl_ctx.set_prop(key, value, private=True, sticky=False)
    return fl_ctx


def model_sent(state: Mapping[str, Tensor], number: int) -> Shareable:
    sent = DXO(DataKind.WEIGHTS, {name: tensor.numpy().copy() for name, tensor in state.items()}).to_shareable()
    sent.set_header(AppConstants.CURRENT_ROUND, number)
    return sent


def update_sent(change: Mapping[str, Any], examples: Any = 20) -> Shareable:
    return DXO(DataKind.WEIGHT_DIFF, dict(change), {"examples": examples}).to_shareable()


def small_change(state: Mapping[str, Tensor], seed: int) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(seed)
    return {name: 0.01 * torch.randn(t.shape, generator=rng).numpy() for name, t in state.items()}


@dataclass
class Sites:
    """Sites that answer with small changes; `answer(number, site, honest)` may give other results, or several."""

    state: dict[str, Tensor]
    folder: Path
    names: tuple[str, ...] = ("site-1", "site-2", "site-3")
    answer: Callable[[int, str, Shareable], list[Any]] = lambda number, site, honest: [honest]
    blocked: list[str] = field(default_factory=list)

    def recorded(self, rounds: int = 2, **options: Any) -> FolderTrace:
        """What a recorder writes of these rounds; what passes it must be what came."""
        recorder = RecordRounds(str(self.folder / "trace"), lr=0.1, batch_size=5, **options)
        for number in range(rounds):
            for site in self.names:
                task, sent = f"{number}/{site}", model_sent(self.state, number)
                recorder.handle_event(
                    EventType.AFTER_TASK_DATA_FILTER, context("server", site, task, "train", data=sent)
                )
            for place, site in enumerate(self.names):
                honest = update_sent(small_change(self.state, 10 * number + place))
                for result in self.answer(number, site, honest):
                    self._pass(recorder, result, site, f"{number}/{site}")
        recorder.handle_event(EventType.END_RUN, FLContext())
        return FolderTrace(self.folder / "trace")

    def _pass(self, recorder: RecordRounds, result: Shareable, site: str, task: str) -> None:
        from nvflare.apis.filter import ContentBlockedException

        before = repr(result)
        try:
            passed = recorder.process(result, context("server", site, task, "train", result=result))
        except ContentBlockedException:
            self.blocked.append(site)
            return
        assert passed is result
        assert repr(passed) == before
