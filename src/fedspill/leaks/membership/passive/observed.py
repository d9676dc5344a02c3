"""What a passive adversary saw: the model of each round, and how far it was moved by each client or by the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.federation.local import load, state_of
from fedspill.federation.update_checks import update_fault
from fedspill.messages import AGGREGATOR, Message
from fedspill.observe.lazy_tensors import differences, scaled
from fedspill.trace import Origin, View


@dataclass(frozen=True, eq=False)
class SeenRound:
    """One round: the model before it, and the change that each sender made."""

    number: int
    before: Mapping[str, Tensor]
    changes: Mapping[str, Mapping[str, Tensor]]  # sender -> parameter -> what was added to it, or a sum of such
    examples: Mapping[str, int]  # sender -> how many records it trained on, as far as that is said


@dataclass(frozen=True, eq=False)
class Observed:
    """All rounds. The senders are clients, or the aggregator alone where only sums or models were seen."""

    model: nn.Module  # the architecture, on the view's device; its parameters are overwritten by each state tried out
    rounds: tuple[SeenRound, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def senders(self) -> list[str]:
        return sorted({sender for seen in self.rounds for sender in seen.changes}, key=_by_number)

    def origin(self, sender: str) -> Origin:
        """The first message of that sender that could be read; what is said holds for all of them."""
        return Origin(next(seen.number for seen in self.rounds if sender in seen.changes), sender)

    def examples(self, sender: str) -> int | None:
        """How many records stand behind what a sender sent, over all rounds; None where nobody says it."""
        said = [seen.examples[sender] for seen in self.rounds if sender in seen.examples]
        return max(said) if said else None

    def at(self, state: Mapping[str, Tensor]) -> nn.Module:
        """The model in evaluation mode with that state."""
        load(self.model, {name: state[name] for name in state_of(self.model)})
        return self.model.eval()

    def after(self, seen: SeenRound, sender: str) -> nn.Module:
        """The model as that sender left it."""
        moved = seen.changes[sender]
        return self.at(
            {name: tensor + moved[name] if name in moved else tensor for name, tensor in seen.before.items()}
        )


def read_observed(view: View) -> Observed:
    """Updates or gradients of single clients where they are seen, else sums, else the steps between models."""
    model: nn.Module = view.knows("architecture")().to(view.device)
    own, notes = state_of(model), []
    starts: dict[int, Mapping[str, Tensor]] = {}
    for message in view.get("model"):
        problem = update_fault(message.tensors, own)
        if problem is None:
            starts[message.round] = message.tensors
        else:
            notes.append(f"the model of round {message.round} was left out: it {problem}")
    parameters = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    sent = _sent(view)
    changes: dict[int, dict[str, Mapping[str, Tensor]]] = {}
    examples: dict[int, dict[str, int]] = {}
    for message in sent:
        problem = "starts from a model that was not recorded"
        if message.round in starts:
            kept = {name: message.tensors[name] for name in parameters if name in message.tensors}
            problem = update_fault(kept, parameters) or ""
        if problem:
            said = f"{message.sender} in round {message.round} was left out: its {message.kind} {problem}"
            notes.append(said)
            continue
        scale = _scale(message, view)
        changes.setdefault(message.round, {})[message.sender] = scaled(message.tensors, scale, parameters)
        count = message.info.get("examples")
        if type(count) is int and 0 < count < 1 << 40:
            examples.setdefault(message.round, {})[message.sender] = count
    if not sent:
        changes, examples = _between_models(view, starts, list(parameters))
    rounds = tuple(
        SeenRound(number, starts[number], changes[number], examples.get(number, {})) for number in sorted(changes)
    )
    if not rounds:
        raise NotApplicable(f"No message can be read beside the model it starts from. {'; '.join(notes[:3])}".strip())
    return Observed(model, rounds, tuple(notes))


def _sent(view: View) -> list[Message]:
    """What others sent: of single clients if any of it is seen, else the sums."""
    others = {channel.kind for channel in view.threat.sees if channel.sender != "self"}
    single = [m for kind in ("update", "gradient") if kind in others for m in view.get(kind)]
    return single or (view.get("aggregate") if "aggregate" in others else [])


def _scale(message: Message, view: View) -> float:
    """From what was sent to what was added to the model; a gradient is turned and, where known, given its rate."""
    if message.kind != "gradient" and message.info.get("of") != "gradient":
        return 1.0
    rate = view.knows("local_lr") if view.has("local_lr") else 1.0
    return -rate if isinstance(rate, float) and 0 < rate < 1e6 else -1.0


def _between_models(
    view: View, starts: Mapping[int, Mapping[str, Tensor]], parameters: list[str]
) -> tuple[dict[int, dict[str, Mapping[str, Tensor]]], dict[int, dict[str, int]]]:
    """A participant's view: each round's sum is the step to the next model, its own part included."""
    changes: dict[int, dict[str, Mapping[str, Tensor]]] = {}
    examples: dict[int, dict[str, int]] = {}
    own = [m.info.get("examples") for m in view.get("update")] if view.sees("update") else []
    clients = view.knows("client_count") if view.has("client_count") else None
    count = own[0] * clients if own and type(own[0]) is int and type(clients) is int else None
    for number in sorted(set(starts) & {later - 1 for later in starts}):
        before, after = starts[number], starts[number + 1]
        moved = differences(after, before, parameters)
        if any(bool(tensor.any()) for tensor in moved.values()):
            changes[number] = {AGGREGATOR: moved}
            if count is not None and 0 < count < 1 << 40:  # others are taken to hold as much as it does itself
                examples[number] = {AGGREGATOR: count}
    return changes, examples


def _by_number(sender: str) -> tuple[str, int]:
    role, _, number = sender.partition(":")
    return role, int(number) if number.isdecimal() else 0


def norm_of(change: Mapping[str, Tensor]) -> Tensor:
    """() in float64, over all tensors."""
    norm: Tensor = torch.stack([tensor.double().norm() for tensor in change.values()]).norm()
    return norm
