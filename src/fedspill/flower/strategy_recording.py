"""Recording: what happens beside a strategy. Nothing here raises: training goes on without a record if it must."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedspill.flower.arrays import Arrays
from fedspill.flower.background_writer import LOG, Folder, Given, Limits, Shelf, Tape
from fedspill.flower.protocol import Training, protocol_of
from fedspill.flower.round_messages import Reply, Seen, Told, Truth, tell
from fedspill.flower.secure_sums import tell_sum
from fedspill.threat import ThreatModel
from fedspill.trace import Keep, Recorder


@dataclass(frozen=True)
class Wishes:
    """What the person who records asked for; `record` says what each means."""

    to: Path | Recorder
    training: Training
    head: str | None
    threat: ThreatModel
    keep: Keep
    limits: Limits
    secure_aggregation: bool
    leave_out_unsound: bool
    arrays_key: str | None
    examples_key: str
    names: tuple[str, ...] | None
    client_name: Callable[[int], str]
    truth: Truth | None


@dataclass(eq=False)
class Recording:
    """One recording after the other: a strategy that is started again gets a tape of its own."""

    wishes: Wishes
    _tape: Tape | None = None
    _shelf: Shelf | None = None
    _models: tuple[Arrays, ...] = ()
    _receivers: Mapping[int, int] = field(default_factory=dict)

    def sent(self, look: Callable[[], tuple[tuple[Arrays, ...], Mapping[int, int]]]) -> None:
        """The models of a round and who got which; `look` may fail."""
        try:
            self._models, self._receivers = look()
        except Exception as error:
            self._models, self._receivers = (), {}
            LOG.error("fedspill: the models sent cannot be recorded: %s", error)

    def received(self, number: int, look: Callable[[], list[Reply]]) -> Seen | None:
        """Hands the round to the tape; None where there is nothing to hand over."""
        if not self._models:
            return None
        try:
            seen = Seen(number, self._models, self._receivers, tuple(look()))
            if self.wishes.keep.wants_round(number):
                self._open().put(seen)
            return seen
        except Exception as error:
            LOG.error("fedspill: round %d is not recorded: %s", number, error)
            return None

    def close(self) -> None:
        """Waits for the last round; a recording that is never closed is finished when the process ends."""
        if self._tape is None:
            return
        tape, self._tape = self._tape, None
        if tape.close() and isinstance(self._shelf, Folder):
            path = self._shelf.path
            LOG.info("fedspill: recorded %d rounds. Next: fedspill audit --trace %s", tape.recorded, path)

    def _open(self) -> Tape:
        if self._tape is None:
            wishes = self.wishes
            self._shelf = Given(wishes.to) if isinstance(wishes.to, Recorder) else Folder(wishes.to, wishes.keep)
            if wishes.secure_aggregation:
                telling = partial(tell_sum, client_name=wishes.client_name, truth=wishes.truth)
            else:
                telling = partial(
                    tell,
                    client_name=wishes.client_name,
                    truth=wishes.truth,
                    weighting=wishes.training.weighting,
                    leaves_out=wishes.leave_out_unsound,
                )
            header = partial(self._header, len(self._receivers))
            self._tape = Tape(self._shelf, telling, header, wishes.threat, wishes.keep, wishes.limits)
        return self._tape

    def _header(self, client_count: int, told: Told) -> Mapping[str, Any]:
        wishes = self.wishes
        training = replace(wishes.training, client_count=client_count)
        return protocol_of(
            told, training, wishes.head, wishes.threat.name, secure_aggregation=wishes.secure_aggregation
        )
