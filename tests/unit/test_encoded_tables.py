"""Tables with columns that are left out, filled, or categories."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from table_files import prepared, written_to

from istmpi.data.dataset import describe_difference
from istmpi.data.decoder import Notes
from istmpi.data.dense.predict import read_inputs
from istmpi.data.sources import open_dataset
from istmpi.errors import ConfigError, DataError


@pytest.fixture
def table(tmp_path):
    return written_to(tmp_path)


def mixed(count=60):
    draw = np.random.default_rng(1)
    size, place = draw.normal(size=count).round(3), draw.choice(["north", "south", "west"], count)
    lines = ["when,size,place,weight,kind"]
    for row in range(count):
        shown = "NA" if row % 7 == 0 else size[row]
        where = "" if row % 11 == 0 else place[row]
        lines.append(f"2026-01-{row % 28 + 1:02},{shown},{where},{row / 8},{'yes' if size[row] > 0 else 'no'}")
    size[::7], place[::11] = np.nan, ""
    return "\n".join(lines) + "\n", size, place


@pytest.mark.parametrize("missing", ["mean", "most-frequent"])
def test_gaps_are_filled_and_categories_counted_from_the_training_rows(table, missing):
    text, size, place = mixed()
    report, data, x = prepared(table(text), **{"drop": "when", "categories": "place", "missing": missing})
    assert re.search(r"filled: place: 6 with \w+, size: 9 with [-.\d]+ \(NA\)$", str(report.assumed[-1]))
    rows = np.rint(x[:, -1] * 8).astype(int)
    assert data.shape == (5,) and len(rows) == 48
    known = size[rows][~np.isnan(size[rows])]
    values, counts = np.unique(known, return_counts=True)
    fill = known.mean() if missing == "mean" else values[counts.argmax()]
    names, counts = np.unique(place[rows][place[rows] != ""], return_counts=True)
    where = np.where(place[rows] == "", names[counts.argmax()], place[rows])
    order = data.reading["encoding"]["categories"]["place"]
    np.testing.assert_allclose(x[:, 0], np.where(np.isnan(size[rows]), fill, size[rows]), rtol=1e-6)
    assert np.array_equal(x[:, 1:4], [[float(name == other) for other in order] for name in where])


def test_a_table_with_gaps_and_categories_is_predicted_as_it_was_prepared(table, tmp_path):
    text, _, _ = mixed()
    _, data, _ = prepared(table(text), **{"drop": "when", "categories": "place", "missing": "mean"})
    notes = Notes()
    lines = "place,weight,size\nsouth,1.5,NA\nmoon,2.5,0.5\n"  # another order, and no date
    (block,) = read_inputs(
        str(table(lines, "new.csv")), "csv", data.shape, reading=data.reading, notes=notes, label=None
    )
    encoding = data.reading["encoding"]
    south = [float(name == "south") for name in encoding["categories"]["place"]]
    np.testing.assert_allclose(block.x, [[encoding["fill"]["size"], *south, 1.5], [0.5, 0, 0, 0, 2.5]], rtol=1e-6)
    filled, unknown = (note.text for note in notes.assumed[-2:])
    assert "size: 1 with" in filled and "place has categories that are not in training (moon)" in unknown
    _, data, _ = prepared(table(text.replace("NA", "1").replace(",,", ",west,")), drop="when", categories="place")
    gap = str(table("place,weight,size\n,1,2\n", "gap.csv"))
    with pytest.raises(DataError, match="gap.csv, line 2: place is missing, as in no row of training"):
        [*read_inputs(gap, "csv", data.shape, reading=data.reading, notes=notes, label=None)]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"drop": "wehn"}, "no column wehn; did you mean when"),
        ({"drop": "kind", "label": "kind"}, "--drop names kind, which has the labels"),
        ({"drop": "when,size", "categories": "place"}, "in.csv, line 2: place is missing. Give --missing mean or"),
        ({"drop": "when,place"}, "line 2, column size: 'NA' is not a number"),
        ({"missing": "zero"}, "missing 'zero' must be one of refuse, mean, most-frequent"),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_name(table, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        prepared(table(mixed()[0]), **options)
    with pytest.raises(DataError, match="has no header, which --drop needs"):
        prepared(table("1,2\n3,4\n"), drop="a", header=False)


def test_a_table_with_dates_gaps_and_categories_goes_from_file_to_answers_in_one_command(
    tmp_path, istmpi_command, refusal, monkeypatch
):
    """A run that names the table guesses what prepare would be told, and says so."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    lines = ["sold,name,area,town,price"]
    for row in range(60):
        area = "" if row % 9 == 4 else f"{row / 2}"
        town = "NA" if row % 11 == 5 else ("Rome", "Oslo", "Bonn")[row % 3]
        lines.append(f"2026-11-{row % 28 + 1:02d},owner {row},{area},{town},{row * 1000.5}")
    Path("houses.csv").write_text("\n".join(lines))
    Path("new.csv").write_text("\n".join(",".join(line.split(",")[:-1]) for line in lines[:4]))
    words = ["train", "--data", "houses.csv", "--predict", "new.csv", "--rounds", "1", "--hidden", "8"]
    code, out, err = istmpi_command(*words)
    said = " ".join((out + err).split())
    assert code == 0 and len(Path("runs/houses/predictions.csv").read_text().splitlines()) == 4
    for note in (
        "columns of dates are left out: sold (change with istmpi prepare csv --drop)",
        "columns of many texts are left out: name (change with istmpi prepare csv --drop)",
        "columns of categories: town (change with istmpi prepare csv --categories)",
        "or the most frequent category, of their column: area, town (change with istmpi prepare csv --missing)",
        "answers runs/houses/predictions.csv",
    ):
        assert note in said
    assert "--predict none.csv does not exist" in refusal("train", "--data", "houses.csv", "--predict", "none.csv")
    assert not Path("runs/houses-2").exists()


