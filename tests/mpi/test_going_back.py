"""Going on from an older checkpoint: what is trained next stays, and so does what lay beyond, under another name."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from patience import patient
from resuming import stored
from small import Listening, assert_same_bits, checkpoint_state, on_root, small_run

from istmpi.checkpoint.format import require_storable
from istmpi.checkpoint.saver import Saver, prepare_folder
from istmpi.config import Train
from istmpi.errors import ConfigError, DataError
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.run import run_training

pytestmark = pytest.mark.ranks(only=[2])
ROUNDS = Training.rounds


class Killed(Exception):
    """Ends a run as a kill does: nothing more is saved."""


@pytest.fixture
def trained(comm, shared_tmp, monkeypatch):
    """``trained(rounds, resume, keep, killed_after, **settings)`` trains, in one and the same folder; what was said."""
    folder = shared_tmp / "run"

    def train(rounds, resume="auto", keep=2, killed_after=None, **settings):
        settings = {"checkpoint__every": 2, "checkpoint__wait": True, "checkpoint__keep": keep} | settings
        run = small_run(train__rounds=rounds, output__folder=str(folder), method__local_steps=1, **settings)
        ear = Listening()
        with monkeypatch.context() as patched:
            if killed_after is not None:

                def rounds_until_killed(training):
                    for progress in ROUNDS(training):
                        if progress.round > killed_after:
                            raise Killed
                        yield progress

                patched.setattr(Training, "rounds", rounds_until_killed)
            try:
                run_training(run, comm, ear, resume=str(resume))
            except Killed:
                pass
        comm.barrier()
        return " ".join(comm.broadcast_from_root(ear.said))

    train.folder = folder
    train.checkpoints = folder / "checkpoints"
    return train


def names(folder: Path):
    """The rounds of the checkpoints in a folder, and of those that were set aside."""
    kept, aside = (sorted(int(path.name[6:14]) for path in folder.glob(f"round-*{end}")) for end in (".h5", ".aside-*"))
    return kept, aside


def damage(comm, paths):
    def truncate():
        for path in paths:
            path.write_bytes(path.read_bytes()[:-100])

    on_root(comm, truncate)


def test_what_is_trained_after_going_back_is_kept(comm, trained):
    trained(20, keep=10, killed_after=9)
    assert names(trained.checkpoints) == ([2, 4, 6, 8], [])
    said = trained(20, trained.checkpoints / "round-00000004.h5", killed_after=7, optimizer__lr=0.05)
    assert names(trained.checkpoints) == ([4, 6], [6, 8])
    for path in trained.checkpoints.glob("*.aside-1"):
        assert str(path) in said
    assert "resuming from" in trained(20, killed_after=9, optimizer__lr=0.05)
    assert names(trained.checkpoints) == ([6, 8], [6, 8])
    before = stored(trained.checkpoints / "round-00000008.h5.aside-1")
    trained(20, trained.checkpoints / "round-00000006.h5", killed_after=9)
    assert names(trained.checkpoints) == ([6, 8], [6, 8, 8])
    assert_same_bits(stored(trained.checkpoints / "round-00000008.h5.aside-1"), before)


@pytest.mark.parametrize("place", ["checkpoints", "another folder", "set aside"])
def test_killed_before_its_next_checkpoint_it_goes_on_from_where_it_went_back_to(comm, shared_tmp, trained, place):
    trained(20, keep=10, killed_after=9)
    start = trained.checkpoints / "round-00000004.h5"
    if place == "another folder":
        on_root(comm, lambda: start.rename(shared_tmp / "elsewhere.h5"))
        start = shared_tmp / "elsewhere.h5"
    if place == "set aside":
        trained(20, trained.checkpoints / "round-00000002.h5", killed_after=2)
        start = trained.checkpoints / "round-00000004.h5.aside-1"
    there = stored(start)
    trained(20, start, keep=10, killed_after=4)
    said = trained(20, keep=10, killed_after=4)
    assert "round-00000004.h5, after 4 of 20 rounds" in said, said
    assert_same_bits(stored(trained.checkpoints / "round-00000004.h5"), there)


def test_a_finished_network_is_set_aside_too_and_its_outcome_forgotten(comm, trained):
    trained(6, keep=10)
    network = stored(trained.folder / "network.h5")
    trained(6, trained.checkpoints / "round-00000002.h5", killed_after=3)
    assert_same_bits(stored(trained.folder / "network.h5.aside-1"), network)
    assert not (trained.folder / "summary.json").exists() and not (trained.folder / "network.h5").exists()
    trained(6)
    assert_same_bits(stored(trained.folder / "network.h5"), network)
    assert "nothing left to train" in trained(6)
    trained(8)
    assert not list(trained.folder.glob("*.aside-2")), "a run that is made longer goes on from its network"


def test_a_damaged_file_never_costs_a_valid_one(comm, trained):
    trained(20, keep=2, killed_after=5)
    damage(comm, [trained.checkpoints / "round-00000004.h5"])
    assert "Skipped" in trained(20, keep=1, killed_after=2) and names(trained.checkpoints) == ([2], [4])
    trained(20, keep=1, killed_after=5)
    assert names(trained.checkpoints) == ([4], [4])
    # One of several older files is damaged: all stay until as many are known to be valid.
    trained(20, keep=10, killed_after=9)
    damage(comm, [trained.checkpoints / "round-00000006.h5"])
    trained(20, keep=3, killed_after=11)
    assert names(trained.checkpoints)[0] == [4, 6, 8, 10]
    trained(20, keep=3, killed_after=15)
    assert names(trained.checkpoints)[0] == [10, 12, 14]


def test_with_no_valid_checkpoint_left_nothing_is_overwritten_and_with_none_the_run_begins_anew(comm, trained):
    trained(6, keep=10, killed_after=5)
    assert names(trained.checkpoints) == ([2, 4], [])
    damage(comm, list(trained.checkpoints.iterdir()))
    with pytest.raises(DataError, match="no checkpoint in it is valid") as refused:
        trained(6)
    assert refused.value.everywhere and len(RunFolder(trained.folder).metrics()) == 5
    on_root(comm, lambda: shutil.rmtree(trained.checkpoints))
    assert "resuming" not in trained(6)
    assert [line["round"] for line in RunFolder(trained.folder).metrics()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.real
def test_the_thread_for_checkpoints_lasts_and_can_be_done_without(comm, shared_tmp):
    """A system that has no threads left: their stacks find no room."""
    training = Training(small_run(train__rounds=3, checkpoint__keep=5, checkpoint__every=1), comm)
    state, settings, warnings = checkpoint_state(training), training.run.checkpoint, []
    usual = threading.stack_size()
    on_root(comm, lambda: [prepare_folder(shared_tmp / name) for name in ("early", "late")])
    early = Saver(shared_tmp / "early", settings, comm)
    threads = [thread for thread in threading.enumerate() if thread.name == "checkpoints"]
    threading.stack_size(2**46)
    try:
        with pytest.raises(RuntimeError):
            threading.Thread(target=print).start()
        late = Saver(shared_tmp / "late", settings, comm, warnings.append)
        for saver in (early, late):
            for _ in training.rounds():
                saver.save(*training.collect_state())
            saver.save(*state)
            saver.wait()
    finally:
        threading.stack_size(usual)
    assert early.background == bool(threads) and not late.background
    assert len(warnings) == early.background and all("cannot start the checkpoint thread" in text for text in warnings)
    assert names(shared_tmp / "early" / "checkpoints")[0] == [0, 1, 2, 3]
    assert names(shared_tmp / "late" / "checkpoints")[0] == [0]
    assert comm.allgather(len(threads))
    early.close()
    late.close()
    for thread in threads:
        thread.join(patient(20))
        assert not thread.is_alive()


@pytest.mark.parametrize("changed", [{"train": Train(seed=2**64)}, {"name": "\udcff"}])
def test_what_no_file_can_hold_is_found_by_writing_it_in_memory(comm, shared_tmp, changed):
    """Whatever the checks of settings let through: a run that was made past them."""
    header, pieces = checkpoint_state(Training(small_run(), comm))
    require_storable(header, pieces)
    with pytest.raises(ConfigError, match="settings cannot be saved .* 64-bit numbers"):
        require_storable(replace(header, run=replace(header.run, **changed)), pieces)
