"""What the party with the labels sees of each sample asked about after training: embeddings, and the model's answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.errors import FedspillError, NotApplicable
from fedspill.federation.local import state_of
from fedspill.federation.private_towers import foreign_towers
from fedspill.leaks.features.guess import FeatureRows
from fedspill.messages import SERVER, Message
from fedspill.models.vertical import VerticalNet, owner, vertical_net
from fedspill.trace import Origin, View

VICTIM = 0  # the party whose features are read
_LARGEST = 1e15
_MOST_SAMPLES = 1 << 16


@dataclass(frozen=True, eq=False)
class AskedSamples:
    """The samples that the joint model was asked about while it stood still, in the order of the rounds."""

    indices: Tensor  # (samples,) int64
    values: Tensor  # (samples, width): one party's embeddings, or the classes' probabilities
    of: tuple[Origin, ...]
    sizes: tuple[int, ...]  # samples of each of these rounds
    notes: tuple[str, ...]

    def first(self, samples: int) -> AskedSamples:
        """The same with the first samples only."""
        sizes, left = [], samples
        for size in self.sizes:
            sizes.append(min(size, left))
            left -= sizes[-1]
        kept = sum(size > 0 for size in sizes)
        return AskedSamples(
            self.indices[:samples], self.values[:samples], self.of[:kept], tuple(sizes[:kept]), self.notes
        )

    def guess(
        self, rows: Tensor, certified: Tensor, columns: Tensor, known: Tensor | None = None, *notes: str
    ) -> FeatureRows:
        """From rows (samples, features) to a guess about all samples but those whose indices (k,) are known."""
        kept = torch.ones(len(rows), dtype=torch.bool) if known is None else ~torch.isin(self.indices, known)
        rounds, start = [], 0
        for origin, size in zip(self.of, self.sizes, strict=True):
            own = kept[start : start + size].nonzero().flatten()
            if len(own):
                rounds.append((origin, own, rows[start + own].float(), certified[start + own]))
            start += size
        if not rounds:
            raise NotApplicable("The features of every sample are known already.")
        of, places, said, sure = zip(*rounds, strict=True)
        listed = tuple(columns.tolist())
        return FeatureRows(list(of), list(places), list(said), list(sure), listed, (*self.notes, *notes))


def read_embeddings(view: View, *, or_last_batch: bool = False) -> AskedSamples:
    """What party 0 sent of the samples that the joint model was asked about.

    Where it was asked about none, `or_last_batch` reads the last batch of training instead.
    """
    sent = {m.round: (m, "output") for m in view.get("embedding") if m.sender == f"party:{VICTIM}"}
    still = {message.round for message in view.get("prediction")}
    if or_last_batch and sent and not still:
        still = {max(sent)}
    return _asked(view, sent, still, "embedding")


def read_predictions(view: View) -> AskedSamples:
    """The probabilities of the classes that the joint model gave."""
    said = {m.round: (m, "probabilities") for m in view.get("prediction")}
    return _asked(view, said, set(said), "prediction")


def split_network(view: View) -> VerticalNet:
    """The network's code, if it is one of split learning: one client, and a server with the rest."""
    try:
        net = vertical_net(view.knows("architecture")())
    except FedspillError as error:
        raise NotApplicable(str(error)) from None
    if net.parties > 1:
        raise NotApplicable(f"It is for split learning, a client and a server; here are {net.parties} parties.")
    return net


def joint_model(view: View) -> VerticalNet:
    """The joint model after training, as far as the view holds its parts; a part that is missing is an error."""
    try:
        net = vertical_net(view.knows("architecture")())
    except FedspillError as error:
        raise NotApplicable(str(error)) from None
    own = state_of(net)
    sent: dict[str, Tensor] = {}
    for message in view.get("model"):
        sent |= message.tensors
    for name, tensor in own.items():
        if name not in sent:
            what = "head" if owner(name) is None else f"tower of party {owner(name)}"
            raise NotApplicable(f"The {what} was not handed over.")
        if sent[name].shape != tensor.shape or sent[name].is_floating_point() != tensor.is_floating_point():
            raise NotApplicable("The model in the recording is not of the architecture that is known.")
        if not bool((sent[name].abs() < _LARGEST).all()):
            raise NotApplicable("The model in the recording has weights that no training brings about.")
        with torch.no_grad():
            tensor.copy_(sent[name])
    return net.eval().requires_grad_(False)


def columns_of(net: VerticalNet, party: int = VICTIM) -> Tensor:
    """(features,) which entries of a whole sample, read as one line, a party holds."""
    whole = net.parts.join([torch.zeros(1, *shape) for shape in net.part_shapes])
    numbered = torch.arange(whole.numel(), dtype=torch.float64).reshape(whole.shape)
    return net.parts.split(numbered)[party].flatten().long()


def unknown_parties(net: VerticalNet) -> range:
    """The parties whose features the active party does not hold."""
    return foreign_towers(net.parties)


def _asked(view: View, sent: dict[int, tuple[Message, str]], still: set[int], what: str) -> AskedSamples:
    """`still` are the rounds that are read."""
    batches = {message.round: message.tensors.get("indices") for message in view.get("batch")}
    notes, found = [], []
    width = 0
    for number, (message, name) in sorted(sent.items()):
        if number not in still:
            continue  # while the model is trained, no two rounds have the same towers
        problem = _problem(message.tensors.get(name), batches.get(number), width)
        if problem:
            notes.append(f"{message.sender} in round {number} was left out: {problem}")
            continue
        values = message.tensors[name].double()
        width = values.shape[1]
        found.append((number, batches[number], values))
    if not found:
        raise NotApplicable(f"The joint model was not asked about any sample whose {what} is seen.")
    indices = torch.cat([batch for _, batch, _ in found if batch is not None])
    if len(indices) > _MOST_SAMPLES:
        raise NotApplicable(f"{len(indices):,} samples were asked about; at most {_MOST_SAMPLES:,} are read.")
    of = tuple(Origin(number, SERVER) for number, _, _ in found)
    return AskedSamples(
        indices, torch.cat([v for _, _, v in found]), of, tuple(len(v) for _, _, v in found), tuple(notes)
    )


def _problem(values: object, batch: object, width: int) -> str:
    if not isinstance(batch, Tensor) or batch.dtype != torch.int64 or batch.ndim != 1:
        return "nobody said which samples it is about"
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.ndim != 2:
        return "it is no table of numbers"
    if len(values) != len(batch) or not len(batch) or not values.shape[1] or (width and values.shape[1] != width):
        return f"it has shape {tuple(values.shape)}"
    if not bool(torch.isfinite(values).all()) or float(values.abs().max()) > _LARGEST:
        return "it is not finite"
    return ""
