"""What a reader decided is in the report, in the prepared file and in the checkpoint."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from istmpi.checkpoint.state import inputs_of
from istmpi.cli.commands.prepare import command
from istmpi.data.archive import Archive
from istmpi.data.dense.split import material_of
from istmpi.data.hdf5 import open_prepared
from istmpi.data.kind import Kind
from istmpi.data.prepare import KINDS, prepare
from istmpi.data.writer import Material


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source of a kind, ``made``, whose reader assumes, leaves out and records one thing each."""

    def read(archive: Archive, decoder) -> Material:
        list(archive.read(archive.names))
        decoder.notes.assume("the first line of 3 is [a] header", "--header")
        decoder.notes.leave_out("2 rows without a label")
        decoder.notes.reading["columns"] = ["a", "b"]
        x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(4) % 2
        splits = {"train": (x, y), "test": (x, y)}
        return material_of("source", "classification", splits, ("0", "1"), np.dtype(np.float32), 2)

    monkeypatch.setitem(KINDS, "made", Kind("made", read=read))
    path = tmp_path / "source.csv"
    path.write_text("")
    return path


def test_the_file_and_the_checkpoint_keep_the_conventions(source, tmp_path):
    report = prepare("made", source, tmp_path / "data.h5")
    data = open_prepared(report.target)
    assert report.reading == data.reading == {"columns": ["a", "b"]}
    assert json.loads(inputs_of(data)["input/reading"].tobytes()) == data.reading
    assert data.normalised_by(None).reshaped((1, 2)).reading == data.reading


def test_the_command_says_what_was_assumed_and_left_out(source, tmp_path):
    def run(*words: str) -> str:
        words = ["made", str(source), str(tmp_path / "data.h5"), "--force", *words]
        return CliRunner().invoke(command, words, catch_exceptions=False).stdout

    table = " ".join(run().split())
    assert "assumed the first line of 3 is [a] header (--header decides otherwise)" in table
    assert "left out 2 rows without a label" in table
    report = json.loads(run("--json"))
    assert report["assumed"] == [{"text": "the first line of 3 is [a] header", "option": "--header"}]
    assert report["left_out"] == [{"text": "2 rows without a label", "option": ""}]
    assert report["reading"] == {"columns": ["a", "b"]}


def test_a_file_without_conventions_is_as_it_was(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(10, dtype=int), y=["a", "b"] * 5)
    data = open_prepared(prepare("arrays", tmp_path / "a.npz", tmp_path / "data.h5").target)
    assert data.reading == {} and "input/reading" not in inputs_of(data)
