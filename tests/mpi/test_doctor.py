"""The doctor's checks that need several ranks."""

import pytest

from istmpi.comm import THREAD_LEVELS, thread_level
from istmpi.doctor import mpi, storage

pytestmark = pytest.mark.real


def states(findings):
    return {finding.name: finding.state for finding in findings}


def test_a_healthy_job(comm, shared_tmp):
    findings = [*mpi.check_library(comm), *storage.check_folder(comm, shared_tmp)]
    assert states(findings) == {
        "MPI": "green",
        "threads": "green" if thread_level() == THREAD_LEVELS[-1] else "yellow",
        "folder": "green",
    }
    comm.barrier()
    assert not list(shared_tmp.iterdir())


@pytest.mark.ranks(min=2)
def test_a_folder_of_each_host_is_told_from_a_shared_one(comm, shared_tmp, tmp_path):
    """The last rank's folder is another one, as /tmp is on another host."""
    folder = shared_tmp
    if comm.rank == comm.size - 1:
        folder = tmp_path / "other"
        folder.mkdir()
    (found,) = storage.check_folder(comm, folder)
    assert found.state == "yellow"
    assert f"is not shared: rank {comm.size - 1} on " in found.fact


def test_a_folder_without_room_is_red(comm, shared_tmp, monkeypatch):
    def full(path, offset, values):
        raise OSError(28, "No space left on device")

    if comm.rank == 0:
        monkeypatch.setattr(storage, "_write", full)
    (found,) = storage.check_folder(comm, shared_tmp)
    assert found.state == "red" and "rank 0 cannot write (No space left on device)" in found.fact
