"""Files as programs and people write them: read with the values that they mean, or refused in one line."""

import contextlib
import os

import numpy as np
import pytest
from PIL import Image

from istmpi.config import Run
from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare
from istmpi.errors import ConfigError, DataError

SPLITS = {
    "other spelling": ("<=50K >50K", "<=50K. >50K.", "no training example has the test label <=50K."),
    "words for numbers": ("0 1", "no yes", "no training example has the test label no; training has 0, 1."),
    "hidden": ("0 1", "-1 -1", "no training example has the test label -1"),
    "decimals": ("0 1", "0.0 1.0", "train labels are whole numbers, such as 0, but the label 0.0 of another split has"),
}


@pytest.mark.parametrize("case", SPLITS)
def test_labels_of_a_split_that_training_lacks_are_refused(tmp_path, case):
    """They would be classes without training examples, or make numbers to predict of classes."""
    train, test, message = SPLITS[case]
    for name, labels in (("train", train), ("test", test)):
        rows = [f"{number},{label}" for number, label in enumerate(labels.split() * 3)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b", *rows]))
    with pytest.raises(DataError) as refused:
        prepare("csv", tmp_path, tmp_path / "data.h5")
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_that_pandas_writes_is_no_feature(tmp_path, name):
    """A column without a name is left out and told; values and classes of the others stay."""
    rows = [f"{20 - number},{number % 3},{number * 2},{'xy'[number % 2]}" for number in range(20)]
    (tmp_path / "in.csv").write_text("\n".join([f"{name},a,b,label", *rows]))
    report = prepare("csv", tmp_path / "in.csv", tmp_path / "data.h5")
    assert report.features == 2 and report.reading["columns"] == ["a", "b"] and report.classes == ("x", "y")
    expected = f"in.csv: {name or 'a column without a name'}, as pandas writes an index"
    assert expected in [str(note) for note in report.left_out]


def test_codes_that_are_one_number_are_told(tmp_path):
    """The labels 01 and 1 are one class, and a line says so."""
    (tmp_path / "in.csv").write_text("a,b\n" + "1,01\n2,1\n3,2\n4,02\n" * 3)
    report = prepare("csv", tmp_path / "in.csv", tmp_path / "data.h5")
    assert report.classes == ("1", "2") and "the labels 01, 1 are one number" in map(str, report.assumed)
    folder = tmp_path / os.fsdecode(b"k\xe4se")  # a path that is not UTF-8
    folder.mkdir()
    (folder / "t.csv").write_text("a,b,label\n" + "1,2,x\n3,4,y\n" * 5)
    assert open_prepared(prepare("csv", folder / "t.csv", tmp_path / "t.h5").target).classes == ("x", "y")


def svm(columns, comment="", label="{}", query=""):
    """Twenty rows of svmlight with two features each."""
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


def make(kind, folder, labels):
    """A small source of a kind whose examples have these labels."""
    folder.mkdir()
    if kind == "images":
        for number, label in enumerate(labels):
            (folder / label).mkdir(exist_ok=True)
            Image.fromarray(np.full((4, 5), number, np.uint8)).save(folder / label / f"{number}.png")
        return folder
    rows = [f"{number},{number * number},{label}" for number, label in enumerate(labels)]
    (folder / "a.csv").write_text("\n".join(["a,b,label", *rows]))
    return folder / "a.csv"


@pytest.mark.parametrize("kind", ["images", "csv"])
def test_a_site_that_lacks_a_class_gets_the_list_of_all(tmp_path, kind):
    """With --classes, files of several sites have the same classes in the same order, whatever they hold."""
    for site, labels, numbers in (("one", ["cat"], {0}), ("two", ["dog", "owl"], {1, 2})):
        source = make(kind, tmp_path / site, labels * 10)
        report = prepare(kind, source, tmp_path / f"{site}.h5", classes="cat,dog,owl")
        made = open_prepared(report.target)
        assert made.classes == ("cat", "dog", "owl") and made.outputs == 3
        assert set(made.train.labels()) == numbers
    with pytest.raises(DataError, match="the label owl is not among --classes"):
        prepare(kind, source, tmp_path / "other.h5", classes="cat,dog")
    for classes in ("cat", "cat,cat", "cat,,dog", ""):
        with pytest.raises(ConfigError, match="give at least two different names, separated by commas"):
            prepare(kind, source, tmp_path / "other.h5", classes=classes)


def test_the_settings_in_a_copied_folder_name_the_copy(tmp_path):
    """A run that resumes from a copy must not write to the folder that was copied; a byte order mark is passed over."""
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbf[train]\nrounds = 3\n")
    assert Run.load(str(tmp_path / "bom.toml")).train.rounds == 3
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
        (tmp_path / name / "run.toml").write_text(f'[output]\nfolder = "{tmp_path / "x"}"\n')
    for name in ("x", "y"):
        assert Run.load(str(tmp_path / name / "run.toml")).output.folder == str(tmp_path / name)
