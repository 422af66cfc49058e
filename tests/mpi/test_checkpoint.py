"""A checkpoint: written by all ranks, read by anyone, the same whoever writes it."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from resuming import stored
from small import assert_same_bits, checkpoint_state, on_root, small_run, trained, whole

from istmpi.checkpoint.format import Piece
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import Saver, commit, prepare_folder
from istmpi.cluster.saving import time_file
from istmpi.config import Run
from istmpi.errors import DivergedError, OutputError
from istmpi.hdf5 import LOCKING
from istmpi.simulated import simulate
from istmpi.training.loop import Training
from istmpi.training.run import run_training

NO_MPI = pytest.mark.skipif(not h5py.get_config().mpi, reason="this h5py was built without MPI")
WRITING = ["direct", "root", pytest.param("mpio", marks=NO_MPI)]
UNEVEN = {"model__hidden": (13, 11), "optimizer__momentum": 0.9, "method__optimizer_state": "carry"}


def save(training, path, writer="direct", calibrated=False):
    commit(path, *checkpoint_state(training, calibrated), writer, training.communicator)


@pytest.mark.both
@pytest.mark.parametrize("writer", WRITING)
def test_the_file_has_the_whole_network_of_all_ranks(comm, shared_tmp, monkeypatch, writer):
    monkeypatch.setattr("istmpi.checkpoint.writers._AT_ONCE", 100)
    training, _ = trained(comm, **UNEVEN)
    path = shared_tmp / "network.h5"
    save(training, path, writer, calibrated=True)
    expected = whole(training)
    with h5py.File(path, locking=LOCKING) as file:
        assert file.attrs["format"].decode() == "istmpi-checkpoint" and file.attrs["version"] == 2
        assert file.attrs["ranks"] == comm.size and file.attrs["round"] == training.run.train.rounds
        assert file["model/hidden2.linear.weight"].attrs["axes"].decode() == "hidden2 hidden1"
        for name, values in expected.items():
            stored = file[f"optim/{name}" if "/" in name else f"model/{name}"]
            np.testing.assert_array_equal(stored[...], values, strict=True)
        assert Run.from_tree(json.loads(file.attrs["run"]), "file") == training.run
        assert json.loads(file.attrs["versions"]).keys() >= {"istmpi", "torch", "numpy", "HDF5", "MPI"}
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.errors()) == [] and checkpoint.tokenizer is None
        assert (checkpoint.header.temperature != 1) and checkpoint_state(training)[0].temperature == 1, (
            "fitted to predict alone"
        )
    assert sorted(entry.name for entry in shared_tmp.glob("*network*")) == ["network.h5"]


@pytest.mark.parametrize("writer", WRITING)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_every_type_arrives_bit_for_bit_and_reads_as_a_number(comm, shared_tmp, writer, dtype):
    values = torch.arange(-3, 4).to(getattr(torch, dtype)) * 3
    rows = [len(values) * rank // comm.size for rank in range(comm.size + 1)]
    first, last = rows[comm.rank], rows[comm.rank + 1]
    mine = values[first:last].clone().view(torch.uint8).numpy()
    piece = Piece("model/values", (len(values),), dtype, mine, first, "some", comm.size, comm.rank)
    path = shared_tmp / "values.h5"
    commit(path, checkpoint_state(Training(small_run(), comm))[0], [piece], writer, comm)
    with h5py.File(path, locking=LOCKING) as file:
        stored = file["model/values"]
        assert stored.dtype == {"bfloat16": np.float32}.get(dtype, np.dtype(dtype if dtype != "bfloat16" else "f4"))
        np.testing.assert_array_equal(stored[...].astype(np.float64), values.double().numpy())
    if comm.rank == 0:
        dumped = subprocess.run(["h5dump", "-d", "/model/values", path], capture_output=True, text=True, check=True)
        assert "-9, -6, -3, 0, 3, 6, 9" in dumped.stdout


@pytest.mark.both
@pytest.mark.parametrize("writer", WRITING)
def test_a_file_that_cannot_be_written_is_an_error_on_every_rank(comm, shared_tmp, writer):
    training, _ = trained(comm)
    with pytest.raises(OutputError, match="network.h5: cannot be written") as raised:
        save(training, shared_tmp / "nowhere" / "network.h5", writer)
    assert raised.value.everywhere


@pytest.mark.both
@pytest.mark.parametrize("writer", [*WRITING, "parts"])
@pytest.mark.parametrize("kind, said", [(DivergedError, "is nan; not saved"), (OutputError, "taken by another run")])
def test_if_one_rank_must_not_save_none_writes_a_byte_and_all_say_why(comm, shared_tmp, writer, kind, said):
    training, _ = trained(comm)
    on_root(comm, lambda: prepare_folder(shared_tmp))
    saver = Saver(shared_tmp, replace(training.run.checkpoint, writer=writer), comm)
    saver.save_now(*training.collect_state())
    comm.barrier()
    before = {path: path.read_bytes() for path in shared_tmp.rglob("*.*")}
    is_last = comm.rank == comm.size - 1

    def fail():
        if is_last and kind is OutputError:
            raise OutputError(said)

    if is_last and kind is DivergedError:
        training.store.tensors["hidden1.linear.weight"][0, 0] = np.nan
    with pytest.raises(kind, match=said) as raised:
        saver.save_now(*training.collect_state(calibrated=True, may_save=fail))
    assert raised.value.everywhere and len({*comm.allgather(str(raised.value))}) == 1
    assert {path: path.read_bytes() for path in shared_tmp.rglob("*.*")} == before
    saver.close()


def test_the_file_of_a_save_is_timed_on_the_disk_of_a_folder_that_is_not_there_yet(comm, shared_tmp):
    training = Training(small_run(), comm)
    (seconds,) = {*comm.allgather(time_file(shared_tmp / "runs" / "new", training, comm))}
    assert seconds > 0 and not list(shared_tmp.iterdir())
    assert time_file(Path("/proc/none"), training, comm) == 0, "nothing can be written there"


@pytest.mark.both
def test_a_write_that_fails_on_one_rank_leaves_the_older_file_alone(comm, shared_tmp, monkeypatch):
    training, _ = trained(comm)
    path = shared_tmp / "network.h5"
    save(training, path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(OutputError, match="No space left on device"):
        save(training, path)
    comm.barrier()
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in shared_tmp.glob("*network*")) == ["network.h5"]


@pytest.mark.both
@pytest.mark.parametrize("writer", WRITING)
def test_ranks_that_make_communicators_and_save_meanwhile_do_not_wait_for_each_other(comm, shared_tmp, writer):
    settings = {"method__name": "dynamic-averaging", "method__threshold": 0.002, "train__rounds": 6}
    settings |= {"checkpoint__every": 1, "checkpoint__writer": writer, "output__folder": str(shared_tmp / "run")}
    assert run_training(small_run(**settings), comm).last.round == 6


@pytest.mark.ranks(also=1)
@pytest.mark.parametrize("ranks", [2, 5])
def test_what_some_ranks_saved_others_can_load_and_save_again(comm, shared_tmp, ranks):
    """Saved by ``ranks`` simulated ranks, loaded by all of these, saved again: the same tensors."""

    def save_by(some):
        training, _ = trained(some, **UNEVEN)
        save(training, shared_tmp / "others.h5")
        return whole(training)

    expected = simulate(save_by, ranks).require()[0] if comm.rank == 0 else None
    expected = comm.broadcast_from_root(expected)
    loaded = Training(small_run(**UNEVEN), comm)
    loaded.resume(shared_tmp / "others.h5")
    assert_same_bits(whole(loaded), expected)
    save(loaded, shared_tmp / "again.h5")
    with open_checkpoint(shared_tmp / "again.h5") as checkpoint:
        assert checkpoint.header.ranks == comm.size
    assert_same_bits(stored(shared_tmp / "again.h5"), expected)
