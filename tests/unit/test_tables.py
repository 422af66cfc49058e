"""Tables of text: what their first lines leave open is decided once, said, and kept for prediction."""

import json
from pathlib import Path

import numpy as np
import pytest
from small import small_run

from istmpi.comm import world
from istmpi.data.decoder import Notes
from istmpi.data.dense.predict import read_inputs
from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError, DataError
from istmpi.training.run import run_training


def prepared(path, **options):
    """The report, the data set and its training features as the table has them."""
    report = prepare("csv", path, path.parent / "out.h5", force=True, **options)
    data = open_prepared(report.target)
    return report, data, np.asarray(data.train.with_normalisation(None).x)


@pytest.fixture
def table(tmp_path):
    """A file of some text."""

    def written(text, name="in.csv"):
        (tmp_path / name).write_bytes(text.encode())
        return tmp_path / name

    return written


def assumed(report, option):
    """The only note with an option."""
    (note,) = [note.text for note in report.assumed if note.option == option]
    return note


# --- numbers


@pytest.mark.parametrize("field", ["1_5", "١٥"])
def test_what_python_alone_takes_for_a_number_is_none(table, field):
    with pytest.raises(DataError, match=r"in.csv, line 3: '.*' is not a number"):
        prepared(table(f"a,b,label\n1,2,x\n1,{field},y\n"))
    rows = "".join(f"{n},{n * n},{field}{n % 2}\n" for n in range(10))
    assert prepared(table("a,b,label\n" + rows))[1].classes == (f"{field}0", f"{field}1")


def test_labels_that_are_numbers(table):
    def reason(labels, **options):
        report, data, _ = prepared(table("".join(f"{n}.5,{label}\n" for n, label in enumerate(labels))), **options)
        return "".join(note.text for note in report.assumed if note.option in ("--task", "")), data

    text, data = reason(range(25))
    assert "25 labels have 25 different whole numbers, at most 100, so they are classes" in text
    text, data = reason(["7", "07", "8"] * 5)
    assert data.classes == ("7", "8")
    text, data = reason(["1", "2", "many"] * 5)
    assert "5 of 15 labels are not numbers (such as 'many'), so all are classes" in text
    large = [str(2**53 + n) for n in range(120)] * 2
    assert reason(large, task="classification")[1].outputs == 120
    assert reason([f"{2**70 + n}" for n in range(3)] * 5)[1].outputs == 3
    with pytest.raises(DataError, match="the label '1,5' has a decimal comma"):
        prepared(table("a;label\n1;1,5\n2;3\n"))
    text, data = reason(["0.0", "1.0", "2.0"] * 5)
    said = "15 labels have 3 different numbers, whole, with decimal points, so they are numbers to predict"
    assert said in text and data.task == "regression"
    text, data = reason([n % 150 for n in range(600)])
    said = "600 labels have 150 different whole numbers, more than 100, so they are numbers to predict"
    assert said in text and data.task == "regression"


# --- delimiters


@pytest.mark.parametrize(
    "text, delimiter",
    [
        ("a\tb\tlabel\n1\t2\tx,y\n3\t4\tz\n", "tab"),
        ("a;b;label\n1;2;x,y\n3;4;z\n", ";"),
        ("\ufeffa,b,label\r\n1,2,x\r\n3,4,y\r\n", ","),
    ],
)
def test_the_delimiter_is_decided_and_said(table, text, delimiter):
    report, data, _ = prepared(table(text))
    assert report.reading["delimiter"] == delimiter and len(data.train) + len(data.test) == 2
    assert assumed(report, "--delimiter") == f"the columns are separated by {delimiter!r}"


@pytest.mark.parametrize("text", ["1,2,x;y\n3,4,z\n", '"a;b",c,label\n1,2,x\n3,4,y\n', "\t;\n\n", "1,5;2,5;x\n"])
def test_a_delimiter_that_is_not_clear_is_asked_for(table, text):
    with pytest.raises(DataError, match="in.csv: its first line has .* Set --delimiter"):
        prepared(table(text))
    if "\n3,4" in text:
        assert prepared(table(text), delimiter=",", header=text[0] != "1")[0].features == 2


