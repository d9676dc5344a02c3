"""Records of a table: what is read of them, what is vouched for, and what is refused."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from spine import attempt
from torch import nn

from fedspill.attack_run import Outcome, run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import NotApplicable
from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.gradient_rank import truncated_svd
from fedspill.leaks.inputs.exact.read_by_layers import layer_that_reads_inputs
from fedspill.leaks.inputs.observed_gradients import AttackedMessage
from fedspill.leaks.records.decode.annealed import annealed_records
from fedspill.leaks.records.decode.joint import decode
from fedspill.leaks.records.decode.row_space import records_in_row_space
from fedspill.leaks.records.decode.together import solved_together
from fedspill.leaks.records.leak import RECORDS
from fedspill.leaks.records.records import TableRecords
from fedspill.leaks.records.scoring import match_fields
from fedspill.leaks.records.tableak import TabLeak, as_records, pooled
from fedspill.registry import make
from fedspill.table_schema import CategoryField, NumberField, TableSchema
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace, Origin
from fedspill.training import Schedule

SCHEMA = TableSchema(
    (
        NumberField("age", 0, shift=40.0, scale=10.0, step=1.0, low=17.0, high=90.0),
        CategoryField("work", (1, 2, 3, 4), ("a", "b", "c", "d")),
        CategoryField("home", (5, 6, 7, 8, 9), ("p", "q", "r", "s", "t")),
        NumberField("yes", 10, step=1.0, low=0.0, high=1.0),
        NumberField("weight", 11, shift=0.0, scale=1e5, step=1.0, low=0.0, high=1e6),
        CategoryField("kind", (12, 13, 14, 15), ("w", "x", "y", "z")),
    )
)


def records(many: int, seed: int) -> torch.Tensor:
    """(many, 16) valid records, drawn at random."""
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randn(many, SCHEMA.width, generator=rng, dtype=torch.float64)
    drawn[:, 11] = 10 * torch.rand(many, generator=rng, dtype=torch.float64)
    drawn[:, 10] += 0.5
    return SCHEMA.nearest(drawn)


def recorded(**changes: Any) -> tuple[MemoryTrace, Deployment]:
    deployment = Deployment.of(check_plan({"seed": 3, **RECORDS.control, **changes}, "a test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace, engine="loop").run()
    return trace, deployment


def outcome(attack: Any, trace: MemoryTrace, deployment: Deployment) -> Outcome:
    truth = trace.truth().beside(deployment.shares.clients)
    return run_attack(attack, trace, CURIOUS_SERVER, knowledge=deployment.knowledge(), seed=1, truth=truth)


def test_every_record_of_a_small_batch_is_read_whole() -> None:
    found = outcome(TableRecords(), *recorded())
    assert found.scores["record-fields"].value == 1
    assert found.scores["records-whole"].value == 1
    assert found.scores["record-fields"].chance < 0.6
    proof = found.scores["record-fields"].proof
    assert proof is not None
    assert proof.refuted == 0


WIDE = {"data": "cop-mode-standin", "model": {"name": "mlp", "widths": [64, 64]}}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_several_epochs_hide_nothing_of_a_table(momentum: float) -> None:
    training = {"lr": 0.05, "batch_size": 6, "epochs": 4, "momentum": momentum}
    trace, deployment = recorded(**WIDE, partition={"name": "uniform-batch", "batch": 6}, training=training)
    found = outcome(TableRecords(), trace, deployment)
    assert found.scores["record-fields"].value > 0.95
    assert found.scores["record-fields"].chance < 0.75
    proof = found.scores["record-fields"].proof
    assert proof is not None
    assert proof.refuted == 0
    assert proof.proven > 0


class WideAndDeep(nn.Module):
    """No chain of layers: two layers read the table, and the head adds up what comes of both."""

    def __init__(self, columns: int, classes: int) -> None:
        super().__init__()
        self.wide, self.one = nn.Linear(columns, classes), nn.Linear(columns, 64)
        self.two, self.out = nn.Linear(64, 48), nn.Linear(48, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.two(self.one(x).relu()).relu()) + self.wide(x)
        return out


def wide_and_deep(shape: tuple[int, ...], classes: int) -> nn.Module:
    return WideAndDeep(shape[0], classes)


@pytest.mark.parametrize("epochs", [1, 3])
def test_records_of_a_network_that_is_no_chain_are_read(epochs: int) -> None:
    training = {"lr": 0.05, "batch_size": 4, "epochs": epochs}
    trace, deployment = recorded(model={"name": "custom", "factory": f"{__name__}:wide_and_deep"}, training=training)
    found = outcome(TableRecords(), trace, deployment)
    assert found.scores["record-fields"].value > found.scores["record-fields"].chance + 0.2
    proof = found.scores["record-fields"].proof
    assert proof is None or proof.refuted == 0
    assert found.scores["records-whole"].value > (0.7 if epochs == 1 else 0.1)


def test_the_layer_that_reads_inputs_is_found_by_running_the_network() -> None:
    layer = layer_that_reads_inputs(WideAndDeep(9, 2).double(), 9)
    assert layer.weight_name == "one.weight"
    normed = nn.Sequential(nn.LayerNorm(9), nn.Linear(9, 5)).double()
    with pytest.raises(CannotRecover, match="reads the input itself"):
        layer_that_reads_inputs(normed, 9)


def test_the_update_of_other_records_is_not_vouched_for() -> None:
    trace, deployment = recorded(**WIDE)
    other, _ = recorded(**WIDE, seed=99)
    mixed = MemoryTrace.of([*trace.messages("gradient"), *other.messages("model")], trace.protocol)
    guess = TableRecords()(mixed.view(CURIOUS_SERVER, knowledge=deployment.knowledge()), seed=1)
    assert not any(bool(certified.any()) for certified in guess.certified)


def test_images_are_refused_before_anything_is_read() -> None:
    trace, deployment = recorded(data="digits")
    for attack in (TableRecords(), TabLeak()):
        refused = attempt(partial(outcome, attack, trace, deployment))
        assert isinstance(refused, NotApplicable)
        assert "no table" in str(refused)


def test_the_row_space_of_records_holds_them() -> None:
    real = records(6, seed=1)
    mixing = torch.randn(40, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    left, sizes, right = torch.linalg.svd(mixing @ real, full_matrices=False)
    left, sizes, right = left[:, :6], sizes[:6], right[:6]
    equation = (left.T @ mixing.sum(1)) / sizes
    found = records_in_row_space(right.T, equation, SCHEMA)
    match = match_fields(found, real, SCHEMA)
    assert bool(match.same.all()), "each of them; sums and differences of them may be records, too"


def one_step(real: torch.Tensor, labels: torch.Tensor) -> AttackedMessage:
    """The gradient, in float32, of a fresh network that reads records of the schema."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(SCHEMA.width, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
    nn.functional.cross_entropy(model(real.float()), labels).backward()
    sent = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    schedule = Schedule(len(real), len(real))
    return AttackedMessage(Origin(0, "client:0"), model.double().eval(), sent, schedule, None, plain=True)


