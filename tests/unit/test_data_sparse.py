"""Sparse rows: what was prepared is what the source says, row by row; what is wrong with it is named by its line."""

import contextlib
import gzip

import numpy as np
import pytest
from damage import flip
from data_files import read_notes, write_files

from istmpi.data.hdf5 import open_prepared
from istmpi.data.holdout import draw_test
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.data.sparse.predict import read_rows
from istmpi.errors import ConfigError, DataError

TRAIN = b"3 5 4\n0,2 1:0.5 4:-1e-3\n3 0:1\n1,0 2:2.5 3:3.4e38\n"
TEST = b"2 5 4\n2 0:1 1:1\n0,1,3 4:7\n"


def make(folder, contents, **options):
    """The report of rows out of files by their names, or out of one file alone."""
    source = write_files(folder / "src", contents)
    source = source / next(iter(contents)) if len(contents) == 1 else source
    return prepare("xc", source, folder / "data.h5", force=True, **options)


def prepared(folder, contents):
    return open_prepared(make(folder, contents).target)


def listed(rows, test, text):
    """The files of one table with lists of its rows for training and testing."""
    return {"a_data.txt": text, "a_trSplit.txt": rows, "a_tstSplit.txt": test}


def rows_of(split):
    """Every row as a list of labels and a list of features with values, through batches."""
    found = []
    for start in range(0, len(split), 3):
        batch = split.batch(np.arange(start, min(start + 3, len(split))))
        columns, offsets, values = (tensor.numpy() for tensor in batch.inputs)
        ends = [*offsets[1:], len(columns)]
        labels = batch.targets
        for n, (begin, end) in enumerate(zip(offsets, ends)):
            own = labels.columns[labels.offsets[n] : labels.offsets[n + 1]].tolist()
            found.append((own, list(zip(columns[begin:end].tolist(), values[begin:end].tolist()))))
    return found


def naive(text, from_one=False):
    """The rows of a text with a header or none, as `rows_of` has them: those with a feature and a label."""
    found = []
    for line in text.decode().splitlines():
        line = line.partition("#")[0]
        if not line.strip() or ":" not in line:
            continue
        labels, _, features = line.partition(" ")
        pairs = (word.split(":") for word in features.split())
        row = [(int(column) - from_one, float(np.float32(value))) for column, value in pairs]
        labels = list(dict.fromkeys(int(label) for label in labels.split(",") if label))
        if labels and row:
            found.append((labels, row))
    return found


def test_rows_are_those_of_the_source(tmp_path):
    data = prepared(tmp_path, {"train.txt": TRAIN, "test.txt": TEST})
    assert (rows_of(data.train), rows_of(data.test)) == (naive(TRAIN), naive(TEST))
    assert (data.task, data.kind, data.shape, data.outputs, data.classes) == ("multi-label", "xc", (5,), 4, None)
    assert data.train.density == 5 / 3 and data.train.count_labels(4).tolist() == [2, 1, 1, 1]


@pytest.mark.parametrize("form", ["gz", "crlf", "spaces", "mark", "old names"])
def test_packing_and_white_space_change_nothing(tmp_path, form):
    plain = {"train.txt": TRAIN, "test.txt": TEST}
    changed = {
        "gz": {f"{name}.gz": gzip.compress(text) for name, text in plain.items()},
        "crlf": {name: text.replace(b"\n", b"\r\n") for name, text in plain.items()},
        "mark": {name: b"\xef\xbb\xbf" + text for name, text in plain.items()},
        "spaces": {name: text.replace(b"\n", b" \t\n\n") for name, text in plain.items()},
        "old names": {**{f"eurlex_{name}": text for name, text in plain.items()}, "labels.txt": b"a\nb\n"},
    }
    data = prepared(tmp_path, changed[form])
    assert [rows_of(data.train), rows_of(data.test)] == [naive(TRAIN), naive(TEST)]


def numbered(count):
    return b"%d 5 4\n" % count + b"".join(b"%d %d:%d.5\n" % (n % 4, n % 5, n) for n in range(count))


def test_one_file_with_lists_of_rows_or_one_row_in_five_for_testing(tmp_path):
    rows, test = naive(numbered(50)), draw_test(50)
    data = prepared(tmp_path / "alone", {"rows.txt": numbered(50)})
    assert rows_of(data.train) == [row for row, out in zip(rows, test) if not out]
    assert rows_of(data.test) == [row for row, out in zip(rows, test) if out]
    data = prepared(tmp_path, listed(b"10 1\n2 2\n3 3\n4 4\n5 5\n", b"1 9\n7 8\n", numbered(10)))
    assert rows_of(data.train) == [rows[n] for n in (1, 2, 3, 4, 9)]  # in the order of the file
    assert rows_of(data.test) == [rows[0], rows[6]]


