"""Paper 001 on real images, small: the tables' own code recovers them, and knows what it does not have."""

from pathlib import Path
from types import ModuleType

import pytest

from fedspill.leaks.inputs.cafe import certified_parts
from fedspill.leaks.inputs.vertical.invert_features import InversionEffort
from fedspill.registry import paper_tables
from fedspill.reproduce import Run, published, tables


@pytest.fixture(scope="module")
def code() -> ModuleType:
    return paper_tables("001")


def test_every_printed_table_has_its_code() -> None:
    ours = {entry.name for entry in tables() if entry.paper == "001"}
    assert ours == {f"001/{name}" for name in ("2", "3", "4", "5", "6", "7", "8", "defenses", "figure7")}
    assert published("001", "3")["mnist"]["100"] == 47.5


def test_tables_name_their_cells_before_any_is_run(code: ModuleType, tmp_path: Path) -> None:
    rates = {(cell.data, *cell.cell.values()): cell.printed for cell in code.WhileTraining().cells()}
    assert rates["cifar10", "sgd", 0.0005] == 27.62
    assert rates["mnist", "adam", 1e-6] is None
    terms = code.Regularizers().cells()
    assert {cell.constants.gamma for cell in terms} == {0.0, 1e-3}
    rows = list(code.cells.results(terms, Run("quick", tmp_path)))
    assert len(rows) == len(terms) == 15
    assert {row.by for row in rows} == {"paper"}


def test_real_digits_come_back_from_chosen_rounds(code: ModuleType, data_dir: Path) -> None:
    run = Run("full", data_dir, "cpu", seed=7)
    dataset, _ = code.federation.load("mnist", run)
    setup = code.federation.Setup(
        "mnist", samples=12, batch=4, rounds=9, effort=InversionEffort(decoder=300, retry_blurs=(3e-2,))
    )
    result = code.outcome.attacked(dataset, setup, run)
    certified = certified_parts(result.found).all(1)
    assert float(result.tiles[certified].mean()) > 70
    assert result.labels > 0.9
    assert result.chance < 30
    poor = result.tiles < 30
    assert bool((~certified_parts(result.found))[poor].all()), "what is not recovered is flagged"


def test_data_that_are_not_there_are_named(code: ModuleType, tmp_path: Path) -> None:
    rows = list(code.Workers().rows(Run("quick", tmp_path)))
    assert {row.verdict for row in rows} == {"not runnable"}
    assert any("Linnaeus" in row.note for row in rows)
    assert any("MNIST handwritten digits is not in" in row.note for row in rows)
