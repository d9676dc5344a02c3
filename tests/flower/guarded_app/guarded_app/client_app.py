"""Clients that keep watch: a model that jumped is refused."""

from dataclasses import dataclass
from typing import ClassVar

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedspill.defenses.base import ACCEPT, Defense, Site, Verdict
from fedspill.flower import mod
from fedspill.messages import Message as TraceMessage


@dataclass(frozen=True)
class NoJump(Defense):
    name: ClassVar[str] = "no-jump"
    title: ClassVar[str] = "A guard for these tests"

    def incoming(self, message: TraceMessage, previous: TraceMessage | None, site: Site) -> Verdict:
        if previous is None:
            return ACCEPT
        step = max(float((t - previous.tensors[n]).abs().max()) for n, t in message.tensors.items())
        return ACCEPT if step < 1 else Verdict("refuse", f"it jumped by {step:.0f}")


app = ClientApp(mods=[mod(NoJump())])


@app.train()
def train(msg: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": msg.content["arrays"], "metrics": metrics}), reply_to=msg)
