"""Which rows of which table a network picks for a text: the network is watched while it reads one.

It need not be `torch.nn.Embedding`: any parameter counts of which rows are picked by number, or that whole numbers
(ones and counts) are multiplied with. What matters is that another token picks another row, which places do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedspill.models.forward_once import evaluated

_TRIED = 6  # tokens by which it is seen which rows are those of tokens


@dataclass(frozen=True)
class Table:
    """A parameter with a row, or a column, for each token."""

    name: str
    columns: bool = False  # a token has a column: the first layer of one-hot inputs

    def rows_of(self, tensor: Tensor) -> Tensor:
        """The same tensor with a row for each token."""
        return tensor.T if self.columns else tensor


def token_tables(network: nn.Module, texts: Tensor) -> list[Table]:
    """The tables of which another token picks another row, those that tell most tokens apart first.

    The network reads texts of one token alone, each of another one of `texts` (n, length): their places are the same.
    """
    tokens = torch.unique(texts)
    tokens = tokens[torch.linspace(0, len(tokens) - 1, min(len(tokens), _TRIED)).long()]
    seen = [_asked(network, token.expand(1, texts.shape[1]), ()) for token in tokens]
    kinds = {table: len({frozenset(one[table][0]) for one in seen if table in one}) for one in seen for table in one}
    # One of the tokens may be padding, with which places change too.
    told = [table for table, many in kinds.items() if many > max(1, len(tokens) // 2)]
    return sorted(told, key=lambda table: -kinds[table])


def rows_picked(network: nn.Module, table: Table, texts: Tensor) -> list[set[int]]:
    """Of each of texts (n, length) the rows that are picked first; the network runs no further than it must."""
    asked = _asked(network, texts, (table,)).get(table)
    if asked is None:  # the network packs texts: one by one
        asked = [row for text in texts for row in _asked(network, text[None], (table,)).get(table, [[]])]
    return [set(rows) for rows in asked]


def _asked(network: nn.Module, texts: Tensor, until: Sequence[Table]) -> dict[Table, list[list[int]]]:
    """For each table the rows that each text picks; with `until`, no further than to the first pick of these."""
    watch = _Watch(network, len(texts), set(until))
    device = next(network.parameters()).device
    try:
        with evaluated(network), torch.no_grad(), watch:
            network(texts.to(device))
    except _Enough:
        pass
    return watch.asked


class _Enough(Exception):
    """What was asked for has been seen: the rest of the network need not run."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every pick of rows of a parameter."""

    def __init__(self, network: nn.Module, many: int, until: set[Table]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.many, self.until = many, until
        self.asked: dict[Table, list[list[int]]] = {}
        parameters = {name: tensor for name, tensor in network.named_parameters() if tensor.ndim == 2}
        self.by_place = {tensor.untyped_storage().data_ptr(): name for name, tensor in parameters.items()}
        self.by_shape: dict[tuple[int, ...], list[str]] = {}
        for name, tensor in parameters.items():
            self.by_shape.setdefault(tuple(tensor.shape), []).append(name)
        self.strides = {name: tensor.stride() for name, tensor in parameters.items()}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for table, rows in self._picked(getattr(function, "__name__", "").partition(".")[0], args):
            self.asked.setdefault(table, [[] for _ in range(self.many)])
            for mine, more in zip(self.asked[table], rows, strict=True):
                mine += more
            if table in self.until:
                raise _Enough
        return function(*args, **(kwargs or {}))

    def _picked(self, called: str, args: Sequence[Any]) -> Iterator[tuple[Table, list[list[int]]]]:
        """The table and what each text picks of it, where this is a pick and can be told by texts."""
        if called in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"):
            weight, numbers, offsets = args[0], args[1], args[2] if "bag" in called else None
        elif called == "index" and isinstance(args[1][0], Tensor) and not args[1][0].is_floating_point():
            weight, numbers, offsets = args[0], args[1][0], None
        elif called in ("index_select", "gather") and args[1] == 0:
            weight, numbers, offsets = args[0], args[2], None
        elif called in ("mm", "addmm"):
            yield from self._multiplied(*args[-2:])
            return
        else:
            return
        name = self._name(weight)
        if name is None or numbers.dtype not in (torch.int32, torch.int64):
            return
        parts = self._by_text(numbers, offsets)
        if parts is not None:
            yield Table(name), [[row for row in part.flatten().tolist() if 0 <= row < len(weight)] for part in parts]

    def _multiplied(self, inputs: Tensor, weight: Tensor) -> Iterator[tuple[Table, list[list[int]]]]:
        """One-hot vectors or counts of tokens are picks too."""
        name = self._name(weight)
        if name is None or len(inputs) % self.many or not bool(inputs.any()) or not torch.equal(inputs, inputs.round()):
            return
        there = inputs.view(self.many, -1, inputs.shape[1]).ne(0).any(1)
        yield Table(name, weight.stride() != self.strides[name]), [row.nonzero().flatten().tolist() for row in there]

    def _by_text(self, numbers: Tensor, offsets: Tensor | None) -> list[Tensor] | None:
        """What of the numbers belongs to each text; None where that cannot be told."""
        if self.many == 1:
            return [numbers]
        if offsets is not None and numbers.ndim == 1 and len(offsets) >= self.many:
            return list(torch.tensor_split(numbers, offsets[1 : self.many].cpu()))
        return list(numbers) if len(numbers) == self.many else None

    def _name(self, weight: Tensor) -> str | None:
        """Of a parameter, or of what the network makes of one: by its shape, where no other one has that."""
        found = self.by_place.get(weight.untyped_storage().data_ptr())
        if found is not None:
            return found
        alike = self.by_shape.get(tuple(weight.shape), [])
        return alike[0] if len(alike) == 1 else None
