"""Small inputs that were once read wrongly, of images, recordings, sparse rows and text: their right values."""

import csv
import io
import tarfile

import numpy as np
import pytest
from small import own_run

from istmpi.comm import world
from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare
from istmpi.errors import DataError
from istmpi.training.run import run_training


@pytest.fixture
def case(shared_cases, tmp_path):
    """``case(name)`` is the path of a file, or of the folder that the tar of this name holds."""

    def path(name):
        if not (packed := shared_cases / f"{name}.tar.gz").exists():
            return shared_cases / name
        with tarfile.open(packed) as tar:
            tar.extractall(tmp_path / name)
        return next((tmp_path / name).iterdir())

    return path


@pytest.fixture
def prepared(case, tmp_path):
    """``prepared(kind, name)`` is the report of one."""
    return lambda kind, name: prepare(kind, case(name), tmp_path / "data.h5", force=True)


def notes(report):
    return "\n".join(map(str, [*report.assumed, *report.left_out]))


def test_rows_that_count_from_one_are_predicted_as_they_were_trained_on(case, prepared, tmp_path, istmpi_command):
    report = prepared("xc", "one.svm")
    assert report.reading == {"counted_from": 1} and "--counted-from" in notes(report)
    settings = {"model__name": "xc", "model__hidden": [16], "data__source": str(report.target), "optimizer__lr": 0.03}
    run_training(own_run(**settings, train__rounds=20, output__folder=str(tmp_path / "run")), world())
    for name, answers in (("new.svm", [0, 1] * 3), ("one.svm", [0, 1, 2] * 100)):
        code, out, err = istmpi_command("predict", tmp_path / "run" / "network.h5", case(name), "--top", "1")
        assert (code, err) == (0, "")
        assert [int(row["label_1"]) for row in csv.DictReader(io.StringIO(out))] == answers


def test_a_word_may_have_a_space(prepared):
    report = prepared("speech", "speech-space")
    assert report.counts == {"train": 6, "test": 2} and report.classes == ("no", "turn on")
    assert open_prepared(report.target).test.labels().tolist() == [0, 1]


def test_lines_of_a_list_that_name_no_file_are_counted(prepared):
    report = prepared("speech", "speech-missing")
    assert report.counts == {"train": 6, "test": 2}
    assert "2 lines of lists without a file, such as no/s1_nohash_1.wav in testing_list.txt" in notes(report)


def test_a_row_in_both_lists_is_refused(prepared):
    with pytest.raises(DataError, match="data.txt has 4 rows that two lists name, such as row 12"):
        prepared("xc", "xc-overlap")


@pytest.mark.parametrize("name", ["xc-blankrow", "xc-blankrow2"])
def test_a_row_of_nothing_is_dropped_and_counted(prepared, name):
    report = prepared("xc", name)
    assert report.counts == {"train": 9, "test": 10} and report.facts["dropped rows without features"] == 1
    assert "1 blank line of train.txt, counted as rows in its header" in notes(report)


def test_a_byte_order_mark_is_passed_over(prepared):
    report = prepared("xc", "xc-bom")
    assert report.counts == {"train": 10, "test": 10} and report.features == 6
    assert np.diff(open_prepared(report.target).train.rows.offsets).min() > 0


def test_a_text_that_is_null_is_said(prepared):
    with pytest.raises(DataError, match="null.jsonl, line 21: its text is null, not text"):
        prepared("text", "null.jsonl")
