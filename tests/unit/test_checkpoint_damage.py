"""Whatever is wrong with a checkpoint is said in one line, by name, and never by a hang."""

import os
import random
import subprocess
import sys

import h5py
import numpy as np
import pytest

from istmpi.checkpoint.format import CREATION, datasets
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.errors import DataError

FLIPS = 200


def contents(path):
    """Everything that a checkpoint says, every byte checked; DataError where that fails."""
    with open_checkpoint(path) as checkpoint:
        checkpoint.require_valid()
        values = {name: (dataset[...].tobytes(), dataset.dtype) for name, dataset in datasets(checkpoint.file).items()}
        return checkpoint.header, values, checkpoint.classes


@pytest.mark.parametrize("name", ["batch", "stopped"])
def test_a_flipped_byte_is_refused_or_was_padding(checkpoints, tmp_path, name):
    """Half of the bytes are flipped where no parameter lies: HDF5's own structures are the harder part."""
    content = (checkpoints / f"{name}.h5").read_bytes()
    expected = contents(checkpoints / f"{name}.h5")
    with h5py.File(checkpoints / f"{name}.h5") as file:
        spans = [range(d.id.get_offset(), d.id.get_offset() + d.nbytes) for d in datasets(file).values()]
    outside = [at for at in range(len(content)) if not any(at in span for span in spans)]
    generator = random.Random(7)
    path = tmp_path / "flipped.h5"
    refused = []
    for number in range(FLIPS):
        at = generator.choice(outside) if number % 2 else generator.randrange(len(content))
        damaged = bytearray(content)
        damaged[at] ^= generator.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            assert contents(path) == expected, f"byte {at} was {content[at]:#x}, is {damaged[at]:#x}"
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > FLIPS / 2
    assert all(message.startswith(f"{path}: ") and "\n" not in message for message in refused)


def test_a_truncated_file_is_refused_at_any_length(checkpoints, tmp_path):
    content = (checkpoints / "batch.h5").read_bytes()
    for length in [*range(0, 200, 7), *range(200, len(content), 997), len(content) - 1]:
        path = tmp_path / "short.h5"
        path.write_bytes(content[:length])
        with pytest.raises(DataError) as refused:
            contents(path)
        assert str(refused.value).startswith(f"{path}: ") and "\n" not in str(refused.value)


@pytest.fixture
def edited(checkpoints, tmp_path):
    """``edited(change, name)`` is the path of a copy of a checkpoint on which ``change(file)`` was done."""

    def edit(change, name="batch"):
        path = tmp_path / "edited.h5"
        path.write_bytes((checkpoints / f"{name}.h5").read_bytes())
        with h5py.File(path, "r+", **CREATION) as file:
            change(file)
        return path

    return edit


MOMENTUM = "optim/hidden1.linear.weight/momentum_buffer"


@pytest.mark.parametrize(
    "name, path",
    [
        ("batch", "model/hidden2.linear.weight"),
        ("batch", MOMENTUM),
        ("batch", "norm/labels/std"),
        ("batch", "input/mean"),
        ("batch", "input/classes"),
        ("stopped", "partial/losses"),
    ],
)
@pytest.mark.parametrize("thorough", [False, True], ids=["dataset", "with its checksums"])
def test_a_missing_dataset_is_named(edited, istmpi_command, name, path, thorough):
    def remove(file):
        del file[path]
        if thorough:
            del file[f"checksums/{path}"]

    code, out, err = istmpi_command("checkpoint", "verify", edited(remove, name))
    assert code == 2 and path in out
    assert len(err.splitlines()) == 1


def test_missing_checksums_are_named(edited):
    def remove(file):
        del file["checksums/model/hidden1.linear.weight"]

    with pytest.raises(DataError, match=r"model/hidden1.linear.weight has no checksums"):
        contents(edited(remove))


