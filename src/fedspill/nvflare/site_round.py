"""One round as an NVFlare server saw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nvflare.apis.fl_constant import FLMetaKey, ReturnCode
from nvflare.apis.shareable import Shareable
from torch import Tensor

from fedspill.adapters.round_messages import ReceivedUpdate, examples_fault
from fedspill.errors import FedspillError
from fedspill.federation.update_checks import update_fault
from fedspill.nvflare.exchange import Parameters, change_by, parameters_of
from fedspill.plain_text import one_line

_NOTHING = Parameters({}, False, {})


@dataclass(frozen=True, eq=False)
class SiteReply:
    """What came back from one site: numbers, or the reason why there are none."""

    node: str
    parameters: Parameters = _NOTHING
    examples: int | None = None
    error: str = ""
    fault: str = ""

    def update_to(self, model: Mapping[str, Tensor]) -> ReceivedUpdate:
        """Its update, as a reply to `model`; never raises for what a client sent."""
        expected = {name: tensor for name, tensor in model.items() if tensor.is_floating_point()}
        update = change_by(self.parameters, model)
        return ReceivedUpdate(update, update_fault(update, expected))


@dataclass(eq=False)
class SiteRound:
    """What the server sent and received, filled as it happens."""

    number: int
    models: list[dict[str, Tensor]] = field(default_factory=list)
    receivers: dict[str, int] = field(default_factory=dict)
    replies: list[SiteReply] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        received = (reply.parameters.tensors for reply in self.replies)
        return sum(t.numel() * t.element_size() for tensors in (*self.models, *received) for t in tensors.values())

    def read_models(self) -> list[dict[str, Tensor]]:
        return self.models

    def note_sent(self, site: str, model: dict[str, Tensor]) -> None:
        """Notes that a site was sent this model; one that others were sent too is kept once."""
        same = (index for index, other in enumerate(self.models) if _same(model, other))
        which = next(same, len(self.models))
        if which == len(self.models):
            self.models.append(model)
        self.receivers[site] = which


@dataclass(frozen=True)
class ExamplesStated:
    """Where a client says how many examples it trained on."""

    key: str  # of the metadata that it sends along
    batch_size: int | None  # of clients that say their number of steps alone
    epochs: int

    def of(self, meta: Mapping[str, object]) -> tuple[int | None, str]:
        """The number, where it is stated and to be believed, and what is wrong with it where it is not."""
        if self.key in meta:
            return _believed(meta[self.key], 1.0)
        steps = meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
        if steps is None or self.batch_size is None:
            return None, ""
        return _believed(steps, self.batch_size / max(1, self.epochs))


def _believed(said: object, times: float) -> tuple[int | None, str]:
    fault = examples_fault(said)
    return (None, fault) if fault or not isinstance(said, int | float) else (max(1, round(said * times)), "")


def reply_of(site: str, result: Shareable, stated: ExamplesStated) -> SiteReply:
    """A reply with copies of its numbers; never raises for what a client sent."""
    try:
        code = result.get_return_code(ReturnCode.OK)
        if code != ReturnCode.OK:
            return SiteReply(site, error=f"failed: {one_line(str(code))[:80]}")
        parameters = parameters_of(result)
        examples, fault = stated.of(parameters.meta)
        return SiteReply(site, parameters, examples, fault=fault)
    except FedspillError as error:
        return SiteReply(site, error=f"left out: {error}")
    except Exception as error:  # one reply that is like no other must not cost the others
        return SiteReply(site, error=f"left out: it cannot be read ({type(error).__name__})")


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)


def _equal(one: Tensor, other: Tensor) -> bool:
    """NaN in the same places is the same, or a broken model would be kept once for each site."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def is_first(reply: SiteReply, before: Sequence[SiteReply]) -> bool:
    """Whether the site has not answered in this round yet."""
    return all(other.node != reply.node for other in before)
