"""The saved network: written by all ranks, read by anyone."""

import h5py
import numpy as np
import pytest
import torch
from small import trained, whole

from istmpi import checkpoint
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.errors import OutputError

UNEVEN = {"model__hidden": (13, 11), "optimizer__momentum": 0.9, "method__optimizer_state": "carry"}


def test_the_file_has_the_whole_network_of_all_ranks(comm, shared_tmp, monkeypatch):
    monkeypatch.setattr("istmpi.comm._WRITE_BYTES", 100)
    training, _ = trained(comm, **UNEVEN)
    path = shared_tmp / "network.h5"
    training.save(path)
    expected = whole(training)
    with h5py.File(path) as file:
        assert file.attrs["format"] == "istmpi-checkpoint" and file.attrs["version"] == 1
        assert file.attrs["ranks"] == comm.size and file.attrs["round"] == training.run.train.rounds
        assert file["model/hidden2.linear.weight"].attrs["axes"] == "hidden2 hidden1"
        for name, values in expected.items():
            stored = file[f"optim/{name}" if "/" in name else f"model/{name}"]
            np.testing.assert_array_equal(stored[...], values, strict=True)
        (shared_tmp / f"run-{comm.rank}.toml").write_text(file.attrs["run"])
    assert Run.load(str(shared_tmp / f"run-{comm.rank}.toml")) == training.run
    assert sorted(entry.name for entry in shared_tmp.glob("*network*")) == ["network.h5"]


def test_plain_numpy_predicts_from_the_file_what_the_ranks_predict(comm, shared_tmp):
    training, _ = trained(comm, model__hidden=(13, 11), model__norm="batch")
    path = shared_tmp / "network.h5"
    training.save(path)
    x, _ = training.dataset.test.rows(np.arange(9))
    x = x.astype(training.run.model.dtype)
    outputs = training.evaluator.network(torch.from_numpy(x)).numpy()
    with h5py.File(path) as file:
        for stage in training.architecture.stages:
            x = x @ file[f"model/{stage}.linear.weight"][...].T
            if f"norm/{stage}" in file:
                x = (x - file[f"norm/{stage}/mean"][...]) / file[f"norm/{stage}/std"][...]
            if f"model/{stage}.norm.weight" in file:
                x = x * file[f"model/{stage}.norm.weight"][...] + file[f"model/{stage}.norm.bias"][...]
            if stage != training.architecture.stages[-1]:
                x = np.maximum(x, 0)
    np.testing.assert_allclose(outputs, x, rtol=1e-5, atol=1e-6)


def test_a_file_that_cannot_be_written_is_an_error_on_every_rank(comm, shared_tmp):
    training, _ = trained(comm)
    with pytest.raises(OutputError, match="network.h5: cannot be written") as raised:
        training.save(shared_tmp / "nowhere" / "network.h5")
    assert raised.value.everywhere


def test_a_failed_write_leaves_the_older_file_alone(comm, shared_tmp, monkeypatch):
    training, _ = trained(comm)
    path = shared_tmp / "network.h5"
    training.save(path)
    before = path.read_bytes()

    def full(self, path, parts):
        if self.rank == self.size - 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Communicator, "write", full)
    with pytest.raises(OutputError, match="No space left on device"):
        checkpoint.save(path, training.run, 1, training.store, {}, comm)
    comm.barrier()
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in shared_tmp.glob("*network*")) == ["network.h5"]
