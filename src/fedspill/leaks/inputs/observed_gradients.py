"""What reconstruction starts from: for each origin the model it was handed and the gradients it sent."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.errors import CannotRecover, UnsoundMessage
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.search.batch_norm import BatchNorms, read_batch_norms
from fedspill.messages import Kind, Message
from fedspill.observe.last_layer import MOST_SAMPLES, is_update
from fedspill.observe.probe import models_before
from fedspill.threat import Needs, needs
from fedspill.trace import Origin, View
from fedspill.training import Schedule

MOST_TAIL = 0.05  # share of the largest singular value that the first one beyond the samples may have
SAME_STATISTICS = 1e-3  # relative mismatch; float32 buffers leave some 1e-5 of the truth
INPUT_NEEDS: Needs = needs(sees=["update|gradient", "model"], knows=["architecture"])


@dataclass(frozen=True, eq=False)
class AttackedMessage:
    """One message that is attacked: who sent it, the model it was handed, and the gradients that it sent.

    `gradients` are by parameter name, in float64, and the sum over local steps where there were several.
    """

    of: Origin
    model: nn.Module  # as it was handed out, in float64 and evaluation mode
    gradients: dict[str, Tensor]
    schedule: Schedule
    lr: float | None  # of local steps; None for a gradient
    plain: bool  # whether the steps were those of plain SGD, as far as is known
    norms: BatchNorms = field(default_factory=BatchNorms)
    momentum: float = 0.0  # of SGD that is not plain for that alone

    @property
    def samples(self) -> int:
        return self.schedule.samples

    @property
    def steps(self) -> int:
        return self.schedule.steps if self.lr is not None else 1

    @property
    def step_weight(self) -> float:
        """How often a gradient of the steps counts in `gradients`: once for each of them, more often with momentum."""
        velocities = [sum(self.momentum**past for past in range(step + 1)) for step in range(self.steps)]
        return float(sum(velocities))

    @property
    def as_client_ran(self) -> nn.Module:
        """The model with batch norms that work as the client's did, each batch by its own statistics or not."""
        return self.norms.as_client_ran(self.model)

    @property
    def statistics_known(self) -> bool:
        """Whether the client's buffers give the statistics of its one batch."""
        return bool(self.norms.moments) and self.steps == 1

    def in_known_contrast(self, x: Tensor) -> Tensor:
        """x (B, *shape) scaled to the contrast that the statistics give, which the gradient does not show."""
        return self.norms.in_known_contrast(self.model, x) if self.statistics_known else x

    def unexplained(self, x: Tensor, missed: float) -> float:
        """The share of the message that x (B, *shape) leaves unexplained; `missed` is that of the gradient alone."""
        return max(missed, self.norms.mismatch(self.model, x)) if self.statistics_known else missed

    def can_vouch(self, x: Tensor) -> bool:
        """Whether explaining the gradient proves that x is right.

        Where the batch was normalised by its own statistics, x must have these too, since the gradient does not show
        the contrast. A first linear layer with fewer units than inputs hides a part of the batch's mean even then.
        Where dropout hides a part of the input, what is left of it explains the gradient as well.
        """
        if _draws_at_random(self.model, x):
            return False
        if not self.norms.by_batch:
            return True
        first = _first_layer(self.model)
        narrow = isinstance(first, nn.Linear) and first.out_features < first.in_features
        return self.statistics_known and not narrow and self.norms.mismatch(self.model, x) < SAME_STATISTICS

    @property
    def gradient_list(self) -> list[Tensor]:
        """The gradients in the order of the model's trained parameters."""
        trained = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        return [self.gradients[name] for name in trained]


@dataclass(frozen=True, eq=False)
class RecoveredInputs:
    """What came of one attacked message; where it is nothing, `why`, and whether recovery was tried at all."""

    samples: Tensor  # (k, *shape)
    certified: Tensor  # (k,) bool
    labels: Tensor | None = None
    why: str = ""
    tried: bool = True
    unexplained: float = math.inf  # share of the message that these samples together leave unexplained, if computed
    route: str = ""  # which way led to them, where the network's structure decided it

    @staticmethod
    def none(why: str, *, tried: bool) -> RecoveredInputs:
        return RecoveredInputs(torch.zeros(0, 1), torch.zeros(0, dtype=torch.bool), None, why, tried)


