"""What recovery of text starts from: for each message the transformer that was handed out and a step's gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedspill.dataset import Examples, Vocabulary
from fedspill.errors import NotApplicable
from fedspill.leaks.words.embedding_rows import readable
from fedspill.leaks.words.exact.row_space import RowSpaces, noise_behind, rounding, row_spaces, whitened
from fedspill.messages import Message
from fedspill.models.lora import LoraLinear
from fedspill.models.text_transformer import Block, TextTransformer
from fedspill.observe.last_layer import is_update
from fedspill.observe.probe import models_before
from fedspill.trace import Origin, View
from fedspill.training import LocalTraining, Schedule, gradient

_MOST_SAMPLES = 1 << 31
_MOST_STEPS = 200  # that are simulated
# Texts in one pass: what a decoder of 12 x 768 keeps of eight sentences for the way back is about half a gigabyte.
_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class AttackedText:
    """One message: the model it was handed, the mean gradient of its steps, and how these steps were made."""

    of: Origin
    net: TextTransformer
    gradients: dict[str, Tensor]
    samples: int
    steps: int
    lr: float | None  # of local steps; None for a gradient
    whole: bool  # whether every step uses all samples, so that what was done can be done again
    plain: bool  # whether the steps are those of plain SGD, as far as is known
    rounding: float  # share of the gradient that float32 may have lost when the update was subtracted
    patience: float = 1.0  # share of the most work that may go into it (effort.py): an attack has many messages

    @property
    def width(self) -> int:
        return self.net.wte.embedding_dim

    @property
    def first(self) -> Block:
        block = self.net.h[0]
        assert isinstance(block, Block)
        return block

    @property
    def last(self) -> Block:
        block = self.net.h[-1]
        assert isinstance(block, Block)
        return block

    def inputs_gradient(self, layer: str) -> Tensor | None:
        """A gradient (outputs, width) whose rows are made of the inputs of that layer, by the name of the layer."""
        for name in (f"{layer}.weight", f"{layer}.lora_A.default.weight"):
            if name in self.gradients:
                return self.gradients[name]
        return None

    def rows_of(self, layer: str) -> Tensor | None:
        """The same gradient with every row in units of its own rounding; see row_space.whitened."""
        for name in (f"{layer}.weight", f"{layer}.lora_A.default.weight"):
            if name in self.gradients:
                weight = self.net.get_parameter(name)
                return whitened(self.gradients[name], weight, self._kept, self.noise_of(layer))
        return None

    @property
    def _kept(self) -> float:
        """What a unit of weight is worth in a gradient that was had by subtracting weights."""
        return 0.0 if self.lr is None else 1 / (self.lr * self.steps**0.5)

    def noise_of(self, layer: str) -> float:
        """How much noise there is on each number of that gradient; 0 where nothing tells, as behind several steps."""
        causal, first = self.net.causal, self.first
        norms = {
            "h.0.attn.c_attn": first.ln_1 if causal else self.net.ln_e,
            "h.0.mlp.c_fc": first.ln_2 if causal else first.ln_1,
        }
        norm, weight, bias = norms.get(layer), *(self.gradients.get(f"{layer}.{part}") for part in ("weight", "bias"))
        if self.steps > 1 or not self.plain or weight is None or bias is None or not isinstance(norm, nn.LayerNorm):
            return 0.0
        return noise_behind(norm, weight, bias, rounding(weight, self.net.get_parameter(f"{layer}.weight"), self._kept))

    def spaces_of(self, layer: str) -> RowSpaces:
        """The space of these rows, at each rank that may be the right one."""
        rows = self.rows_of(layer)
        return RowSpaces([], False) if rows is None else row_spaces(rows, noisy=self.noise_of(layer) > 0)

    def sent_by(self, sequences: Sequence[Sequence[int]], labels: Sequence[int]) -> dict[str, Tensor]:
        """What a client with these texts would have sent, as a mean step gradient, rounded as its weights were."""
        batch = batch_of(sequences, labels, self.net)
        if self.lr is None:
            return mean_gradient(self.net, batch)
        start = {name: parameter.detach().clone() for name, parameter in self.net.named_parameters()}
        parameters = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=self.lr)
        for _ in range(self.steps):
            for name, value in mean_gradient(self.net, batch).items():
                self.net.get_parameter(name).grad = value
            optimizer.step()
        sent = {}
        with torch.no_grad():
            for name, parameter in self.net.named_parameters():
                if parameter.requires_grad:
                    sent[name] = (start[name] - parameter) / (self.lr * self.steps)
                    parameter.grad = None
                parameter.copy_(start[name])
        return sent


def mean_gradient(net: TextTransformer, batch: Examples) -> dict[str, Tensor]:
    """What training.gradient gives, a few texts at a time, so that memory does not grow with the batch."""
    total: dict[str, Tensor] = {}
    counted = 0
    real = net.real(batch.x)
    lengths = (real * torch.arange(1, real.shape[1] + 1, device=real.device)).amax(1)
    for places in torch.split(lengths.argsort(stable=True), _AT_ONCE):  # as long as the longest of them: not of all
        part = batch.take(places)
        part = replace(part, x=part.x[:, : int(lengths[places].max())])
        many = _losses(net, part)
        if not many:
            continue  # texts of one token predict nothing
        counted += many
        for name, tensor in gradient(net, part).items():
            total[name] = total[name] + many * tensor if name in total else many * tensor
    return {name: tensor / counted for name, tensor in total.items()} if counted else gradient(net, batch)


def _losses(net: TextTransformer, batch: Examples) -> int:
    """Over how many losses the mean of a batch is taken: its texts, or the tokens that are to be predicted."""
    if not net.every_place:
        return len(batch)
    padding = net.wte.padding_idx
    behind = batch.x[:, 1:]
    return behind.numel() if padding is None else int((behind != padding).sum())


def batch_of(sequences: Sequence[Sequence[int]], labels: Sequence[int], net: TextTransformer) -> Examples:
    """Texts as the model reads them, filled up with padding."""
    padding = net.wte.padding_idx
    longest = max(len(sequence) for sequence in sequences)
    x = torch.full((len(sequences), longest), padding if padding is not None else 0, dtype=torch.int64)
    for row, sequence in zip(x, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    device = net.wte.weight.device
    vocabulary = None if padding is None else Vocabulary((), padding)
    return Examples(x.to(device), torch.tensor(labels, dtype=torch.int64, device=device), vocabulary=vocabulary)


def alike_long(sequences: Sequence[Sequence[int]], many: int) -> Iterator[list[int]]:
    """Numbers of all texts, so many at a time, those of like length together: each part is as long as its longest."""
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
    for begin in range(0, len(order), many):
        yield order[begin : begin + many]


def along_longest(prefixes: Sequence[Sequence[int]]) -> tuple[list[list[int]], Tensor, Tensor]:
    """The prefixes that begin no other one, and for each prefix which of these it begins (n,) and where it ends (n,).

    A decoder says the same of a prefix as of the text that it begins, so that it needs to read the longest ones alone.
    """
    begun = {tuple(prefix[:-1]) for prefix in prefixes}
    longest = [list(prefix) for prefix in prefixes if tuple(prefix) not in begun]
    place_of = {
        tuple(text[:end]): (row, end - 1) for row, text in enumerate(longest) for end in range(1, len(text) + 1)
    }
    rows, places = torch.tensor([place_of[tuple(prefix)] for prefix in prefixes]).unbind(1)
    return longest, rows, places


def attacked_texts(view: View, most: int, rng: torch.Generator, device: str) -> tuple[list[AttackedText], list[str]]:
    """At most `most` messages, drawn at random among those that can be read, and notes on what was left out."""
    model: nn.Module = view.knows("architecture")()
    if not isinstance(model, TextTransformer):
        has = any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in model.modules())
        what = "is no transformer over text of a known make" if has else "has no embedding: its inputs are no tokens"
        raise NotApplicable(f"The model {what}.", remedy="embedding-rows reads any embedding." if has else "")
    messages = [message for message in readable(view) if message.kind != "aggregate"]
    if not messages:
        raise NotApplicable("No update or gradient of a single client was recorded for this adversary.")
    models = models_before(view)
    found: list[AttackedText] = []
    notes: list[str] = []
    for index in torch.randperm(len(messages), generator=rng).tolist():
        message = messages[index]
        net = models.get(message.round)
        problem = "has no recorded model of its round" if net is None else _fault(message, net)
        if problem is not None or not isinstance(net, TextTransformer):
            notes.append(f"{message.sender} in round {message.round} was left out: its {message.kind} {problem}")
        elif len(found) < most:
            found.append(_read(message, net.to(device), view, device))
    if not found:
        raise NotApplicable(f"No message can be read. {'; '.join(notes[:2])}.")
    if len(messages) > len(found) + len(notes):
        notes.append(f"{len(found)} of {len(messages)} messages were looked at, drawn at random")
    return sorted(found, key=lambda attacked: attacked.of), notes


def _fault(message: Message, net: nn.Module) -> str | None:
    """Why a message cannot be read, or None."""
    total = torch.zeros((), dtype=torch.float64)
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            tensor = message.tensors.get(name)
            if tensor is None:
                return f"does not hold {name}"
            if tensor.shape != parameter.shape or not tensor.is_floating_point():
                return f"has shape {tuple(tensor.shape)} of {tensor.dtype} at {name!r}"
            total = total + tensor.double().square().sum()
    if not bool(torch.isfinite(total)) or not 1e-60 < float(total) < 1e60:
        return "has NaN, infinite or absurd values, or none but zeros"
    examples = message.info.get("examples", 1)
    if type(examples) is not int or not 1 <= examples <= _MOST_SAMPLES:
        return f"says that it comes from {examples!r} examples"
    return None


def _read(message: Message, net: TextTransformer, view: View, device: str) -> AttackedText:
    names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    tensors = {name: message.tensors[name].to(device).float() for name in names}
    samples = int(message.info.get("examples", 1))
    of = Origin(message.round, message.sender)
    if not is_update(message):
        return AttackedText(of, net, tensors, samples, 1, None, True, True, 0.0)
    training, schedule = _steps(view, samples)
    if training is None:
        turned = {name: -tensor for name, tensor in tensors.items()}
        return AttackedText(of, net, turned, samples, 1, 1.0, False, False, 0.0)
    plain = training.optimizer == "sgd" and not training.momentum and not training.weight_decay
    found = {name: tensor / -(training.lr * schedule.steps) for name, tensor in tensors.items()}
    weights = sum(float(net.get_parameter(name).detach().double().square().sum()) for name in names) ** 0.5
    moved = sum(float(tensor.double().square().sum()) for tensor in tensors.values()) ** 0.5
    whole = schedule.batch_size >= schedule.samples and schedule.steps <= _MOST_STEPS
    rounding = 2.0**-24 * weights / moved
    return AttackedText(of, net, found, samples, schedule.steps, training.lr, whole, plain, rounding)


def _steps(view: View, samples: int) -> tuple[LocalTraining | None, Schedule]:
    """How local steps were made, where the adversary knows it and it makes sense."""
    one = Schedule(samples, samples)
    if not all(view.has(word) for word in ("local_lr", "batch_size")):
        return None, one
    lr, size = view.knows("local_lr"), view.knows("batch_size")
    epochs = view.knows("local_epochs") if view.has("local_epochs") else 1
    said = view.knows("optimizer") if view.has("optimizer") else {}
    numbers = type(size) is int and type(epochs) is int and min(size, epochs) >= 1 and max(size, epochs) < 1 << 31
    if not numbers or not isinstance(lr, int | float) or not 1e-30 <= lr <= 1e30:
        raise NotApplicable("The trace gives no learning rate, batch size and number of epochs that make sense.")
    constants = said if isinstance(said, dict) else {"name": said}
    training = LocalTraining(
        optimizer=constants.get("name", "sgd"),
        lr=lr,
        momentum=constants.get("momentum", 0.0),
        weight_decay=constants.get("weight_decay", 0.0),
        batch_size=size,
        epochs=epochs,
    )
    return training, Schedule(samples, size, epochs)


def has_adapters(net: nn.Module) -> bool:
    """Whether thin matrices are trained in the place of the weights."""
    return any(isinstance(layer, LoraLinear) for layer in net.modules())
