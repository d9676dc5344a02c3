"""Message: the only thing that travels, in horizontal and vertical federations alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from fedspill.tensor_file import TensorFile, bytes_of

Kind: TypeAlias = Literal["model", "update", "aggregate", "batch", "gradient", "embedding", "returned", "prediction"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SERVER = "server"
AGGREGATOR = "aggregator"  # the sum: a protocol under secure aggregation, a line of code otherwise
EVERYONE = "all"

Info: TypeAlias = Mapping[str, int | float | str | bool]


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What one party sent to another in one round.

    `model`      parameters the server hands out, or those that a party keeps or hands over;
    `update`     a client's parameters after local training minus those it received;
    `gradient`   a client's mean gradient at the received parameters (FedSGD, vertical parties);
    `aggregate`  what the server ends up with after summation, weights already applied;
    `batch`      indices the server asks vertical parties to use;
    `embedding`  what a vertical party's tower puts out;
    `returned`   the gradient of the loss by an embedding, which goes back to the party that sent it;
    `prediction` what the joint model of a vertical federation says of samples.
    """

    round: int
    sender: str  # "server", "client:7", "party:1"
    receiver: str
    kind: Kind
    tensors: Mapping[str, Tensor]
    info: Info = field(default_factory=lambda: MappingProxyType({}))

    @property
    def nbytes(self) -> int:
        return bytes_of(self.tensors)

    def copy(self) -> Message:
        """The same message with storage of its own, so that no reader can change what others see."""
        tensors = self.tensors
        if not isinstance(tensors, TensorFile):  # of which every reading is a copy
            tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        return Message(self.round, self.sender, self.receiver, self.kind, tensors, dict(self.info))


def client(index: int) -> str:
    """The address of client `index`."""
    return f"client:{index}"


def role(party: str) -> str:
    """The role of an address: "client" of "client:7"."""
    return party.partition(":")[0]