def attacked_messages(
    view: View, most: int, rng: torch.Generator, kinds: tuple[Kind, ...] = ("update", "gradient")
) -> tuple[list[AttackedMessage], list[str]]:
    """At most `most` messages, drawn at random among those that can be read, and notes on what was left out."""
    messages: list[Message] = []
    for kind in kinds:
        messages += view.get(kind) if view.sees(kind) else []
    if not messages:
        raise NotApplicable(f"No {' or '.join(kinds)} was recorded for this adversary.")
    models = models_before(view)
    refuse_text(view, models)
    found: list[AttackedMessage] = []
    notes: list[str] = []
    # Drawn over all messages, so that an unsound one does not change who else is looked at.
    for index in torch.randperm(len(messages), generator=rng).tolist():
        message = messages[index]
        try:
            made = _read_message(message, models.get(message.round), view)
        except UnsoundMessage as fault:
            notes.append(f"{message.sender} in round {message.round} was left out: its {message.kind} {fault.problem}")
            continue
        if len(found) < most:
            found.append(made)
            if made.norms.note:
                notes.append(f"{message.sender} in round {message.round}: its {made.norms.note}")
    if not found:
        raise NotApplicable(f"No message can be read. {'; '.join(notes[:3])}.")
    if len(messages) > len(found):
        notes.append(f"{len(found)} of {len(messages)} messages were looked at, drawn at random")
    return sorted(found, key=lambda attacked: attacked.of), notes


def refuse_text(view: View, models: Mapping[int, nn.Module]) -> None:
    """Raises NotApplicable where inputs are tokens: whole numbers cannot be moved little by little."""
    if view.has("unlabelled_aux"):
        tokens = not view.knows("unlabelled_aux").is_floating_point()
    else:
        tokens = any(isinstance(_first_layer(model), nn.Embedding) for model in models.values())
    if tokens:
        raise NotApplicable(
            "The inputs are tokens of a text, not measured values.", remedy="The attack words reads them."
        )


def guess_of(messages: Sequence[AttackedMessage], answers: Sequence[RecoveredInputs], notes: Sequence[str]) -> Inputs:
    """All answers as one guess; reasons for giving none become notes, each once."""
    reasons = dict.fromkeys(answer.why for answer in answers if answer.why)
    routes = dict.fromkeys(f"read by {answer.route}" for answer in answers if answer.route)
    return Inputs(
        [attacked.of for attacked in messages],
        [answer.samples.float() for answer in answers],
        [answer.certified for answer in answers],
        torch.tensor([answer.tried for answer in answers]),
        [_labels(answer) for answer in answers],
        (*notes, *routes, *reasons),
    )


def refuse_contradiction(attacked: AttackedMessage) -> None:
    """Raises CannotRecover where the gradient has too many directions to come from as many samples as is said.

    The last linear layer has one direction for each sample of one pass; noise fills the others.
    """
    last = [name for name, module in attacked.model.named_modules() if isinstance(module, nn.Linear)]
    if not last or attacked.schedule.epochs > 1:
        return
    sizes = torch.linalg.svdvals(attacked.gradients[f"{last[-1]}.weight"])
    if len(sizes) > attacked.samples and float(sizes[attacked.samples]) > MOST_TAIL * float(sizes[0]):
        raise CannotRecover(f"the gradient is not that of {attacked.samples} samples: noise, or more of them")


def sample_shape(view: View, attacked: AttackedMessage) -> tuple[int, ...] | None:
    """The shape of an input: of inputs that the adversary has, else flat as the first linear layer reads it."""
    if view.has("unlabelled_aux"):
        return tuple(view.knows("unlabelled_aux").shape[1:])
    first = _first_layer(attacked.model)
    return (first.in_features,) if isinstance(first, nn.Linear) else None


def _draws_at_random(model: nn.Module, x: Tensor) -> bool:
    """Whether two runs of the same inputs x (B, *shape) differ while the model trains."""
    trained, several = copy.deepcopy(model).train(), x.double()[:1].expand(4, *x.shape[1:])
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        one, other = trained(several), trained(several)
    return not torch.allclose(one, other)


