"""Checkpoints in parts: each rank's rows in a file of its own, on a disk that the other ranks do not see."""

import os
import shutil
from dataclasses import replace
from functools import partial

import pytest
from damage import flip
from resuming import save, stored
from small import Listening, assert_same_bits, checkpoint_state, on_root, small_run, whole

from istmpi.checkpoint.folder import set_aside
from istmpi.checkpoint.format import add_checksums
from istmpi.checkpoint.gathering import gather
from istmpi.checkpoint.parts import Copy, list_parts
from istmpi.checkpoint.per_host import commit_part
from istmpi.checkpoint.reader import open_checkpoint, open_file
from istmpi.checkpoint.search import find_newest_valid
from istmpi.checkpoint.writers import write_file
from istmpi.errors import DataError, OutputError
from istmpi.hdf5 import datasets
from istmpi.simulated import simulate
from istmpi.training.loop import Training
from istmpi.training.run import run_training

SETTINGS = {"optimizer__name": "adam", "method__optimizer_state": "carry", "model__norm": "batch"}


def save_parts(training, disk):
    """Save this rank's part on its disk, and return the folder of the round."""
    header, pieces = checkpoint_state(training)
    folder = disk / "checkpoints" / f"round-{header.round:08d}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    commit_part(folder, header, pieces, training.communicator)
    return folder


def trained(comm, rounds, **settings):
    training = Training(small_run(**SETTINGS | settings), comm)
    rounds_left = training.rounds()
    for _ in range(rounds):
        next(rounds_left)
    rounds_left.close()
    return training


def find(comm, disk):
    said = []
    start = find_newest_valid(disk, comm, said.append)
    return start, " ".join(comm.broadcast_from_root(said))


def resumed(comm, start: Copy, **settings):
    training = Training(small_run(**SETTINGS | settings), comm)
    training.resume(start)
    return training


def used(path):
    return 512 * path.stat().st_blocks


@pytest.mark.parametrize("method", ["ist", "codistillation", "sparse-loco"])
def test_a_run_goes_on_from_parts_bit_for_bit(comm, tmp_path, method):
    settings = {"method__name": method}
    expected = trained(comm, 4, **settings)
    folder = save_parts(trained(comm, 2, **settings), tmp_path)
    assert [rank for rank, _ in list_parts(folder)] == [comm.rank]
    start, said = find(comm, tmp_path)
    assert not said and start.path == folder
    training = resumed(comm, start, **settings)
    list(training.rounds())
    assert_same_bits(whole(training), whole(expected))


def spread(comm, shared_tmp, saving_ranks, **settings):
    """Let other ranks save a run in parts after 2 of 4 rounds, on as many disks; return this rank's or an empty one."""
    disks = [shared_tmp / f"disk{rank}" for rank in range(max(saving_ranks, comm.size))]

    def save_all(some):
        training = trained(some, 2, **settings)
        save_parts(training, disks[some.rank])
        save(training, shared_tmp / "whole.h5")

    def prepare():
        simulate(save_all, saving_ranks).require()
        for rank in range(comm.size, saving_ranks):
            shutil.copytree(disks[rank], disks[rank % comm.size], dirs_exist_ok=True)

    on_root(comm, prepare)
    return disks[comm.rank]


@pytest.mark.ranks(also=1)
@pytest.mark.parametrize("saving_ranks, method", [(5, "ist"), (2, "local-sgd")])
def test_other_ranks_get_the_rows_that_they_need_and_no_others(comm, shared_tmp, saving_ranks, method):
    """They go on as from one file, and a file of the parts is that file, byte for byte."""
    settings = {"method__name": method, "model__hidden": (256, 64)}
    disk = spread(comm, shared_tmp, saving_ranks, **settings)
    start, said = find(comm, disk)
    assert not said and start.path == disk / "checkpoints/round-00000002"
    whole_file = shared_tmp / "whole.h5"
    assert start.file.stat().st_size == whole_file.stat().st_size
    if comm.size == 3:
        assert used(start.file) < 0.6 * used(whole_file)
    expected, training = resumed(comm, Copy(whole_file, whole_file), **settings), resumed(comm, start, **settings)
    for each in (expected, training):
        list(each.rounds())
    assert_same_bits(whole(training), whole(expected))
    start.discard()
    assert not start.file.exists()

    def gather_all():
        gathered = shared_tmp / "gathered.h5"
        assert gather([shared_tmp / f"disk{rank}" for rank in range(saving_ranks)], gathered) == 2
        assert_same_datasets(gathered, whole_file)

    on_root(comm, gather_all)
    with pytest.raises(DataError, match="no parts .* Their folder must keep its name, such as round-00000010."):
        gather([shared_tmp], shared_tmp / "none.h5")


def assert_same_datasets(one, other):
    """Two files have equal bytes but for the seconds of their headers."""
    with open_checkpoint(one) as here, open_checkpoint(other) as there:
        here.require_valid()
        assert replace(here.header, seconds=0.0) == replace(there.header, seconds=0.0)
        assert_same_bits(*({name: file.array(name) for name in datasets(file.file)} for file in (here, there)))


@pytest.mark.ranks(only=[3])
def test_parts_are_looked_for_on_every_host_and_a_missing_one_is_named(comm, shared_tmp):
    disk = spread(comm, shared_tmp, 3)
    part = "checkpoints/round-00000002/rank-1.h5"
    on_root(comm, lambda: (shared_tmp / "disk1" / part).rename(shared_tmp / "disk2" / part))
    start, said = find(comm, disk)
    assert not said and resumed(comm, start).rounds_done == 2
    start.discard()
    on_root(comm, (shared_tmp / "disk2" / part).unlink)
    with pytest.raises(DataError, match="round-00000002: no host has a valid rank-1.h5.") as raised:
        find(comm, disk)
    assert raised.value.everywhere and "Bring it to this folder of any host." in str(raised.value)
    assert not list(disk.rglob("*.tmp"))