def test_more_records_than_columns_have_directions_are_told_apart_by_the_second_layer() -> None:
    real = records(20, seed=11)
    real[:, 11] /= 10  # or this number is most of a record, and the second layer is always fed the same
    real = SCHEMA.nearest(real)
    real[7] = real[3]  # one that is there twice
    rng = torch.Generator().manual_seed(1)
    message = one_step(real, torch.arange(20) % 2)
    message_rows = truncated_svd(message.gradients["0.weight"], 20, rng)
    assert message_rows is not None
    assert message_rows.rank < 16, "or they would not depend on each other"
    found = annealed_records(message, message_rows, SCHEMA, records(50, seed=12), rng)
    match = match_fields(found.rows, real, SCHEMA)
    assert float(match.near.double().mean()) > 0.9
    right = torch.zeros(len(found.rows), dtype=torch.bool)
    right[match.guessed[match.same.all(1)]] = True
    certain = found.cells.all(1)
    assert bool(certain.any())
    assert not bool((certain & ~right).any())


def test_records_that_fill_the_second_layer_are_not_annealed() -> None:
    message = one_step(records(80, seed=13), torch.arange(80) % 3)
    rng = torch.Generator().manual_seed(1)
    rows = truncated_svd(message.gradients["0.weight"], 80, rng)
    assert rows is not None
    with pytest.raises(CannotRecover, match="too few equations"):
        annealed_records(message, rows, SCHEMA, None, rng)


