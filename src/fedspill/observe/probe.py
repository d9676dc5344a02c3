"""What an adversary learns by running the model it was shown on data of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.errors import NotApplicable
from fedspill.messages import Message
from fedspill.observe.last_layer import is_update
from fedspill.tensor_file import TensorFile
from fedspill.trace import View
from fedspill.training import is_next_token


@dataclass(frozen=True, eq=False)
class ModelAnswers:
    """How the model answers the adversary's own inputs, at the round's start and after each origin's training."""

    start: Tensor  # (origins, classes) mean probability
    variance: Tensor  # (origins, classes) between inputs, at the start
    inputs: int
    end: Tensor | None = None  # (origins, classes); NaN where training diverged
    start_confusion: Tensor | None = None  # (origins, classes, classes) mean probabilities on samples of each class
    start_second: Tensor | None = None  # (origins, classes) mean of (1 - p)^2, p the probability of the own class
    end_confusion: Tensor | None = None
    end_second: Tensor | None = None
    per_class: float = 0.0  # labelled inputs of each class, on average


@final
class RoundModels(Mapping[int, nn.Module]):
    """For each round a model, made when it is asked for. Of large ones only the last is kept."""

    def __init__(self, architecture: nn.Module, states: Mapping[int, Mapping[str, Tensor]]) -> None:
        self._architecture, self._states = architecture, states
        self._kept: dict[int, nn.Module] = {}

    def __getitem__(self, number: int) -> nn.Module:
        if number not in self._kept:
            state = self._states[number]
            if isinstance(state, TensorFile):
                self._kept.clear()
            self._kept[number] = self._made(state)
        return self._kept[number]

    def _made(self, state: Mapping[str, Tensor]) -> nn.Module:
        """Large tensors stay in their file: the layers are copied, and put around them."""
        own = self._architecture.state_dict()
        stays = isinstance(state, TensorFile) and all(own[name].dtype == state.places[name].dtype for name in own)
        not_copied: dict[int, Any] = {id(one): one for one in self._architecture.parameters()} if stays else {}
        model = copy.deepcopy(self._architecture, not_copied)
        model.load_state_dict(state, strict=True, assign=stays)
        return model.eval()

    def __iter__(self) -> Iterator[int]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)


def models_before(view: View) -> Mapping[int, nn.Module]:
    """For each round the model that the clients were handed, in evaluation mode."""
    model: nn.Module = view.knows("architecture")()
    own = model.state_dict()
    states = {}
    for message in view.get("model"):
        missing = [name for name in own if name not in message.tensors]
        if missing or any(name not in own for name in message.tensors):
            raise NotApplicable(
                f"The recorded model lacks {len(missing)} tensors of the architecture: {', '.join(missing[:4])}.",
                remedy="Record all layers of the model.",
            )
        states[message.round] = message.tensors
    return RoundModels(model, states)


def can_probe(view: View) -> bool:
    """Whether the adversary can run the model on inputs of its own."""
    return view.has("architecture") and view.sees("model") and (view.has("aux_data") or view.has("unlabelled_aux"))


@dataclass(frozen=True, eq=False)
class ModelProbe:
    """The models of a trace and the adversary's inputs, ready to be run against each other."""

    models: Mapping[int, nn.Module]
    inputs: Tensor
    labels: Tensor | None  # None: unlabelled
    classes: int

    @staticmethod
    def of(view: View, classes: int) -> ModelProbe:
        labelled: Examples | None = view.knows("aux_data") if view.has("aux_data") else None
        if labelled is not None and bool((torch.bincount(labelled.y, minlength=classes) > 0).all()):
            return ModelProbe(models_before(view), labelled.x, labelled.y, classes)
        inputs = view.knows("unlabelled_aux") if view.has("unlabelled_aux") or labelled is None else labelled.x
        return ModelProbe(models_before(view), inputs, None, classes)

    def answers(self, messages: Sequence[Message]) -> ModelAnswers:
        """One forward pass per round and, where whole updates were recorded, one per message."""
        at_start = {number: self._answers(self.models[number]) for number in {m.round for m in messages}}
        start, variance, confusion, second = zip(*(at_start[message.round] for message in messages), strict=True)
        ends = [self._after(message) for message in messages]
        whole = [end for end in ends if end is not None]
        labelled = self.labels is not None
        per_class = len(self.inputs) / self.classes if labelled else 0.0
        found = ModelAnswers(torch.stack(start), torch.stack(variance), len(self.inputs), per_class=per_class)
        if labelled:
            found = replace(found, start_confusion=torch.stack(confusion), start_second=torch.stack(second))
        if len(whole) < len(messages):
            return found
        end, _, confusion, second = zip(*whole, strict=True)
        found = replace(found, end=torch.stack(end))
        if labelled:
            found = replace(found, end_confusion=torch.stack(confusion), end_second=torch.stack(second))
        return found

    def _after(self, message: Message) -> _Answers | None:
        """The answers of the model that the client ended with; None for gradients and for updates recorded in part."""
        model = self.models[message.round]
        if not is_update(message):
            return None
        own = dict(model.named_parameters())
        if any(name not in message.tensors or message.tensors[name].shape != own[name].shape for name in own):
            return None
        state = {**own, **dict(model.named_buffers())}
        changed = [name for name in message.tensors if name in state and state[name].is_floating_point()]
        kept = {name: state[name].detach().clone() for name in changed}
        with torch.no_grad():
            try:
                for name in changed:
                    state[name] += message.tensors[name].to(state[name].device, state[name].dtype)
                return self._answers(model)
            finally:
                for name in changed:
                    state[name].copy_(kept[name])

    def _answers(self, model: nn.Module) -> _Answers:
        outputs = probabilities(model, self.inputs)
        mean, variance = outputs.mean(0), outputs.var(0, unbiased=False)
        empty = torch.zeros(0, dtype=outputs.dtype)
        if self.labels is None:
            return mean, variance, empty, empty
        number = torch.bincount(self.labels, minlength=self.classes).to(outputs.dtype)
        confusion = torch.zeros(self.classes, outputs.shape[1], dtype=outputs.dtype).index_add_(0, self.labels, outputs)
        lost = 1 - outputs.gather(1, self.labels[:, None]).squeeze(1)
        second = torch.zeros(self.classes, dtype=outputs.dtype).index_add_(0, self.labels, lost.square())
        return mean, variance, confusion / number[:, None], second / number


_Answers: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]  # mean, variance, confusion, second moment


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor, batch: int = 256) -> Tensor:
    """Softmax outputs (n, classes) in float64."""
    device = next(model.parameters()).device
    logits = [model(part.to(device)) for part in torch.split(x, batch)]
    if any(is_next_token(part) for part in logits):
        raise NotApplicable("The model predicts the next token of a text, not a class of it.")
    return torch.cat([part.double().softmax(1).cpu() for part in logits])


def class_confidence(model: nn.Module, labelled: Examples, classes: int) -> Tensor:
    """(classes,) the mean probability that the model gives each class on samples of that class."""
    own = probabilities(model, labelled.x).gather(1, labelled.y[:, None]).squeeze(1)
    total = torch.zeros(classes, dtype=own.dtype).index_add_(0, labelled.y, own)
    number = torch.bincount(labelled.y, minlength=classes)
    if bool((number == 0).any()):
        raise NotApplicable("The auxiliary data lack some class; its confidence cannot be measured.")
    return total / number