@pytest.mark.ranks(only=[3])
def test_of_a_damaged_part_another_copy_is_taken_and_without_one_an_older_round(comm, shared_tmp):
    disk = spread(comm, shared_tmp, 3)
    save_parts(trained(comm, 3), disk)
    damaged = "checkpoints/round-00000003/rank-1.h5"
    on_root(comm, lambda: shutil.copy(shared_tmp / "disk1" / damaged, shared_tmp / "disk2" / damaged))
    for name, round in (("disk1", 3), ("disk2", 2)):
        # The first of 13 rows that rank 1 has.
        on_root(comm, partial(flip, shared_tmp / name / damaged, "model/hidden1.linear.weight", 4 * 64 * 8))
        start, said = find(comm, disk)
        assert f"{name}/{damaged} is damaged: model/hidden1.linear.weight, rows 4 to 7" in said
        assert resumed(comm, start).rounds_done == round
        start.discard()


@pytest.mark.ranks(only=[3])
def test_a_round_that_not_all_ranks_have_named_is_not_taken(comm, shared_tmp):
    """As after a kill between the names of two parts."""
    disk = spread(comm, shared_tmp, 3)
    folder = save_parts(trained(comm, 3), disk)
    if comm.rank == 2:
        shutil.rmtree(folder)
    start, said = find(comm, disk)
    assert "round-00000003: no host has a valid rank-2.h5." in said
    assert resumed(comm, start).rounds_done == 2
    if comm.rank < 2:
        assert set_aside(disk, start) == [folder.with_name("round-00000003.aside-1")]


@pytest.mark.ranks(min=2)
def test_a_part_that_one_rank_cannot_write_is_an_error_on_all_and_leaves_the_older_round(comm, shared_tmp, monkeypatch):
    disk = spread(comm, shared_tmp, comm.size)

    def full(*_):
        raise OSError(28, "No space left on device")

    training = trained(comm, 3)
    with monkeypatch.context() as patched:
        if comm.rank == comm.size - 1:
            patched.setattr(os, "pwrite", full)
        with pytest.raises(OutputError, match="No space left on device"):
            save_parts(training, disk)
    comm.barrier()
    assert [path.name for path in (disk / "checkpoints").iterdir()] == ["round-00000002"]
    assert resumed(comm, find(comm, disk)[0]).rounds_done == 2


@pytest.mark.ranks(min=2)
def test_a_whole_file_on_one_disk_is_enough(comm, tmp_path):
    training = trained(comm, 3)
    (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "network.h5"
    write_file("root", path, *add_all_checksums(training), comm)
    assert path.exists() == (comm.rank == 0)
    start, said = find(comm, tmp_path)
    assert not said and start.path == path
    assert_same_bits(whole(resumed(comm, start)), whole(training))


def add_all_checksums(training):
    header, pieces = checkpoint_state(training)
    return header, add_checksums(pieces)


@pytest.mark.ranks(only=[2])
def test_a_part_is_no_checkpoint_for_others(comm, shared_tmp):
    path = spread(comm, shared_tmp, 2) / f"checkpoints/round-00000002/rank-{comm.rank}.h5"
    with pytest.raises(DataError, match="one rank alone. .*: istmpi checkpoint gather"), open_checkpoint(path):
        pass
    with open_file(path) as part:
        assert list(part.errors()) == [] and list(part.part_errors(1 - comm.rank))


def test_a_run_in_parts_keeps_the_newest_and_goes_on(comm, shared_tmp):
    """All on one disk, which ``checkpoint.writer = "parts"`` allows: the same names, and the same network."""
    folder = shared_tmp / "run"
    settings = {"checkpoint__every": 1, "checkpoint__keep": 1, "checkpoint__writer": "parts"} | SETTINGS
    run = small_run(output__folder=str(folder), **settings)
    run_training(run.override({"train.rounds": 3}), comm)
    rounds = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert rounds == ["round-00000002"]
    assert sorted(rank for rank, _ in list_parts(folder / "checkpoints" / rounds[-1])) == [*range(comm.size)]
    comm.barrier()
    on_root(comm, (folder / "network.h5").unlink)
    on_root(comm, (folder / "checkpoints/round-00000000").mkdir)  # as a kill leaves it
    on_root(comm, (folder / ".seen.0123.tmp").touch)
    ear = Listening()
    run_training(run, comm, ear, resume="auto")
    assert comm.rank or any(f"resuming from {folder}/checkpoints/{rounds[-1]}," in line for line in ear.said)
    assert_same_bits(stored(folder / "network.h5"), whole(trained(comm, 4)))
    assert not list(folder.rglob(".*")) and not list(folder.rglob("*aside*"))
    assert not (folder / "checkpoints/round-00000000").exists()


def test_a_part_takes_few_calls_in_sequence(comm, tmp_path):
    """Rank 0's header, all checksums, and two that say that all parts and the names are there."""
    header, pieces = checkpoint_state(trained(comm, 1))
    before = sum(comm.whereabouts.arrivals.values())
    commit_part(tmp_path / "round-00000001", header, pieces, comm)
    assert sum(comm.whereabouts.arrivals.values()) - before <= 5