def test_a_space_with_too_many_records_is_refused() -> None:
    schema = TableSchema(tuple(NumberField(f"yes{place}", place, step=1.0, low=0, high=1) for place in range(30)))
    with pytest.raises(CannotRecover, match="too many"):
        records_in_row_space(torch.eye(30, dtype=torch.float64), None, schema)


def test_fields_that_are_certain_make_the_others_sharp() -> None:
    """An error of 1e-5 hides the last digits of a weight; the other cells and the row space give them back."""
    real = records(4, seed=5)
    basis = torch.linalg.svd(real, full_matrices=False)[2].T
    noise = 3e-5 * torch.randn(real.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    alone, together = decode(real + noise, SCHEMA), decode(real + noise, SCHEMA, basis)
    assert not bool(SCHEMA.are_same(alone.rows, real).all())
    assert bool(SCHEMA.are_same(together.rows, real).all())
    assert not bool(alone.certain.any()), "what the error could have changed is not certain"
    assert bool(together.certain.all())


def test_errors_that_grow_with_what_a_cell_holds_are_measured_where_it_holds_something() -> None:
    """Cells that are nothing and are read as nothing would hide that a weight is read wrong."""
    kinds = [tuple(range(1 + 20 * field, 21 + 20 * field)) for field in range(8)]
    words = tuple(str(number) for number in range(20))
    categories = (CategoryField(f"kind{field}", places, words) for field, places in enumerate(kinds))
    schema = TableSchema((NumberField("weight", 0, scale=1e5, step=1.0, low=0.0, high=1e6), *categories))
    rng = torch.Generator().manual_seed(9)
    drawn = torch.rand(200, schema.width, generator=rng, dtype=torch.float64)
    drawn[:, 0] *= 10
    real = schema.nearest(drawn)
    read = real * (1 + 5e-7 * torch.randn(real.shape, generator=rng, dtype=torch.float64))
    rough, careful = decode(read, schema), decode(read, schema, growing=True)
    wrong = ~schema.are_same(careful.rows, real).all(1)
    assert bool((rough.certain & wrong).any())
    assert not bool((careful.certain & wrong).any())
    assert bool(decode(real * (1 + 1e-9), schema, growing=True).certain.all())


def test_cells_that_tell_a_number_badly_leave_it_where_it_was_found() -> None:
    """Of two records that differ in age and weight, age says little of weight where the space is slightly off."""
    rng = torch.Generator().manual_seed(22)
    real = records(1, seed=21).repeat(2, 1)
    real[1, 0], real[:, 11] = real[0, 0] + 0.1, torch.tensor([1.0, 9.0])
    for _ in range(5):
        off = 3e-7 * torch.randn(real.shape, generator=rng, dtype=torch.float64)
        basis = torch.linalg.svd(real + off, full_matrices=False)[2].T
        found = decode(real + 3e-7 * torch.randn(real.shape, generator=rng, dtype=torch.float64), SCHEMA, basis)
        assert bool(SCHEMA.are_same(found.rows, real).all())


def several_epochs(learned: int = 0) -> tuple[AttackedMessage, torch.Tensor]:
    """What a client of four records sends after five epochs; the network knows the first `learned` by heart."""
    torch.manual_seed(31)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 2))
    x, y = records(4, seed=33).float(), torch.tensor([0, 1, 0, 1])
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(400 if learned else 0):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:learned]), y[:learned]).backward()
        optimizer.step()
    before, lr = copy.deepcopy(model).double().eval(), 0.01
    local = torch.optim.SGD(model.parameters(), lr)
    for _ in range(5):
        local.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        local.step()
    moved = dict(model.named_parameters())
    sent = {name: (p - moved[name].double()).detach() / lr for name, p in before.named_parameters()}
    return AttackedMessage(Origin(0, "client:0"), before, sent, Schedule(4, 4, 5), lr, plain=True), records(4, seed=33)