@pytest.mark.parametrize("from_one", [False, True])
def test_svmlight_is_counted_from_one_unless_it_has_a_zero(tmp_path, from_one):
    train = b"1,0 1:0.5 7:2 # a comment\n# another\n2 3:1\n" + (b"" if from_one else b"0 0:1\n")
    test = b"0 2:1\n"
    data = prepared(tmp_path, {"train.svm": train, "test.svm": test})
    assert rows_of(data.train) == naive(train, from_one) and rows_of(data.test) == naive(test, from_one)
    assert (data.shape, data.outputs) == ((7 if from_one else 8,), 3)


def test_rows_without_features_or_labels_are_dropped_and_counted(tmp_path):
    report = make(tmp_path, {"train.txt": b"5 5 4\n0,2,2 1:0.5\n 1:1\n3\n3,3 0:1\n1:2\n", "test.txt": TEST})
    assert rows_of(open_prepared(report.target).train) == [([0, 2], [(1, 0.5)]), ([3], [(0, 1.0)])]
    assert report.counts == {"train": 2, "test": 2}
    assert [*report.facts.values()] == [4, 3, 1, 1.5, 1, 2, 2]  # labels, in training; in a row; dropped; repeated


@pytest.mark.parametrize("name", ["train/data", "train/indptr", "train/label_indices"])
def test_damage_is_found_when_it_is_read(tmp_path, name):
    target = make(tmp_path, {"train.txt": TRAIN, "test.txt": TEST}).target
    flip(target, name)
    with pytest.raises(DataError, match="damaged|prepare it again"):
        rows_of(open_dataset(str(target)).train)


SVM = b"# from somewhere\n\n0 1:1 2:1\n1 3:1 # x\n\n# y\n0 1:2 2:1\n1 3:2\n0 1:3\n1 3:3\n"


def test_what_rows_without_a_header_leave_open_is_said_and_kept(tmp_path):
    report = make(tmp_path, {"a.svm": SVM})
    assert report.reading == open_prepared(report.target).reading == {"counted_from": 1}
    assert (report.features, sum(report.counts.values())) == (3, 6)
    counted = "features are counted from 1: feature 0 does not occur (change with --counted-from)"
    assert counted in read_notes(report) and "2 lines of a.svm, blank or a comment" in read_notes(report)


def test_an_option_says_where_features_count_from(tmp_path):
    report = make(tmp_path, {"a.svm": SVM}, counted_from=0)
    assert (report.features, report.reading) == (4, {"counted_from": 0})
    assert "are counted from" not in read_notes(report)
    with pytest.raises(DataError, match="a.svm, line 11: feature 0 is out of range"):
        make(tmp_path, {"a.svm": SVM + b"1 0:1\n"}, counted_from=1)
    for counted_from, content in ((0, TRAIN), (2, SVM)):
        with pytest.raises(ConfigError, match="counted_from is"):
            make(tmp_path, {"a.svm": content}, counted_from=counted_from)


def test_labels_of_two_signs_have_a_cure_that_works(tmp_path):
    text = b"-1 1:1\n+1 2:1\n-1 1:2\n+1 2:2\n-1 1:3\n+1 2:3\n"
    with pytest.raises(DataError, match="line 1: label -1; labels are numbers from 0. Write 0 instead of -1"):
        make(tmp_path, {"a.svm": text})
    assert make(tmp_path, {"a.svm": text.replace(b"-1 ", b"0 ")}).facts["labels"] == 2


FIRST, SECOND, THIRD = ([0], [(1, 1.0)]), ([0], [(2, 1.0)]), ([0], [(3, 1.0)])


@pytest.mark.parametrize(
    "text, test, split, counted",
    [
        (b"4 5 4\n0 1:1\n\n0 2:1\n0 3:1\n", b"2\n4\n", ([FIRST, SECOND], [THIRD]), True),
        (b"4 5 4\n0 1:1\n0 2:1\n0 3:1\n\n\n", b"2\n", ([FIRST, THIRD], [SECOND]), True),
        (b"3 5 4\n\n0 1:1\n\n0 2:1\n0 3:1\n\n", b"2\n", ([FIRST, THIRD], [SECOND]), False),
    ],
)
def test_blank_lines_are_rows_where_the_header_needs_them(tmp_path, text, test, split, counted):
    """Row 3 of a list is another row with them than without."""
    report = make(tmp_path, listed(b"1\n3\n", test, text))
    data = open_prepared(report.target)
    assert (rows_of(data.train), rows_of(data.test)) == split
    assert ("1 blank line of a_data.txt, counted as rows" in read_notes(report)) == counted


def test_rows_in_no_list_and_columns_beside_the_first_are_said(tmp_path):
    rows = b"\xef\xbb\xbf10 1\n2 2\n2 3\n4 4\n5 5\n3 6\n7 7"
    said = read_notes(make(tmp_path, listed(rows, b"1\n8\n", numbered(10))))
    assert "the split is the first of 2 columns of a_trSplit.txt" in said
    assert "2 rows of a_data.txt that no list names, such as row 6" in said


# ---- the same conventions when rows are predicted


def predicted(tmp_path, text, reading, features=5):
    told = []
    path = tmp_path / "new.txt"
    path.write_bytes(text)
    rows = []
    for block in read_rows(str(path), features, reading=reading, tell=told.append):
        rows += [block.arrays[0][a:b].tolist() for a, b in zip(block.offsets, block.offsets[1:])]
    return rows, " ".join(told)


