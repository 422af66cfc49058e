"""Tables of text: what their first lines leave open is decided once, said, and kept for prediction."""

import json

import numpy as np
import pytest
from small import small_run
from table_files import prepared, written_to

from istmpi.comm import world
from istmpi.data.decoder import Notes
from istmpi.data.dense.predict import read_inputs
from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError, DataError
from istmpi.training.run import run_training


@pytest.fixture
def table(tmp_path):
    return written_to(tmp_path)


def assumed(report, option):
    (note,) = [note.text for note in report.assumed if note.option == option]
    return note


@pytest.mark.parametrize("field", ["1_5", "١٥"])
def test_what_python_alone_takes_for_a_number_is_none(table, field):
    with pytest.raises(DataError, match=r"in.csv, line 3, column b: '.*' is not a number"):
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
    text, data = reason(["No", "yes", "no"] * 5)
    assert "the labels No, no differ only in case or in how letters are coded" in text and data.outputs == 3
    text, data = reason(["1", "2", "many"] * 5)
    assert "5 of 15 labels are not numbers (such as 'many'), so all are classes" in text
    assert reason(([str(2**53 + n) for n in range(120)] * 2), task="classification")[1].outputs == 120
    assert reason([f"{2**70 + n}" for n in range(3)] * 5)[1].outputs == 3
    with pytest.raises(DataError, match="the label '1,5' has a decimal comma"):
        prepared(table("a;label\n1;1,5\n2;3\n"))
    text, data = reason(["0.0", "1.0", "2.0"] * 5)
    said = "15 labels have 3 different numbers, whole, with decimal points, so they are numbers to predict"
    assert said in text and data.task == "regression"
    text, data = reason([n % 150 for n in range(600)])
    said = "600 labels have 150 different whole numbers, more than 100, so they are numbers to predict"
    assert said in text and data.task == "regression"


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
        ("a,a,b\n1,2,x\n", {"missing": "mean"}, "in.csv has several columns of a name, a. Rename"),
        ('a,b,label\n1,2,"x\n3,4,y\n', {}, "in.csv is not a table: unexpected end of data"),
        ("a,b,c\n1,,x\n2,3,x\n", {}, "in.csv, line 2, column b: '' is not a number"),
        ("a,b,c\n1,nan,x\n2,3,y\n", {}, "has nan as feature 1"),
        ("a,b,kind\n1,2,x\n", {"label": "kin"}, "in.csv has no column kin; did you mean kind"),
        ("a,b,c\n1,2,x\n", {"label": "7"}, "there is no column 7"),
        ("a,b,1\n1,2,x\n", {"label": "1", "header": True}, "number of the column b, but column 2 is called 1"),
        ("a,b,c\n1,2,x\n3,4,y\n", {"task": "regression"}, "the label x is not a number"),
        ("", {}, "it needs features and a label"),
        ("a,b,c\n", {}, "in.csv has no train ex"),
        ("label,p\n1,0\n0,0\n1,0\n", {}, "has one class, 0. The labels may be in the column label: --label label."),
        ("target,p\n1,.5\n0,.5\n1,.5\n", {}, "all labels are equal. The labels may be in the column target"),
        ("a,b\n1,01\n2,1\n3,001\n", {}, "has one class, 1. The labels 001, 01, 1 are one number. Write codes as"),
        ("a,b\n1,cat\n2,dog\n3,NaN\n", {}, "example 2 has the name NaN, which programs write for a missing label"),
        ("5.1,3.5,0\n4.9,3.0,cat\n4.7,3.2,dog\n", {}, "line 1: 5.1, 3.5, 0 may be a header"),
        (",b\n0,x\n1,y\n", {}, r"in.csv, line 1, column 0 \(the first is 0\): '' is not a number"),
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
    assert len(data.train) + len(data.test) == 10 and all(note.option != "--header" for note in report.assumed)


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
        ("a,c\n1,2\n", {}, "has no b, but the training data do"),
        ("id,a,b\n1,1,2\n", {}, "has id, but the training data do not"),
        ("1,2\n", {}, "has no a, b, but.*--header no reads a table without a header"),
        ("a,b,b\n1,2,3\n", {}, "has several columns of a name"),
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
    with pytest.raises(DataError, match=r"column time: 1700000000000000001 has more digits than a float64 keeps"):
        prepared(table("time,label\n" + rows))
    with pytest.raises(DataError, match="the label: 1700000000000000001 has more digits"):
        prepared(table("a,b\n" + "".join(f"{n},{17 * 10**17 + n}\n" for n in range(1, 140))), task="regression")
    report, _, _ = prepared(table("a,b\n" + "".join(f"{2**53 * n},{n % 2}\n" for n in range(1, 40)), "exact.csv"))
    assert report.counts["train"] + report.counts["test"] == 39


def test_a_table_of_one_endless_line_is_refused(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"1," * 2**25)
    with pytest.raises(DataError, match="x.csv has a line of more than 32 MB"):
        prepared(tmp_path / "x.csv")