def test_the_last_digits_of_numbers_come_out_of_all_that_was_sent() -> None:
    message, real = several_epochs()
    off = real.clone()
    off[:, 11] += torch.tensor([7.0, -4.0, 12.0, -9.0]) * 1e-5
    found = solved_together(message, SCHEMA.nearest(off), SCHEMA, 2)
    assert found is not None
    assert bool(SCHEMA.are_same(found.rows, real).all())
    assert int(found.told.sum()) >= 3


def test_digits_of_a_record_that_the_network_knows_by_heart_are_not_certain() -> None:
    message, real = several_epochs(learned=1)
    found = solved_together(message, real, SCHEMA, 2)
    assert found is not None
    assert not bool(found.told[0])
    wrong = real.clone()
    wrong[1, 1:5] = wrong[1, 1:5].roll(1)
    assert solved_together(message, wrong, SCHEMA, 2) is None, "a wrong record does not explain what was sent"


def test_what_is_returned_beyond_the_true_number_counts_against_it() -> None:
    real = records(3, seed=7)
    match = match_fields(torch.cat([real, records(3, seed=8)]), real, SCHEMA)
    assert match.surplus == 3
    assert bool(match.same.all())
    assert not bool(match_fields(real[:0], real, SCHEMA).near.any())


def test_tableak_reads_one_record_and_says_nothing_for_sure() -> None:
    trace, deployment = recorded(partition={"name": "uniform-batch", "batch": 1})
    found = outcome(TabLeak(origins=2, starts=4, steps=200), trace, deployment)
    score = found.scores["record-fields"]
    assert score.value > score.chance + 0.2
    assert "certified-records" not in found.scores


def test_free_numbers_become_records_and_starts_are_pooled_in_one_order() -> None:
    x = as_records(torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1)), SCHEMA)
    for columns in ((1, 2, 3, 4), (5, 6, 7, 8, 9)):
        assert torch.allclose(x[..., columns].sum(-1), torch.ones(2, 3))
    age = x[..., 0] * 10 + 40
    assert bool(((age > 17) & (age < 90)).all())
    real = records(5, seed=9)
    starts = torch.stack([real, real.flip(0), real.roll(2, 0)])
    assert torch.equal(pooled(starts, 1, SCHEMA), real.flip(0))


def test_a_network_that_does_not_read_the_table_itself_is_refused_with_a_reason() -> None:
    trace, deployment = recorded()
    spec = make("models", "mlp", {"widths": [32, 32]})
    odd = nn.Sequential(nn.LayerNorm(14), *spec.build((14,), 2, seed=1).children())
    messages = []
    for message in trace.messages():
        shift = {f"{int(place) + 1}.{rest}": tensor for place, rest, tensor in _numbered(message.tensors)}
        extra = {"0.weight": torch.ones(14), "0.bias": torch.full((14,), 0.1)}
        messages.append(type(message)(*_address(message), {**shift, **extra}, dict(message.info)))
    knowledge = {**deployment.knowledge(), "architecture": lambda: odd}
    guess = TableRecords()(MemoryTrace.of(messages, trace.protocol).view(CURIOUS_SERVER, knowledge=knowledge), seed=1)
    assert not bool(guess.answered.any())
    assert any("does not read the input itself" in note for note in guess.notes)


def _numbered(tensors: Any) -> list[tuple[int, str, torch.Tensor]]:
    names = list(dict.fromkeys(name.partition(".")[0] for name in tensors))
    places = {name: 2 * number + 1 for number, name in enumerate(names)}
    return [(places[name.partition(".")[0]], name.partition(".")[2], tensor) for name, tensor in tensors.items()]


def _address(message: Any) -> tuple[Any, ...]:
    return message.round, message.sender, message.receiver, message.kind