def test_other_delimiters_are_read_when_given(table):
    rows = [[1, 2, "x"], [3, 4, "y"]] * 5
    path = table("\n".join("|".join(map(str, row)) for row in rows))
    with pytest.raises(DataError, match="the first line has 1 column.*Set --delimiter"):
        prepared(path)
    report, data, x = prepared(path, delimiter="|")
    assert data.classes == ("x", "y") and sorted({*map(tuple, x)}) == [(1, 2), (3, 4)]
    assert all(note.option != "--delimiter" for note in report.assumed)
    for delimiter in ("", "a", "::"):
        with pytest.raises(ConfigError, match="is invalid"):
            prepared(path, delimiter=delimiter)


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("a,b,label\n1,2,x,\n3,4,y,\n", {}, "line 2: 4 columns, but line 1 has 3. A delimiter at the end of a line"),
        ("5.1,?,setosa\n" + "5,3,setosa\n" * 10, {}, r"line 1: '\?' is not a number, but others are.*--header yes"),
        ('a,b,label\n"0,5",2,x\n1,2,y\n3,4,y\n', {}, "'0,5' is not a number.*decimal point"),
        ("a,a,b\n1,2,x\n", {"label": "a"}, "several columns are called 'a'"),
        ('a,b,label\n1,2,"x\n3,4,y\n', {}, "in.csv is not a table: unexpected end of data"),
        ("a,b,c\n1,,x\n2,3,x\n", {}, "in.csv, line 2: '' is not a number"),
        ("a,b,c\n1,nan,x\n2,3,y\n", {}, "has nan as feature 1"),
        ("a,b,kind\n1,2,x\n", {"label": "kin"}, "in.csv has no column kin; did you mean kind"),
        ("a,b,c\n1,2,x\n", {"label": "7"}, "there is no column 7"),
        ("a,b,c\n1,2,x\n3,4,y\n", {"task": "regression"}, "the label x is not a number"),
        ("", {}, "it needs features and a label"),
        ("a,b,c\n", {}, "in.csv has no train ex"),
        ("label,p\n1,0\n0,0\n1,0\n", {}, "has one class, 0. The labels may be in the column label: --label label."),
        ("target,p\n1,.5\n0,.5\n1,.5\n", {}, "all labels are equal. The labels may be in the column target"),
        ("a,b\n1,01\n2,1\n3,001\n", {}, "has one class, 1. The labels 001, 01, 1 are one number. Write codes as"),
        ("a,b\n1,cat\n2,dog\n3,NaN\n", {}, "example 2 has the name NaN, which programs write for a missing label"),
        ("5.1,3.5,0\n4.9,3.0,cat\n4.7,3.2,dog\n", {}, "line 1: 5.1, 3.5, 0 may be a header"),
        (",b\n0,x\n1,y\n", {}, "in.csv, line 1: '' is not a number"),
    ],
)
def test_what_is_wrong_is_named(table, text, options, message):
    """Also one class, names for missing values, and headers of numbers."""
    with pytest.raises(DataError, match=message) as refused:
        prepared(table(text), **options)
    assert "\n" not in str(refused.value)


def test_blank_lines_and_white_space_around_labels_do_not_count(table):
    _, data, _ = prepared(table('\na;b;"label "\n1;2;x\n3;4;"x "\n;;\n5;6; y\n'), label="label")
    assert data.classes == ("x", "y") and len(data.train) + len(data.test) == 3


# --- headers


@pytest.mark.parametrize(
    "first, row, header",
    [
        ("0,1,2", "3,4,0", None),
        ("a,b,2", "3,4,0", True),
        ("0,1", "1,0", False),
        ("1,2,species", "0.5,7,dog", None),
        ("5.1,3.5,setosa", "5,3,setosa", False),
    ],
)
def test_a_header_of_numbers(table, first, row, header):
    features, _, label = row.rpartition(",")
    other = {"0": "1", "dog": "cat", "setosa": "virginica"}[label]
    path = table("\n".join([first, *[row, f"{features},{other}"] * 5]))
    if header is None:
        with pytest.raises(DataError, match="line 1: .* may be a header. Give --header yes or no"):
            prepared(path)
        return
    report, data, _ = prepared(path)
    assert len(data.train) + len(data.test) == 11 - header and report.reading["header"] is header
    assert assumed(report, "--header").startswith("the first line is a" + ("n example" if not header else " header"))
    report, data, _ = prepared(path, header=True)
    assert len(data.train) + len(data.test) == 10
    assert all(note.option != "--header" for note in report.assumed)


