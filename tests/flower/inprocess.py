"""A Flower Grid that runs the ClientApp here, node after node: unmodified apps without Ray and without sockets."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE, FIRST_NODE = 1, 1000


class Silence(Exception):
    """Raised by a client that dies without an answer."""


class InProcess(Grid):
    """`tap(direction, message)` sees every message and may return another one."""

    def __init__(
        self,
        app: ClientApp,
        nodes: int,
        run_config: dict[str, Any] | None = None,
        tap: Callable[[str, Message], Message] = lambda direction, message: message,
    ) -> None:
        self._app, self._tap = app, tap
        self._run: Any = SimpleNamespace(run_id=1)
        self._replies: dict[str, Message] = {}
        self._ids = itertools.count()
        # Message() takes the identity of the sender from here; Flower's engines set it the same way.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER_NODE, 1
        self.contexts = {
            FIRST_NODE + index: Context(
                run_id=1,
                node_id=FIRST_NODE + index,
                node_config={"partition-id": index, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for index in range(nodes)
        }

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = []
        for message in messages:
            sent = self._tap("down", message)
            name = f"m{next(self._ids)}"
            sent.metadata.__dict__["_message_id"] = name
            arrived = Message(copy.deepcopy(sent.content), metadata=copy.deepcopy(sent.metadata))
            pushed.append(name)
            try:
                reply = self._app(arrived, self.contexts[sent.metadata.dst_node_id])
            except Silence:
                continue
            except Exception as error:  # what Flower's engines do
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error)), reply_to=arrived)
            self._replies[name] = self._tap("up", reply)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def run(server: ServerApp, grid: InProcess, run_config: dict[str, Any] | None = None) -> None:
    server(
        grid,
        Context(run_id=1, node_id=SERVER_NODE, node_config={}, state=RecordDict(), run_config=dict(run_config or {})),
    )