def test_another_table_is_scored_in_the_form_of_the_training_table(tmp_path, istmpi_command, refusal, monkeypatch):
    """Its columns, categories and gaps come in another order; all of its rows count, and have predict's answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text, _, _ = mixed()
    header, *rows = (line.split(",")[1:] for line in text.splitlines())
    Path("train.csv").write_text("\n".join(map(",".join, [header, *rows])))
    assert istmpi_command("train", "--data", "train.csv", "--rounds", "9", "--hidden", "8", "--out", "run")[0] == 0
    for name in ("./train.csv", "copy.csv"):
        Path(name).write_text(Path("train.csv").read_text())
        assert "on 12 test examples" in istmpi_command("evaluate", "run/network.h5", "--data", name)[1]
    others = [row[::-1] for row in [header, *sorted(rows, key=lambda row: row[1])[::-1]]]
    others[3][2] = "moon"
    Path("new.csv").write_text("\n".join(map(",".join, others)))
    code, out, err = istmpi_command("evaluate", "run/network.h5", "--data", "new.csv", "--json")
    assert code == 0 and "all 60 rows of new.csv are read as the training table was; missing values are filled" in err
    assert istmpi_command("predict", "run/network.h5", "new.csv", "--label", "kind", "--out", "answers.csv")[0] == 0
    answers = [line.split(",")[1] for line in Path("answers.csv").read_text().splitlines()[1:]]
    right = [answer == row[0] for answer, row in zip(answers, others[1:], strict=True)]
    assert json.loads(out)["score"]["score"] == pytest.approx(np.mean(right)) and 0.6 < np.mean(right) < 1
    Path("new.csv").write_text("\n".join(",".join(row[:-1]) for row in others))
    assert "new.csv has no size, but the training data do" in refusal("evaluate", "run/network.h5", "--data", "new.csv")


def test_tables_of_other_categories_do_not_go_together_unless_one_is_prepared_like_the_other(table, tmp_path):
    """A category is a feature: the same number of them in another order would be scored in silence."""
    options = {"categories": "place", "missing": "mean"}
    lines = [f"{place},{size},{row % 2}" for row, (place, size) in enumerate([("b", 1), ("a", ""), ("c", 5)] * 9)]
    _, data, _ = prepared(table("\n".join(["place,size,y", *lines])), **options)
    (tmp_path / "out.h5").rename(tmp_path / "train.h5")
    _, same, _ = prepared(table("\n".join(["place,size,y", *lines[::-1]])), **options)
    assert describe_difference(same.reading, data.reading) == ""
    other = table("\n".join(["place,size,y", *(line.replace("a,", "d,") for line in lines)]))
    _, differs, _ = prepared(other, **options)
    found = describe_difference(differs.reading, data.reading)
    assert found == "its column 'place' has the categories b, c, d, but the categories a, b, c"
    assert describe_difference(data.reading, {"columns": ["place", "size"]}) == "", "as of another rank's columns"
    report, like, x = prepared(other, like=str(tmp_path / "train.h5"))
    assert like.reading["encoding"] == data.reading["encoding"] and like.shape == data.shape
    assert "place has categories that are not in training (d); they become zeros" in map(str, report.assumed)
    fill = np.float32(data.reading["encoding"]["fill"]["size"])
    assert {tuple(row) for row in x} == {(0, 1, 0, 1), (0, 0, 0, fill), (0, 0, 1, 5)}
    with pytest.raises(ConfigError, match="--missing does not go with --like"):
        prepared(other, like=str(tmp_path / "train.h5"), missing="mean")


@pytest.mark.parametrize(
    "rows, message",
    [
        (["a,b,y"] + [f"{row if row % 2 else 'x'},1,{row % 2}" for row in range(20)], "'x' is not a number"),
        (['"a, b",y'] + [f"{'pq'[row % 2]},{row % 2}" for row in range(20)], "'p' is not a number"),
    ],
)
def test_what_is_no_guess_is_refused_as_prepare_refuses_it(tmp_path, monkeypatch, rows, message):
    """A column of numbers and texts, and one whose name an option cannot give."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "t.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path / "t.csv"))