def test_splits_have_one_form(tmp_path, table):
    (tmp_path / "data").mkdir()
    for split, text in (("train", "a,b,c\n5,6,1\n7,8,0\n"), ("test", "a,b,c\n5,6,1\n"), ("val", "a,b,c\n5,6,1\n")):
        table(text, f"data/{split}.csv")
    table("", "data/readme.md")
    report = prepare("csv", f"{tmp_path}/./data", tmp_path / "out.h5")
    assert open_prepared(report.target).source == f"{tmp_path}/./data", "as it was given"
    assert report.counts == {"train": 2, "test": 1, "validation": 1}
    absent = "the test split has no example of 0"
    assert [note.text for note in report.left_out] == ["1 file not read: 1 .md; such as readme.md", absent]
    table("1,2,3\n", "data/other.test.csv")
    table("1,2,3\n", "data/Test.tsv")
    with pytest.raises(DataError, match="Test.tsv and test.csv are both for test"):
        prepare("csv", tmp_path / "data", tmp_path / "more.h5")


# --- prediction


BARE = {"delimiter": ",", "header": False, "columns": None, "label": None}
READING = {"delimiter": ",", "header": True, "columns": ["a", "b"], "label": "kind"}


def inputs(path, reading=READING, notes=None, width=2, **options):
    return [x.tolist() for _, x, _ in read_inputs(str(path), "csv", (width,), reading=reading, notes=notes, **options)][
        0
    ]


@pytest.mark.parametrize(
    "text, options",
    [
        ("kind,b,a\nx,2,1\n", {}),
        ("id,b,a,kind\ny,2,1,x\n", {"label": "id"}),
        ('" b ",a\r\n2,1\r\n', {}),
        ("b;a\n2;1\n", {"delimiter": ";"}),
        ("1,2\n", {"header": False}),
        ("c,d\n1,2\n", {"header": True, "reading": BARE}),
        ("1,2\n", {"reading": BARE}),
        ("1,0\n2,1\n", {"reading": {**READING, "columns": ["0", "1"]}}),
    ],
)
def test_columns_have_the_order_of_training(table, text, options):
    notes = Notes()
    assert inputs(table(text), notes=notes, **options) == [[1, 2]] and not notes.assumed


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("a,c\n1,2\n", {}, "feature 1 is 'c', but 'b' in the training data"),
        ("id,a,b\n1,1,2\n", {}, "feature 0 is 'id', but 'a' in"),
        ("1,2\n", {}, "feature 0 is '1'.*--header no reads a table without a header"),
        ("a,b,b\n1,2,3\n", {}, "feature 2 is 'b', but without a name"),
        ("c,d\n1,2\n", {"reading": BARE}, "'c' is not a number.*--header yes"),
        ("1,2,3\n", {"reading": BARE}, "a row has 3 numbers.*takes 2.*--label"),
        ("a,b\n1,2\n", {"reading": {**READING, "columns": 7}}, "columns is 7; it must be a list of texts"),
    ],
)
def test_other_columns_than_in_training_are_refused(table, text, options, message):
    with pytest.raises(DataError, match=message):
        inputs(table(text), **options)


def test_without_conventions_prediction_says_what_it_decided(table):
    notes = Notes()
    assert inputs(table("a,b,c\n\n5,6,7\n"), reading={}, notes=notes, width=3) == [[5, 6, 7]]
    assert [note.option for note in notes.assumed] == ["--delimiter", "--header"]


