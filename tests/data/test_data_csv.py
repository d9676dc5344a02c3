"""A table of one's own: which files are read, and what a user is told of those that are not."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fedspill.data.csv_table import CsvTable
from fedspill.errors import DataMissing, InputRefused, UsageError

ROWS = "town,age,ill\n" + "\n".join(f"{('Köln', 'Bonn')[n % 2]},{20 + n},{int(n % 4 > 1)}" for n in range(12))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("packed", [False, True])
def test_utf_8_is_read_with_and_without_its_mark_plain_and_packed(encoding: str, packed: bool, tmp_path: Path) -> None:
    data = ROWS.encode(encoding)
    name = "table.csv.gz" if packed else "table.csv"
    (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    found = CsvTable(path=name, label="ill").load(tmp_path)
    assert "town=Köln" in found.columns


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_other_encodings_are_refused_with_what_to_do(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(ROWS.encode(encoding))
    with pytest.raises(InputRefused, match=r"not UTF-8.*iconv") as refused:
        CsvTable(path="table.csv", label="ill").load(tmp_path)
    assert "Bonn" not in str(refused.value)


def test_a_missing_table_says_where_it_was_looked_for_what_was_expected_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataMissing) as missing:
        CsvTable(path="patients.csv", label="ill").load(tmp_path)
    said = str(missing.value)
    assert str(tmp_path / "patients.csv") in said
    assert str(Path.cwd() / "patients.csv") in said
    assert "comma-separated text in UTF-8" in said
    assert "--data-dir" in said
    assert "[data] path" in said


def test_a_table_with_semicolons_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(ROWS.replace(",", ";"))
    with pytest.raises(UsageError, match="separated by ';'"):
        CsvTable(path="table.csv", label="ill").load(tmp_path)


def test_a_column_of_numbers_with_an_odd_cell_is_told_by_its_row_and_not_taken_for_names(tmp_path: Path) -> None:
    rows = [f"{n / 7},{n % 3 % 2}" for n in range(300)]
    rows[4] = "infinite,1"
    (tmp_path / "table.csv").write_text("\n".join(["weight,ill", *rows]))
    with pytest.raises(
        UsageError, match=r"'weight' is of numbers but for 1 of its cells, the first in row 6\."
    ) as refused:
        CsvTable(path="table.csv", label="ill").load(tmp_path)
    assert "infinite" not in str(refused.value)
