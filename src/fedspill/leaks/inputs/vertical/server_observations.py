"""What the vertical server has: the batches it asked for, and each party's gradient of the first linear layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedspill.errors import FedspillError, NotApplicable
from fedspill.federation.local import state_of
from fedspill.federation.update_checks import is_recordable
from fedspill.leaks.inputs.errors import UnsoundMessage
from fedspill.leaks.inputs.vertical.separate_sums import BatchDesign, batch_design
from fedspill.messages import SERVER, Message
from fedspill.models.vertical import VerticalNet, vertical_net
from fedspill.trace import Origin, View

_IN_MEMORY = 4 * 2**30  # bytes of weight gradients that are kept; beyond that they are read again when needed
_MOST_SAMPLES = 1 << 14  # the systems have as many rows and columns
NEEDED = ("batch", "gradient", "model")


@dataclass(frozen=True, eq=False)
class PartyUploads:
    """What one party uploaded for its first linear layer: sums of v over each batch, and sums of h v^T.

    A place is a position in ServerObservations.rounds.
    """

    party: int
    inputs: int  # d1, of the first linear layer
    bias_places: tuple[int, ...]  # with a sound bias gradient
    sums: Tensor  # (len(rows), d2) float64
    products: Callable[[], Iterator[tuple[int, Tensor]]]  # (place, sum (d1, d2)); can be iterated again
    weight_places: tuple[int, ...]  # with a sound weight gradient


@dataclass(frozen=True, eq=False)
class ServerObservations:
    """Everything that Steps I to III of CAFE start from."""

    rounds: tuple[int, ...]
    batches: tuple[Tensor, ...]  # samples numbered from 0 in the order of their indices; gaps do not count
    samples: int
    uploads: tuple[PartyUploads, ...]
    nets: Callable[[int], VerticalNet]  # the model of a place, ready to run
    static: bool
    classes: int
    notes: tuple[str, ...]
    # Designs asked for so far, by their places: parties, and passes over the same batches, share them.
    _designs: dict[tuple[int, ...], BatchDesign] = field(default_factory=dict)

    def design(self, places: Sequence[int], device: torch.device | str) -> BatchDesign:
        """The design of those rounds, factored when it is first asked for."""
        chosen = tuple(places)
        if chosen not in self._designs:
            self._designs[chosen] = batch_design(self.used(chosen, device))
        return self._designs[chosen]

    def used(self, places: Sequence[int], device: torch.device | str) -> Tensor:
        """How often each of the rounds used each sample: (len(places), samples) float64."""
        used = torch.zeros(len(places), self.samples, dtype=torch.float64)
        for row, place in enumerate(places):
            used[row] += torch.bincount(self.batches[place], minlength=self.samples)
        return used.to(device)


def observe(view: View, device: str = "cpu") -> ServerObservations:
    """Reads the view; what is malformed is left out with a note, and if nothing is left the attack does not apply."""
    batches = {m.round: m.tensors["indices"] for m in view.get("batch") if _is_batch(m)}
    if not batches:
        raise NotApplicable("The server saw no batch indices: there is nothing to take sums apart with.")
    rounds = tuple(sorted(batches))
    indices = torch.unique(torch.cat(list(batches.values())))
    if len(indices) > _MOST_SAMPLES:
        raise NotApplicable(f"{len(indices):,} samples were asked for; at most {_MOST_SAMPLES:,} are taken apart.")
    batches = {number: torch.searchsorted(indices, batch) for number, batch in batches.items()}
    models = _Models(view, device)
    net = models.at(rounds[0])
    notes: list[str] = []
    uploads = []
    for party in range(net.parties):
        uploads.append(_read_uploads(view, party, net, rounds, batches, device, notes))
    if not any(one.bias_places for one in uploads):
        raise NotApplicable("No party sent a sound gradient of its first linear layer.")
    return ServerObservations(
        rounds,
        tuple(batches[number] for number in rounds),
        len(indices),
        tuple(uploads),
        lambda place: models.at(rounds[place]),
        models.static,
        net.head.out_features,
        tuple(notes),
    )


def replayed(products: dict[int, Tensor]) -> Callable[[], Iterator[tuple[int, Tensor]]]:
    """Products by place, as PartyUploads.products: every call gives an iterator over all of them."""
    return lambda: iter(products.items())


def origins(observed: ServerObservations) -> tuple[list[Origin], list[Tensor]]:
    """What a guess is about: the rounds that used new samples, and the indices of those, in order."""
    seen = torch.zeros(observed.samples, dtype=torch.bool)
    of, new = [], []
    for number, batch in zip(observed.rounds, observed.batches, strict=True):
        first = torch.unique(batch[~seen[batch]])
        seen[first] = True
        if len(first):
            of.append(Origin(number, SERVER))
            new.append(first)
    return of, new


def complete_rounds(view: View, observed: ServerObservations, device: str) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Indices and all gradients by name of the rounds in which every party sent both gradients of its first layer."""
    complete = set.intersection(
        *(set(uploads.bias_places) & set(uploads.weight_places) for uploads in observed.uploads)
    )
    rounds = []
    for place in sorted(complete):
        gradients: dict[str, Tensor] = {}
        for message in view.get("gradient", round=observed.rounds[place]):
            gradients |= {name: tensor.to(device).float() for name, tensor in message.tensors.items()}
        if all(bool(torch.isfinite(tensor).all()) for tensor in gradients.values()):
            rounds.append((observed.batches[place].to(device), gradients))
    return rounds