def test_a_network_answers_by_name(table, tmp_path, istmpi_command):
    """The same rows with columns exchanged have the same answers, and data prepared otherwise are refused."""
    draw = np.random.default_rng(0).normal(size=(100, 2)).round(3).tolist()
    report, _, _ = prepared(table("a,b,label\n" + "".join(f"{a},{b},{'neg' if a < b else 'pos'}\n" for a, b in draw)))
    run = small_run(data__source=str(report.target), output__folder=str(tmp_path / "run"), train__rounds=3)
    run_training(run, world())

    def answers(path):
        return istmpi_command("predict", tmp_path / "run/network.h5", path)

    same = answers(table("a,b\n2,-2\n-2,2\n1.5,-1\n"))
    assert same[0] == 0 and same == answers(table("b,a\n-2,2\n2,-2\n-1,1.5\n"))
    text = "b,a,label\n" + "".join(f"{b},{a},{'neg' if a < b else 'pos'}\n" for a, b in draw)
    other = prepare("csv", table(text, "other.csv"), tmp_path / "other.h5").target
    code, _, err = answers(other)
    assert code == 2 and "feature 0 is 'b', but 'a' in" in err
    with pytest.raises(DataError, match="feature 0 is 'b', but 'a' in the network's training data"):
        evaluate(str(tmp_path / "run/network.h5"), world(), str(other))


def test_the_options_are_the_commands(table, tmp_path, istmpi_command):
    words = "prepare", "csv", table("a,b,c\n" + "0,1,2\n0,1,3\n" * 5), tmp_path / "a.h5"
    assert json.loads(istmpi_command(*words, "--header", "yes", "--json")[1])["reading"]["header"] is True
    assert "'maybe' must be yes or no" in istmpi_command(*words, "--header", "maybe")[2]


def test_whole_numbers_that_float64_would_merge_are_refused(table):
    rows = "".join(f"{17 * 10**17 + n},{n % 2}\n" for n in range(1, 40))
    with pytest.raises(DataError, match=r"line 2: 1700000000000000001 has more digits than a float64 keeps"):
        prepared(table("time,label\n" + rows))
    with pytest.raises(DataError, match="the label: 1700000000000000001 has more digits"):
        prepared(table("a,b\n" + "".join(f"{n},{17 * 10**17 + n}\n" for n in range(1, 140))), task="regression")
    report, _, _ = prepared(table("a,b\n" + "".join(f"{2**53 * n},{n % 2}\n" for n in range(1, 40)), "exact.csv"))
    assert report.counts["train"] + report.counts["test"] == 39


def test_a_table_of_one_endless_line_is_refused(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"1," * 2**25)
    with pytest.raises(DataError, match="x.csv has a line of more than 32 MB"):
        prepared(tmp_path / "x.csv")


# --- columns that are left out, filled, or categories


def mixed(count=60):
    """A table with a date, gaps and categories, and its columns."""
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
    options = {"drop": "when", "categories": "place", "missing": missing}
    _, data, x = prepared(table(text), **options)
    weight = x[:, -1]
    rows = np.rint(weight * 8).astype(int)
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
    options = {"drop": "when", "categories": "place", "missing": "mean"}
    _, data, _ = prepared(table(text), **options)
    notes = Notes()
    lines = "place,weight,size\nsouth,1.5,NA\nmoon,2.5,0.5\n"  # another order, and no date
    (block,) = read_inputs(
        str(table(lines, "new.csv")), "csv", data.shape, reading=data.reading, notes=notes, label=None
    )
    encoding = data.reading["encoding"]
    south = [float(name == "south") for name in encoding["categories"]["place"]]
    np.testing.assert_allclose(block.x, [[encoding["fill"]["size"], *south, 1.5], [0.5, 0, 0, 0, 2.5]], rtol=1e-6)
    assert "place has categories that are not in training (moon)" in notes.assumed[-1].text


@pytest.mark.parametrize(
    "options, message",
    [
        ({"drop": "wehn"}, "no column wehn; did you mean when"),
        (
            {"drop": "when,size", "categories": "place"},
            "line 2: place is missing. Give --missing mean or most-frequent",
        ),
        ({"drop": "when,place"}, "line 2: 'NA' is not a number"),
        ({"missing": "zero"}, "missing 'zero' must be one of refuse, mean, most-frequent"),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_name(table, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        prepared(table(mixed()[0]), **options)
    with pytest.raises(DataError, match="has no header, which --drop needs"):
        prepared(table("1,2\n3,4\n"), drop="a", header=False)


def test_a_table_with_dates_gaps_and_categories_goes_from_file_to_answers_in_one_command(
    tmp_path, istmpi_command, monkeypatch
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
    code, _, err = istmpi_command("train", "--data", "houses.csv", "--predict", "none.csv")
    assert code == 2 and "--predict none.csv does not exist" in err and not Path("runs/houses-2").exists()


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
