"""Secure aggregation, as what it lets the server see: sums, and no single client's update (Bonawitz et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from fedspill.defense import Check, Defense, SentMessages
from fedspill.messages import SERVER


@final
@dataclass(frozen=True)
class SecureAggregation(Defense):
    """Updates go to the aggregator, a protocol among the clients; the server and whoever listens get their sum.

    The same as federation.secure_aggregation in a plan, here to be tried by an audit. The masks themselves run under
    Flower (engine = "flower"). A sum still tells what all clients of a round have together.
    """

    name: ClassVar[str] = "secure-aggregation"
    title: ClassVar[str] = "Secure aggregation: show the server sums only"
    paper: ClassVar[str] = "002"
    strengths: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    sums_only: ClassVar[bool] = True

    def verify(self, sent: SentMessages) -> Check:
        open_ = [message for message in sent.messages if message.receiver == SERVER]
        if open_:
            said = f"{open_[0].sender} sent an update to the server itself in round {open_[0].round}"
            return Check(self.name, False, said)
        return Check(self.name, True if sent.messages else None, "no update was addressed to the server")
