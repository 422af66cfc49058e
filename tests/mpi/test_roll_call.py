"""Ranks that come late: one that gets on is named and waited for, and nothing of it is counted as a message."""

import re
import threading
import time
from unittest.mock import MagicMock

import pytest
from patience import patient
from small import checkpoint_state, on_root, small_run, trained

from istmpi.checkpoint.format import add_checksums
from istmpi.checkpoint.saver import Saver, prepare_folder
from istmpi.checkpoint.writers import write_file
from istmpi.comm import Communicator, HangWatch
from istmpi.comm.objects import SLOT
from istmpi.errors import DataError
from istmpi.record import SUMMARY, RunFolder
from istmpi.training.run import run_training
from istmpi.training.watch import Watch

pytestmark = pytest.mark.real


def short_limit(comm):
    """A deadline in seconds, of which ranks have half to answer."""
    return comm.broadcast_from_root(min(patient(1.0), 15.0))


def watched(comm, folder, said):
    """A roll call for ranks whose rounds take no time, and its deadline in seconds."""
    limit = short_limit(comm)
    roll_call = HangWatch(comm, limit, folder, said.append)
    comm.whereabouts.begin_round(1)
    comm.barrier()
    comm.whereabouts.begin_round(2)
    return roll_call, limit


@pytest.mark.ranks(min=2)
def test_a_rank_that_gets_on_is_named_as_slow_and_waited_for(comm, tmp_path):
    some, said = Communicator(comm.mpi.Dup()), []
    roll_call, limit = watched(some, tmp_path, said)
    before = some.traffic.bytes
    if comm.rank == 1:
        with some.whereabouts.enter("compute"):
            begun = time.monotonic()
            while time.monotonic() - begun < 2.5 * limit:
                some.whereabouts.step(7)
                time.sleep(0.1)
    gathered = some.allgather(comm.rank)
    roll_call.close()
    assert gathered == list(range(comm.size)) and some.traffic.bytes == before
    told = comm.allgather(said)
    assert len(told[0]) == 1 and not any(told[1:]), told
    assert re.match(r"waiting for rank 1 .* been busy for \d+ s, in compute, round 2, local step 7\.", told[0][0]), told


@pytest.mark.ranks(min=2)
def test_what_was_asked_before_the_end_is_taken_care_of(comm, tmp_path):
    """Rank 0 asks and comes to the end before it has all answers: MPI would have messages left."""
    some, said = Communicator(comm.mpi.Dup()), []
    roll_call, limit = watched(some, tmp_path, said)
    if comm.rank == 1:
        time.sleep(limit / 2 + 0.1)
    roll_call.close()
    assert some.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.ranks(min=2)
def test_ranks_that_fail_together_close_it_together(comm, tmp_path):
    some, error = Communicator(comm.mpi.Dup()), DataError("cannot be read")
    error.everywhere = True
    with pytest.raises(DataError), HangWatch(some, 30.0, tmp_path, print):
        raise error
    assert some.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("where", ["background", "foreground"])
def test_ranks_that_wait_for_a_disk_alone_say_so(comm, shared_tmp, monkeypatch, where):
    """No rank waits for another: a file system that all write to answers none of them."""
    some, said, hung = Communicator(comm.mpi.Dup()), [], threading.Event()
    training, _ = trained(some, checkpoint__every=1)
    on_root(comm, lambda: prepare_folder(shared_tmp))
    saver = Saver(shared_tmp, training.run.checkpoint, some)
    monkeypatch.setattr("istmpi.checkpoint.saver.write_file", lambda *_: hung.wait())
    monkeypatch.setattr("istmpi.checkpoint.saver.name_at_last", lambda *_: None)
    roll_call, limit = watched(some, shared_tmp, said)
    threading.Timer(3 * limit, hung.set).start()
    (saver.save if where == "background" else saver.save_now)(*training.collect_state())
    saver.wait()
    roll_call.close()
    saver.close()
    told = comm.allgather(said)
    assert told[0] and not any(told[1:]), told
    assert re.match(r"all ranks respond, .* for \d+ s in between rounds \(checkpoint\)\. ", told[0][0]), told


@pytest.mark.ranks(min=2)
def test_the_last_file_of_a_run_is_waited_for_under_a_deadline(comm, shared_tmp, monkeypatch):
    """The summary is the first rank's to write, when the others have nothing left to do."""
    some = Communicator(comm.mpi.Dup())
    limit = short_limit(some)
    run = small_run(output__folder=str(shared_tmp / "run"), comm__patience=limit)
    write, watch, said = RunFolder.write, Watch(), []

    def slowly(folder, name, text):
        if name == SUMMARY:
            time.sleep(1.5 * limit)
        write(folder, name, text)

    monkeypatch.setattr(RunFolder, "write", slowly)
    watch.noticed = said.append
    run_training(run, some, watch)
    told = comm.broadcast_from_root(said)
    assert len(told) == 1 and told[0].startswith("waiting for rank 0 on "), told


def test_who_writes_with_others_is_seen_to_wait_for_them(comm, shared_tmp, monkeypatch):
    """Parallel HDF5 itself waits where this h5py cannot."""
    some, seen = Communicator(comm.mpi.Dup()), []
    header, pieces = checkpoint_state(trained(some)[0])

    h5py = MagicMock()

    def opened(*_, **__):
        seen.extend(some.whereabouts.waiting.values())
        return MagicMock()

    h5py.File.side_effect = opened
    monkeypatch.setattr("istmpi.checkpoint.writers.h5py", h5py)
    monkeypatch.setattr("istmpi.checkpoint.writers._write_rows", lambda *_: None)
    before = dict(some.whereabouts.arrivals)
    write_file("mpio", shared_tmp / "file.h5", header, add_checksums(pieces), some)
    (wait,) = seen
    assert (wait.call, wait.ranks, wait.trains) == ("HDF5", some.ranks, True)
    assert wait.number == some.whereabouts.arrivals[wait.group] > before.get(wait.group, 0)
    assert not some.whereabouts.waiting


@pytest.mark.parametrize("nbytes", [0, SLOT // 2, SLOT - 8, SLOT, 100 * SLOT])
def test_objects_of_any_size_arrive(comm, nbytes):
    """In one message where they are small; ranks may have some of other sizes."""
    mine = bytes([comm.rank]) * (nbytes * (comm.rank + 1) // comm.size)
    everyone = comm.allgather(mine)
    assert everyone == [bytes([rank]) * (nbytes * (rank + 1) // comm.size) for rank in range(comm.size)]
    assert comm.broadcast_from_root(mine) == everyone[0]
    assert comm.gather_to_root(mine) == (everyone if comm.rank == 0 else None)