def _is_batch(message: Message) -> bool:
    indices = message.tensors.get("indices")
    whole = isinstance(indices, Tensor) and indices.dtype == torch.int64 and indices.ndim == 1 and len(indices) > 0
    return bool(whole) and int(indices.min()) >= 0  # type: ignore[union-attr]


class _Models:
    """The models that the server handed out, by round."""

    def __init__(self, view: View, device: str) -> None:
        self._view = view
        self._device = device
        self._build: Callable[[], object] = view.knows("architecture")
        self._blank: VerticalNet | None = None
        self._rounds = sorted({message.round for message in view.get("model")})
        if not self._rounds:
            raise NotApplicable("The server's own model is not in the trace.")

    @property
    def static(self) -> bool:
        return len(self._rounds) == 1

    def at(self, number: int) -> VerticalNet:
        """The model that parties had in that round: the last one handed out."""
        before = [known for known in self._rounds if known <= number]
        if not before:
            raise NotApplicable(f"No model was handed out up to round {number}.")
        net = self._fresh()
        sent = self._view.get("model", round=before[-1])[-1].tensors
        own = state_of(net)
        if own.keys() != sent.keys() or any(own[name].shape != sent[name].shape for name in own):
            raise NotApplicable("The model in the trace is not of the architecture that the server knows.")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(sent[name])
        return net.eval().requires_grad_(False)

    def _fresh(self) -> VerticalNet:
        """A network of the architecture, copied, since initialising one for every round would take longer."""
        if self._blank is None:
            try:
                self._blank = vertical_net(self._build()).to(self._device)  # type: ignore[arg-type]
            except FedspillError as error:
                raise NotApplicable(str(error)) from None
        return copy.deepcopy(self._blank)


def _read_uploads(
    view: View,
    party: int,
    net: VerticalNet,
    rounds: tuple[int, ...],
    batches: dict[int, Tensor],
    device: str,
    notes: list[str],
) -> PartyUploads:
    first = net.tower(party).first
    name = f"towers.{party}.first"

    def read(place: int) -> tuple[Tensor | None, Tensor | None]:
        """Bias (d2,) and weight (d1, d2) gradient of a round, each times the batch size; one of them may be missing."""
        size = len(batches[rounds[place]])
        for message in view.get("gradient", round=rounds[place]):
            if message.sender == f"party:{party}":
                found, faults = {}, []
                for part, shape in shapes.items():
                    try:
                        found[part] = size * _sound(message, f"{name}.{part}", shape).to(device).float()
                    except UnsoundMessage as fault:
                        faults.append(fault)
                if not found:
                    raise faults[0]
                return found.get("bias"), found["weight"].T if "weight" in found else None
        raise UnsoundMessage("nothing arrived")

    shapes = {"bias": (first.out_features,), "weight": (first.out_features, first.in_features)}
    keeps = len(rounds) * first.weight.numel() * 4 <= _IN_MEMORY // net.parties
    kept: dict[int, Tensor] = {}
    bias_places, sums, weight_places = [], [], []
    for place, number in enumerate(rounds):
        try:
            bias, weight = read(place)
        except UnsoundMessage as fault:
            notes.append(f"party:{party} in round {number} was left out: {fault.problem}")
            continue
        if bias is not None:
            bias_places.append(place)
            sums.append(bias.double())
        if weight is not None:
            weight_places.append(place)
            if keeps:
                kept[place] = weight

    def products() -> Iterator[tuple[int, Tensor]]:
        for place in weight_places:
            weight = kept[place] if keeps else read(place)[1]
            assert weight is not None
            yield place, weight

    total = torch.stack(sums) if sums else torch.zeros(0, first.out_features, dtype=torch.float64, device=device)
    return PartyUploads(party, first.in_features, tuple(bias_places), total, products, tuple(weight_places))


def _sound(message: Message, name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor; UnsoundMessage says what is wrong with any other."""
    tensor = message.tensors.get(name)
    if not isinstance(tensor, Tensor) or not is_recordable({name: tensor}) or not tensor.is_floating_point():
        raise UnsoundMessage(f"no gradient of {name}")
    if tuple(tensor.shape) != shape:
        raise UnsoundMessage(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    limit = tensor.abs().max() if tensor.numel() else tensor.new_zeros(())
    if not bool(torch.isfinite(limit)) or float(limit) > 1e15:
        raise UnsoundMessage(f"{name} is not finite")
    return tensor
