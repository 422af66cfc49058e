"""Parquet and Arrow tables: what they hold is what the same table holds as text, or is refused in one line."""

import sys
from datetime import datetime

import numpy as np
import pytest

from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.errors import DataError, OutputError

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install 'istmpi[tables]' brings it")
ROWS = 30
NUMBERS = [None if row % 7 == 3 else row / 3 for row in range(ROWS)]
TOWNS = [None if row % 9 == 4 else ("Rome", "Oslo", "Bonn")[row % 3] for row in range(ROWS)]
DAYS = [datetime(2026, 11, 1 + row % 3, 10) for row in range(ROWS)]
OPTIONS = {"missing": "mean", "categories": "town,day", "label": "kind"}


def write_columns(path):
    table = arrow.table(
        {
            "number": arrow.array(NUMBERS, arrow.float64()),
            "whole": arrow.array(range(ROWS), arrow.int32()),
            "kind": arrow.array([("x", "y")[row % 2] for row in range(ROWS)]).dictionary_encode(),
            "town": arrow.array(TOWNS).dictionary_encode(),
            "flag": arrow.array([row % 4 == 0 for row in range(ROWS)]),
            "day": arrow.array(DAYS, arrow.timestamp("ns")),
            "__index_level_0__": arrow.array(range(ROWS)),
        }
    )
    if path.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, path, row_group_size=7)
        return path
    create = arrow.ipc.new_stream if path.suffix == ".arrow" else arrow.ipc.new_file
    with create(path, table.schema) as writer:
        writer.write_table(table, 7)
    return path


def write_text(path):
    lines = ["number,whole,kind,town,flag,day"]
    for row in range(ROWS):
        number = "" if NUMBERS[row] is None else NUMBERS[row]
        day = f"2026-11-0{1 + row % 3} 10:00:00.000000000"
        lines.append(f"{number},{row},{'xy'[row % 2]},{TOWNS[row] or ''},{int(row % 4 == 0)},{day}")
    path.write_text("\n".join(lines))
    return path


def prepared(path, **options):
    data = open_prepared(prepare("csv", path, path.with_suffix(".h5"), force=True, **options).target)
    rows = {split: np.asarray(part.with_normalisation(None).x) for split, part in data.splits.items()}
    return rows, {split: part.labels().tolist() for split, part in data.splits.items()}, data.classes


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_a_table_in_columns_is_the_table_of_the_same_text(tmp_path, ending):
    x, labels, classes = prepared(write_text(tmp_path / "text.csv"), **OPTIONS)
    columns, *others = prepared(write_columns(tmp_path / f"table.{ending}"), **OPTIONS)
    assert others == [labels, classes] and columns.keys() == x.keys()
    for split in x:
        assert columns[split].tobytes() == x[split].tobytes()


@pytest.mark.parametrize(
    "options, message",
    [
        (OPTIONS | {"categories": "town"}, "table.parquet, line 2, column day: '2026-11-01.*' is not a number.*--drop"),
        (OPTIONS | {"missing": "refuse"}, "table.parquet, line 5.* number"),
        (OPTIONS | {"label": "town", "categories": "day,kind"}, "table.parquet, line 6 has no label"),
    ],
)
def test_dates_and_nulls_are_refused_unless_an_option_treats_them(tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        prepared(write_columns(tmp_path / "table.parquet"), **options)


def test_what_is_damaged_or_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    path = write_columns(tmp_path / "table.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="table.parquet is not a table"):
        prepared(path, **OPTIONS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"Parquet and Arrow tables need pyarrow.*pip install 'istmpi\[tables\]'"):
        prepared(path, **OPTIONS)


def test_a_table_that_a_run_names_is_prepared_once_and_again_when_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "table.parquet"

    def open_again(rows):
        from pyarrow import parquet

        if rows:
            parquet.write_table(arrow.table({"a": [*range(rows)], "b": [row % 2 for row in range(rows)]}), path)
        data = open_dataset(str(path))
        assert data.source == str(path) and any("last column, b" in note for note in data.assumed)
        return sum(map(len, data.splits.values())), len(list((tmp_path / "cache/istmpi/tables").glob("*.h5")))

    assert [open_again(rows) for rows in (20, 0, 30)] == [(20, 1), (20, 1), (30, 2)]
    (tmp_path / "cache/istmpi/tables").rename(tmp_path / "moved")
    (tmp_path / "cache/istmpi/tables").touch()
    with pytest.raises(OutputError, match="tables/.*.h5: cannot be written"):
        open_again(0)
