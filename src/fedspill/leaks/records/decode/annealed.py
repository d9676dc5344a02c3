"""Records of one step that depend on each other, by their choices: annealed until two layers hold what they give.

A batch soon has more records than its columns have directions, and then the first layer's row space V tells none of
them from sums and differences of others. What each makes the first layer put out still lies in the row space V2 of the
second layer's gradient, which has a direction for each of them:

    (I - V V^T) x = 0,         (I - V2 V2^T) between(W1 x + b1) = 0.

Values are drawn anew field by field, for many records at once, ever more greedily; then numbers are solved for. A
record that is found is taken out of both gradients, so that the next ones have fewer directions to lie in. Its share of
the batch is no part of these conditions and must be 1/B: that is its certificate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certificate import sent_back
from fedspill.leaks.inputs.exact.gradient_rank import TruncatedSvd, leading_directions, room, truncated_svd
from fedspill.leaks.inputs.exact.leading_layers import LayerPair, leading_pair
from fedspill.leaks.inputs.observed_gradients import AttackedMessage
from fedspill.table_schema import NumberField, TableField, TableSchema

CLEAN = 1e-3  # noise beside the directions of the records, relative, above which nothing is sought
FEWEST_EQUATIONS = 8  # that the second layer must give, beyond those that numbers use up
CHAINS_EACH, FEWEST_CHAINS, MOST_CHAINS = 4, 64, 256  # for each record that is sought
SWEEPS = 14  # over all fields
HOT = 0.05  # the first temperature, of what a record drawn at random misses
VALUES = 12  # of a field that are tried at once, where it has more
NUDGES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # by which numbers are moved, in deviations
NEAR = 3e-2  # what a record may miss after annealing, for its numbers to be solved for
ROOT = 1e-4  # what it may miss then
SHARE = 0.02  # distance of a record's share of the batch from 1/B, or from that of copies, relative
IDLE = 3  # rounds in a row that find nothing new
CERTAIN = 8.0  # standard errors of a number that its next value must be away


@dataclass(frozen=True, eq=False)
class AnnealedRecords:
    """Valid records (k, columns), and which cells of them are certain."""

    rows: Tensor
    cells: Tensor  # (k, columns) bool


def annealed_records(
    attacked: AttackedMessage, rows: TruncatedSvd, schema: TableSchema, known: Tensor | None, rng: torch.Generator
) -> AnnealedRecords:
    """Of one step; `known` (n, columns) are records of the kind that the adversary has. Raises CannotRecover."""
    pair, batch = leading_pair(attacked.model, mixing=bool(attacked.norms.by_batch)), attacked.samples
    names = (pair.first.weight_name, pair.second.weight_name)
    if attacked.steps > 1 or any(name not in attacked.gradients for name in names):
        raise CannotRecover("records are annealed only where one step and its second layer are seen")
    first_rest, gradient = (attacked.gradients[name].double() for name in names)
    second = truncated_svd(gradient, batch, rng)
    if second is None or second.rank > batch or max(second.tail, rows.tail) > CLEAN:
        raise CannotRecover("the second layer does not have a direction for each record")
    if room(gradient) - second.rank < FEWEST_EQUATIONS:
        raise CannotRecover(
            f"{batch} records leave too few equations in a second layer with {room(gradient)} units awake"
        )
    whole = _Condition.of(pair, rows.right, second.right)
    rest, idle, found, distinct = gradient, 0, list[_Record](), rows.right.new_zeros(0, schema.width)
    while len(distinct) < second.rank and idle < IDLE:
        idle += 1
        missing = second.rank - len(distinct)
        now = leading_directions(rest, missing, rng).right if found else second.right
        spanned = leading_directions(first_rest, missing, rng).right if missing < rows.rank else rows.right
        condition = _Condition.of(pair, spanned, now)
        choices = [_Choices.of(field, spanned, known, rng) for field in schema.fields]
        x = _annealed(condition, choices, _starts(schema, choices, known, missing, rng), rng)
        for record in _solved(whole, x[condition.missed(x) < NEAR**2], schema):
            before = whole.before(record.row[None])
            fed = pair.between.value(before)[0]
            share, sent = _share_of(attacked, pair, fed, second)
            times = round(share * batch)
            known_already = bool((distinct == record.row).all(1).any())
            if known_already or not 1 <= times <= batch - len(found) or abs(share * batch / times - 1) > SHARE:
                continue
            sent_down = pair.between.transposed_jacobian_times(before[0], (sent @ pair.second.weight)[:, None])
            rest = rest - (times / batch) * sent[:, None] * fed
            first_rest = first_rest - (times / batch) * sent_down * record.row
            found, distinct, idle = [*found, *[record] * times], torch.cat([distinct, record.row[None]]), 0
    if not found:
        raise CannotRecover("no choice of values is a record that both layers hold")
    return AnnealedRecords(torch.stack([r.row for r in found]), torch.stack([r.cells for r in found]))


@dataclass(frozen=True, eq=False)
class _Condition:
    """What each record fulfils: what it has none of, by itself and behind the first layer."""

    pair: LayerPair
    outside: Tensor  # (columns, n) directions that no record has
    never_fed: Tensor  # (m, n) directions in which the second layer is never fed

    @staticmethod
    def of(pair: LayerPair, row_space: Tensor, second_row_space: Tensor) -> _Condition:
        return _Condition(pair, _complement(row_space), _complement(second_row_space))

    def before(self, x: Tensor) -> Tensor:
        """(R, m) what the first layer puts out for x (R, columns)."""
        bias = self.pair.first.bias
        z: Tensor = x @ self.pair.first.weight.T + (0 if bias is None else bias)
        return z

    def missed(self, x: Tensor) -> Tensor:
        """(R,) the squares that records x (R, columns) miss of both conditions, each relative."""
        return self.missed_at(x @ self.outside, x.square().sum(1), self.before(x))

    def missed_at(self, outside: Tensor, squares: Tensor, z: Tensor) -> Tensor:
        """The same for rows whose parts outside, squared norms and first-layer values are known."""
        fed = self.pair.between.value(z)
        behind = (fed @ self.never_fed).square().sum(1) / fed.square().sum(1).clamp_min(1e-300)
        missed: Tensor = outside.square().sum(1) / squares.clamp_min(1e-300) + behind
        return missed


@dataclass(frozen=True, eq=False)
class _Choices:
    """The codes (values, places) that are drawn for a field: categories that occur, or numbers of the kind."""

    places: list[int]
    codes: Tensor
    is_number: bool

    @staticmethod
    def of(field: TableField, row_space: Tensor, known: Tensor | None, rng: torch.Generator) -> _Choices:
        places, number = list(field.places), isinstance(field, NumberField)
        codes = field.codes()
        if number and (codes is None or len(codes) > VALUES):
            drawn = torch.randn(256, len(places), generator=rng, dtype=torch.float64)
            codes = torch.unique(field.nearest(drawn if known is None else known[:, places].double()), dim=0)
        elif not number:
            assert codes is not None
            occurs = row_space[places].norm(dim=1) > 1e-6
            codes = codes[occurs] if bool(occurs.any()) else codes
        assert codes is not None
        return _Choices(places, codes, number)

    def drawn(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """(R, values, places) what is tried in place of what records x (R, columns) have."""
        few = self.codes[torch.randperm(len(self.codes), generator=rng)[:VALUES]]
        tried = few.expand(len(x), -1, -1)
        if not self.is_number or len(self.codes) <= 2:
            return tried
        near = x[:, None, self.places].repeat(1, len(NUDGES), 1)
        moved = torch.randn(len(x), len(NUDGES), generator=rng, dtype=x.dtype) * torch.tensor(NUDGES, dtype=x.dtype)
        near[:, :, 0] += moved
        return torch.cat([tried, near], 1)


def _complement(basis: Tensor) -> Tensor:
    """(d, d - r) the directions at right angles to the orthonormal columns of `basis` (d, r)."""
    every: Tensor = torch.linalg.svd(basis, full_matrices=True)[0]
    return every[:, basis.shape[1] :]


def _starts(
    schema: TableSchema, choices: list[_Choices], known: Tensor | None, missing: int, rng: torch.Generator
) -> Tensor:
    """(R, columns) records of others, or drawn field by field; of categories only those that occur in the batch."""
    many = min(MOST_CHAINS, max(FEWEST_CHAINS, CHAINS_EACH * missing))
    x = torch.zeros(many, schema.width, dtype=torch.float64)
    if known is not None:
        x = known[torch.randint(len(known), (many,), generator=rng)].double()
    for field in choices:
        drawn = field.codes[torch.randint(len(field.codes), (many,), generator=rng)]
        foreign = torch.cdist(x[:, field.places], field.codes).min(1).values > 1e-9
        x[:, field.places] = torch.where(foreign[:, None], drawn, x[:, field.places])
    return x


def _annealed(condition: _Condition, choices: list[_Choices], x: Tensor, rng: torch.Generator) -> Tensor:
    """Records (R, columns) after every field was drawn anew many times, each time by what each value would miss."""
    weight, many = condition.pair.first.weight, len(x)
    missed = condition.missed(x)
    hot, steps = HOT * float(missed.median()), SWEEPS * len(choices)
    order = torch.cat([torch.randperm(len(choices), generator=rng) for _ in range(SWEEPS)]).tolist()
    for step, which in enumerate(order):
        field = choices[which]
        codes = field.drawn(x, rng)
        own = x[:, field.places]
        change = codes - own[:, None]
        z = condition.before(x)[:, None] + change @ weight[:, field.places].T
        outside = (x @ condition.outside)[:, None] + change @ condition.outside[field.places]
        squares = x.square().sum(1)[:, None] - own.square().sum(1)[:, None] + codes.square().sum(2)
        tried = condition.missed_at(outside.flatten(0, 1), squares.flatten(), z.flatten(0, 1)).reshape(many, -1)
        every = torch.cat([missed[:, None], tried], 1)
        cold = hot * (1 - step / steps) ** 2 + 1e-300
        odds = ((every.min(1, keepdim=True).values - every) / cold).softmax(1)
        chosen = torch.multinomial(odds, 1, generator=rng)[:, 0]
        moved = (chosen > 0).nonzero().flatten()
        x[moved[:, None], field.places] = codes[moved, chosen[moved] - 1]
        missed = condition.missed(x)
    return x


@dataclass(frozen=True, eq=False)
class _Record:
    row: Tensor  # (columns,)
    cells: Tensor  # (columns,) bool: categories, and numbers that stand far enough from their next values


def _solved(condition: _Condition, x: Tensor, schema: TableSchema) -> list[_Record]:
    """The distinct records among x (R, columns) that fulfil the whole condition once their numbers are solved for."""
    numbers = [field for field in schema.fields if isinstance(field, NumberField) and not field.is_choice]
    columns = [field.column for field in numbers]
    discrete = [place for place in range(x.shape[1]) if place not in columns]
    x = schema.nearest(x) if not columns else torch.unique(x, dim=0)
    found: list[_Record] = []
    for one in torch.unique(schema.nearest(x)[:, discrete], dim=0):
        same = (schema.nearest(x)[:, discrete] == one).all(1)
        best = x[same][int(condition.missed(x[same]).argmin())]
        best[discrete] = one
        row, errors = _numbers_solved(condition, best, columns)
        valid = schema.nearest(row[None])[0]
        if float(condition.missed(valid[None])) < ROOT**2:
            cells = torch.ones(len(valid), dtype=torch.bool)
            for field, error in zip(numbers, errors, strict=True):
                cells[field.column] = field.is_discrete and CERTAIN * float(error) < field.spacing()
            found.append(_Record(valid, cells))
    return found


def _numbers_solved(condition: _Condition, x: Tensor, columns: list[int]) -> tuple[Tensor, Tensor]:
    """A record (columns,) with its numbers by Gauss-Newton, and their standard errors."""
    if not columns:
        return x, x.new_zeros(0)
    weight, x = condition.pair.first.weight[:, columns], x.clone()
    for _ in range(12):
        z = condition.before(x[None])
        fed = condition.pair.between.value(z)[0]
        slopes = condition.pair.between.jacobian_times(z, weight)[0]
        scale, size = fed.norm().clamp_min(1e-300), x.norm()
        slope = torch.cat([condition.never_fed.T @ slopes / scale, condition.outside[columns].T / size])
        missed = torch.cat([fed @ condition.never_fed / scale, x @ condition.outside / size])
        move = torch.linalg.lstsq(slope, -missed[:, None]).solution[:, 0]
        x[columns] += move
        if float(move.abs().max()) < 1e-12:
            break
    left = missed + slope @ move
    freedom = max(1, len(left) - len(columns))
    errors = torch.linalg.pinv(slope).square().sum(1).sqrt() * left.norm() / freedom**0.5
    return x, errors


def _share_of(attacked: AttackedMessage, pair: LayerPair, fed: Tensor, second: TruncatedSvd) -> tuple[float, Tensor]:
    """A record's share of the batch, for the label that brings it nearest to a whole one, and what it sends back (m2,).

    Of all multiples of sent times fed, the one that lowers the rank of the gradient by one when it is taken out.
    """
    bias = pair.second.bias
    put_out = fed @ pair.second.weight.T + (0 if bias is None else bias)
    sent = sent_back(attacked.model, pair.second.weight_name.rpartition(".")[0], put_out[None])[0]  # (labels, m2)
    shares = 1 / ((sent @ second.left / second.sizes) @ (second.right.T @ fed))
    batch = attacked.samples
    best = int(((shares * batch) / (shares * batch).round().clamp_min(1) - 1).abs().argmin())
    return float(shares[best]), sent[best]
