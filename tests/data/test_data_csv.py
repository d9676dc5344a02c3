"""A table of one's own: which files are read, and what a user is told of those that are not."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

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
        UsageError, match=r"'weight' is of numbers but for 1 of its 300 cells, the first in row 6\."
    ) as refused:
        CsvTable(path="table.csv", label="ill").load(tmp_path)
    assert "infinite" not in str(refused.value)


def table(folder: Path, **columns: list[str]) -> Path:
    """A table of these columns and a label that goes 0, 0, 1, 1."""
    rows = len(next(iter(columns.values())))
    whole = {**columns, "ill": [str(n % 4 // 2) for n in range(rows)]}
    lines = [",".join(whole), *(",".join(f'"{cell}"' for cell in row) for row in zip(*whole.values(), strict=True))]
    (folder / "table.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("spelt", ["", " ", "?", "-", "NA", "n/a", "N/A", "NaN", "null", "None", "#N/A", "."])
def test_a_missing_number_is_missing_however_it_is_spelt(spelt: str, tmp_path: Path) -> None:
    ages = [str(20 + n / 2) for n in range(40)]
    ages[3] = spelt
    found = CsvTable(path="table.csv", label="ill").load(table(tmp_path, age=ages))
    assert found.columns == ("age", "age is missing")
    x = torch.cat([found.train.x, found.test.x])
    assert x[:, 1].sum() == 1
    assert float(x[x[:, 1] == 1, 0]) == 0


def test_an_odd_cell_in_a_small_table_of_numbers_is_refused_and_not_read_as_categories(tmp_path: Path) -> None:
    ages = [str(20 + n) for n in range(40)]
    ages[6] = "secret"
    with pytest.raises(
        UsageError, match=r"'age' is of numbers but for 1 of its 40 cells, the first in row 8\."
    ) as told:
        CsvTable(path="table.csv", label="ill").load(table(tmp_path, age=ages))
    assert "an empty cell counts as missing" in str(told.value)
    assert "secret" not in str(told.value)


def test_codes_that_look_like_numbers_are_categories_where_the_plan_says_so(tmp_path: Path) -> None:
    grades = [("1", "2", "3", "K")[n % 4] for n in range(40)]
    place = table(tmp_path, grade=grades, ward=[str(n % 3) for n in range(40)])
    with pytest.raises(UsageError, match=r'categories = \["grade"\]'):
        CsvTable(path="table.csv", label="ill").load(place)
    found = CsvTable(path="table.csv", label="ill", categories=("grade", "ward")).load(place)
    assert found.columns == ("grade=1", "grade=2", "grade=3", "grade=K", "ward=0", "ward=1", "ward=2")


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("{n},5", "decimal commas"),
        ("{n},250", "commas between their thousands"),
        ("2024-01-{n}", "dates"),
        ("{n}.01.2024", "dates"),
    ],
)
def test_what_is_almost_a_number_is_called_what_it_is(cell: str, said: str, tmp_path: Path) -> None:
    cells = [cell.format(n=10 + n % 20) for n in range(40)]
    with pytest.raises(UsageError, match=f"'when' is of .*{said}"):
        CsvTable(path="table.csv", label="ill").load(table(tmp_path, when=cells))


def test_all_columns_that_cannot_be_read_are_told_at_once(tmp_path: Path) -> None:
    names, notes = [f"name {n}" for n in range(80)], [f"note {n}" for n in range(80)]
    with pytest.raises(UsageError) as told:
        CsvTable(path="table.csv", label="ill").load(table(tmp_path, patient=names, free=notes))
    assert "2 columns cannot be read" in str(told.value)
    assert 'leave_out = ["patient"]' in str(told.value)
    assert 'leave_out = ["free"]' in str(told.value)


def test_a_number_of_its_own_in_each_row_is_remarked_on_as_perhaps_an_id(tmp_path: Path) -> None:
    place = table(tmp_path, id=[str(n) for n in range(40)], age=[str(n % 7) for n in range(40)])
    assert 'leave_out = ["id"]' in CsvTable(path="table.csv", label="ill").load(place).note
    assert CsvTable(path="table.csv", label="ill", leave_out=("id",)).load(place).note == ""


def test_labels_that_are_empty_are_refused_by_row_and_other_signs_of_missing_are_told(tmp_path: Path) -> None:
    rows = [f"{n % 5},{('yes', 'no')[n % 2]}" for n in range(40)]
    rows[9] = "1,NA"
    (tmp_path / "table.csv").write_text("\n".join(["age,label", *rows]))
    assert "1 of 40 cells of the column to learn" in CsvTable(path="table.csv").load(tmp_path).note
    rows[9] = "1,"
    (tmp_path / "table.csv").write_text("\n".join(["age,label", *rows]))
    with pytest.raises(InputRefused, match="is empty in 1 of 40 rows, the first of them row 11"):
        CsvTable(path="table.csv").load(tmp_path)


def test_a_column_that_is_not_there_is_told_with_the_option_that_names_it_and_the_nearest(tmp_path: Path) -> None:
    place = table(tmp_path, pressure=[str(n % 9) for n in range(40)])
    with pytest.raises(UsageError, match=r"no column 'presure', which leave_out names.*Did you mean 'pressure'\?"):
        CsvTable(path="table.csv", label="ill", leave_out=("presure",)).load(place)
    with pytest.raises(UsageError, match=r"no column 'outcome', which label names.*'pressure', 'ill'"):
        CsvTable(path="table.csv", label="outcome").load(place)
    with pytest.raises(UsageError, match="'ill' is named by label and by user"):
        CsvTable(path="table.csv", label="ill", user="ill").load(place)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("age,age,label\n" + "1,2,0\n3,4,1\n" * 5)
    with pytest.raises(InputRefused, match="more than one column 'age'"):
        CsvTable(path="table.csv").load(tmp_path)


def test_an_empty_line_at_the_end_is_no_row_and_a_short_row_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("age,label\n" + "1,0\n3,1\n" * 5 + "\n")
    found = CsvTable(path="table.csv").load(tmp_path)
    assert len(found.train) + len(found.test) == 10
    (tmp_path / "table.csv").write_text("age,label\n" + "1,0\n3,1\n" * 5 + "1,2,0\n")
    with pytest.raises(InputRefused, match=r"row 12: expected 2 fields, got 3\..*double quotes"):
        CsvTable(path="table.csv").load(tmp_path)