def test_a_group_that_is_gone_is_named(edited):
    def remove(file):
        del file["norm"]

    with pytest.raises(DataError, match="norm/hidden1/mean is missing"):
        contents(edited(remove))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda file: file.attrs.modify("version", 2), "format version 2; this istmpi reads version 1"),
        (lambda file: file.attrs.__delitem__("run"), "it has no attribute run"),
        (lambda file: file.attrs.__setitem__("format", "other"), "not a checkpoint of istmpi"),
        (lambda file: file.attrs.__setitem__("run", b"{}]"), "damaged"),
        (lambda file: file.attrs.__setitem__("run", b'{"modell": {}}'), "its run cannot be read"),
        (lambda file: file["model/labels.linear.weight"].attrs.modify("axes", b"labels hidden1"), "its run has"),
        (lambda file: file["model/labels.linear.weight"].attrs.modify("axes", b"labels (hidden2"), "not closed"),
        (lambda file: replace(file, "norm/hidden1/std", np.ones(3, np.float32)), r"norm/hidden1/std is \(3,\)"),
        (lambda file: replace(file, "model/labels.linear.weight", np.ones((3, 11), np.float32)), r"its run has \(10,"),
        (lambda file: replace(file, MOMENTUM, None), "momentum_buffer"),
    ],
)
def test_another_structure_is_refused(edited, istmpi_command, change, message):
    path = edited(change)
    with pytest.raises(DataError, match=message) as refused:
        contents(path)
    assert "\n" not in str(refused.value)
    code, out, err = istmpi_command("checkpoint", "verify", path)
    assert code == 2 and str(path) in out and len(err.splitlines()) == 1


def replace(file, path, values):
    """Another dataset in the place of one, or a group."""
    del file[path]
    if values is None:
        file.create_group(path)
    else:
        file[path] = values


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path: path.write_text("name,value\n1,2\n"), "not an HDF5 file"),
        (lambda path: path.write_bytes(b""), "not an HDF5 file"),
        (lambda path: path.mkdir(), "it is a folder"),
        (write_hdf5, "not a checkpoint of istmpi"),
        (lambda path: None, "there is no such file"),
        (lambda path: path.symlink_to(path), "no such file"),
        (lambda path: os.mkfifo(path), "no such file"),
    ],
    ids=["text", "empty", "folder", "other HDF5", "nothing", "loop", "pipe"],
)
@pytest.mark.parametrize(
    "words", ["checkpoint show {}", "checkpoint diff {} {}", "predict {} digits", "export {} --to npz"]
)
def test_what_is_no_checkpoint_is_refused_in_one_line(istmpi_command, tmp_path, make, message, words):
    path = tmp_path / "file.h5"
    make(path)
    code, _, err = istmpi_command(*(path if word == "{}" else word for word in words.split()))
    assert code == 2
    assert message in err and str(path) in err and len(err.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(checkpoints, tmp_path):
    path = tmp_path / "secret.h5"
    path.write_bytes((checkpoints / "batch.h5").read_bytes())
    path.chmod(0)
    with pytest.raises(DataError, match="Permission denied"):
        contents(path)


def test_reading_needs_h5py_alone(checkpoints):
    """The recipe of docs/checkpoint-format.md, in a process that cannot import istmpi, mpi4py or torch."""
    program = """
import sys, json, zlib
for name in ("istmpi", "mpi4py", "torch"):
    sys.modules[name] = None
import h5py, numpy as np

with h5py.File(sys.argv[1], "r") as file:
    run = json.loads(file.attrs["run"])
    assert file.attrs["format"].decode() == "istmpi-checkpoint" and file.attrs["version"] == 1
    weight = file["model/hidden2.linear.weight"]
    assert weight.shape == (11, 13) and weight.attrs["axes"].decode() == "hidden2 hidden1"
    assert run["model"]["hidden"] == [13, 11]
    checked = []

    def check(path, dataset):
        if isinstance(dataset, h5py.Dataset) and not path.startswith("checksums/"):
            expected, rows = file["checksums/" + path][...], len(dataset)
            for block, crc in enumerate(expected):
                first, last = rows * block // len(expected), rows * (block + 1) // len(expected)
                assert zlib.crc32(dataset[first:last].tobytes()) == crc, path
            checked.append(path)

    file.visititems(check)
    print(len(checked))
"""
    command = [sys.executable, "-c", program, checkpoints / "batch.h5"]
    result = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == 7 + 7 + 6 + 3