def _first_layer(model: nn.Module) -> nn.Module | None:
    """The first module with parameters of its own, as modules are listed."""
    return next((module for module in model.modules() if list(module.parameters(recurse=False))), None)


def _labels(answer: RecoveredInputs) -> Tensor:
    return answer.labels if answer.labels is not None else torch.full((len(answer.samples),), -1, dtype=torch.int64)


def _read_message(message: Message, model: nn.Module | None, view: View) -> AttackedMessage:
    """A sound message with its model; UnsoundMessage says what is wrong with any other."""
    if model is None:
        raise UnsoundMessage("has no recorded model of its round")
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, parameter in trained.items():
        if name not in message.tensors:
            raise UnsoundMessage(f"does not hold {name}")
        tensor = message.tensors[name]
        if tensor.shape != parameter.shape or not tensor.is_floating_point():
            raise UnsoundMessage(
                f"has shape {tuple(tensor.shape)} of {tensor.dtype} at {name!r}, expected {tuple(parameter.shape)}"
            )
    gradients = {name: message.tensors[name].double() for name in trained}
    size = torch.stack([tensor.square().sum() for tensor in gradients.values()]).sum()
    if not bool(torch.isfinite(size)) or float(size) > 1e60:
        raise UnsoundMessage("has NaN, infinite or absurd values")
    if float(size) < 1e-60:
        raise UnsoundMessage("is all zero")
    examples = message.info.get("examples", 1)
    if type(examples) is not int or not 1 <= examples <= MOST_SAMPLES:
        raise UnsoundMessage(f"says that it comes from {examples!r} examples")
    lr, schedule, plain, momentum = _steps(message, examples, view)
    if lr is not None:
        gradients = {name: tensor / -lr for name, tensor in gradients.items()}
    attacked = AttackedMessage(
        Origin(message.round, message.sender), copy.deepcopy(model).double().eval(), gradients, schedule, lr, plain
    )
    attacked = replace(attacked, momentum=momentum)
    steps_known = view.has("batch_size") or not is_update(message)
    shape = sample_shape(view, attacked)
    norms = read_batch_norms(attacked.model, message.tensors, gradients, schedule, shape, steps_known=steps_known)
    return replace(attacked, norms=norms)


def _steps(message: Message, examples: int, view: View) -> tuple[float | None, Schedule, bool, float]:
    """The learning rate and cut of local steps, as far as the adversary knows them; else it is read as one step.

    Then whether they are those of plain SGD, and the momentum where they are but for that.
    """
    one = Schedule(examples, examples)
    if not is_update(message):
        return None, one, True, 0.0
    lr = view.knows("local_lr") if view.has("local_lr") else None
    batch = view.knows("batch_size") if view.has("batch_size") else examples
    epochs = view.knows("local_epochs") if view.has("local_epochs") else 1
    if not isinstance(lr, int | float) or not 1e-12 <= lr <= 1e12:
        lr = 1.0  # only the scale of the gradient is lost, but several steps can no longer be separated
        return lr, one, False, 0.0
    if type(batch) is not int or type(epochs) is not int or min(batch, epochs) < 1:
        return float(lr), one, False, 0.0
    optimizer = view.knows("optimizer") if view.has("optimizer") else None
    settings = optimizer if isinstance(optimizer, dict) else {"name": optimizer or "sgd"}
    momentum, known = (
        settings.get("momentum") or 0.0,
        settings.get("name") == "sgd" and not settings.get("weight_decay"),
    )
    usable = known and isinstance(momentum, int | float) and 0 <= momentum < 1
    if message.kind == "aggregate":
        clients = message.info.get("clients", 1)
        if type(clients) is not int or epochs > 1 or examples > clients * batch:
            raise UnsoundMessage("is a sum of clients that make several steps each")
        return float(lr), one, bool(usable and not momentum), 0.0
    schedule = Schedule(examples, min(batch, MOST_SAMPLES), min(epochs, 1000))
    return float(lr), schedule, bool(usable and not momentum), float(momentum) if usable else 0.0