@pytest.mark.parametrize(
    "text, first, expected, said",
    [
        (b"0 1:1 5:1\n2:1\n", 1, [[0, 4], [1]], ""),
        (b"0 1:1 4:1\n2:1\n", 0, [[1, 4], [2]], ""),
        (b"\xef\xbb\xbf# c\n\n0 1:1 4:1\n\n2:1\n", 0, [[1, 4], [2]], ""),
        (b"0 1:1 4:1\n2:1\n", None, [[1, 4], [2]], "are counted from 0; the network does not record"),
        (b"3 5 4\n0 1:1 4:1\n\n0 2:1\n", 0, [[1, 4], [], [2]], ""),
        (b"2 5 4\n0 1:1 4:1\n\n0 2:1\n", None, [[1, 4], [2]], ""),
        (b"1 5 4\n0 1:1 4:1\n", 1, [[1, 4]], "has a header, so its features are counted from 0"),
    ],
)
def test_rows_to_predict_are_read_as_those_of_training(tmp_path, text, first, expected, said):
    rows, told = predicted(tmp_path, text, {} if first is None else {"counted_from": first})
    assert rows == expected and said in told and bool(said) == bool(told)


@pytest.mark.parametrize(
    "text, message",
    [
        (b"0 0:1\n", "feature 0 is out of range: there are 5, numbered from 1"),
        (b"0 6:1\n", "feature 6 is out of range: there are 5, numbered from 1"),
        (b"3 5 4\n0 1:1\n", "states 3 rows"),
    ],
)
def test_rows_that_cannot_be_those_of_training_are_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        predicted(tmp_path, text, {"counted_from": 1})


def test_prepared_rows_to_predict_are_counted_as_those_of_training(tmp_path):
    target = make(tmp_path, {"zero.svm": b"0 0:1 2:2\n1 1:1 3:2\n" * 5}).target
    assert sum(map(len, read_rows(str(target), 4, reading={"counted_from": 0}))) == 2
    with pytest.raises(DataError, match="data.h5: its features were counted from 0, but from 1 in the network's"):
        list(read_rows(str(target), 4, reading={"counted_from": 1}))


def svm(columns, comment="", label="{}", query=""):
    rows = [f"{label.format(n % 2)}{query} {columns[0] + n % 3}:1 {columns[1]}:0.5\n" for n in range(20)]
    return comment + "".join(rows)


SPARSE = {
    "zero-based": (svm((1, 5), "# Column indices are zero-based\n"), 6, {"counted_from": 0}),
    "one-based": (svm((1, 5), "# Column indices are one-based\n"), 5, {"counted_from": 1}),
    "queries": (svm((1, 5), query=" qid:3"), 5, {"counted_from": 1}),
    "labels with a point": (svm((1, 5), label="{}.0"), 5, {"counted_from": 1}),
}


@pytest.mark.parametrize("case", SPARSE)
def test_sparse_rows_as_scikit_learn_and_letor_write_them(tmp_path, case):
    """A comment says where features count from; query numbers are left out; 1.0 is the label 1."""
    text, features, reading = SPARSE[case]
    (tmp_path / "a.svm").write_text(text)
    report = prepare("xc", tmp_path / "a.svm", tmp_path / "data.h5")
    assert (report.features, report.reading, report.facts["labels"]) == (features, reading, 2)
    left_out = [str(note) for note in report.left_out]
    assert ("20 query numbers (qid:) of a.svm" in left_out) == (case == "queries")
    # Feature 0 beside a comment that says one-based needs an option.
    (tmp_path / "a.svm").write_text(svm((0, 5), "# Column indices are one-based\n"))
    with pytest.raises(DataError, match="comments say that features count from 1.*Give --counted-from 0 or 1"):
        prepare("xc", tmp_path / "a.svm", tmp_path / "again.h5")
    assert prepare("xc", tmp_path / "a.svm", tmp_path / "again.h5", counted_from=0).features == 6


@pytest.mark.parametrize(
    "values, refused",
    [
        (1e8 + 0.5 * np.arange(32), True),
        (1e8 + 1e6 * np.arange(32), False),
        (0.1 * np.arange(1, 33), False),
        (np.tile([0.12522, 0.12525], 16), False),  # a word of Reuters, in two documents
    ],
)
def test_sparse_values_that_float32_merges_are_refused(tmp_path, values, refused):
    """A feature's values that float32 rounds need a range that is not too small."""
    rows = [f"{number % 2} 1:{value!r} 2:{number + 1}\n" for number, value in enumerate(values.tolist())]
    (tmp_path / "a.svm").write_text("".join(rows))
    message = "a.svm: values of feature 1 are too close together for the 24 bits of float32"
    with pytest.raises(DataError, match=message) if refused else contextlib.nullcontext():
        assert prepare("xc", tmp_path / "a.svm", tmp_path / "data.h5").features == 2
