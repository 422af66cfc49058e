"""Whatever happens to a run, its newest valid checkpoint is at most an interval old, and the run goes on from it."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from disks import small_disk
from following import lines, wait_for_rounds
from patience import patient

KILLS = 4
RUN = ["train", "--hidden", "256,256", "--local-steps", "2", "--checkpoint-every", "2"]
RUN += ["--set", "evaluate.every=1000000", "--lr", "0.001", "--set", "method.optimizer_state=carry"]
RUN += ["--set", "optimizer.momentum=0.5", "--resume", "auto"]
IN_TURNS = [["--set", "checkpoint.writer=direct"], ["--set", "checkpoint.writer=direct", "--sync-checkpoints"]]
if h5py.get_config().mpi:
    IN_TURNS += [["--set", "checkpoint.writer=mpio"], ["--set", "checkpoint.writer=mpio", "--sync-checkpoints"]]


def model(path):
    with h5py.File(path) as file:
        return {name: file["model"][name][...] for name in file["model"]}


@pytest.mark.timeout(1500)
def test_kills_lose_an_interval_each_and_change_nothing(start, mpirun, tmp_path):
    """One rank or all, at random moments; the run that went through them ends as an uninterrupted one."""
    chance = random.Random(2)  # both, one, the other, one
    folder = tmp_path / "killed"
    allowed = 0
    for number in range(KILLS):
        how = IN_TURNS[number % len(IN_TURNS)]
        before = lines(folder)
        job = start(2, "istmpi", *RUN, "--rounds", 10**6, *how, "--out", folder)
        wait_for_rounds(folder, allowed + 5, job, timeout=120, unlike=before)
        time.sleep(chance.random() * 0.2)
        one, other = job.ranks
        for rank in chance.choice([[one, other], [one], [other]]):
            os.kill(rank, signal.SIGKILL)
        result = job.end(30)
        assert result.returncode not in (0, 75)
        assert "Skipped" not in result.stdout + result.stderr
        # The one that was being written when the ranks were killed may be lost, and the rounds since it was begun.
        assert len(lines(folder)) > allowed
        allowed = len(lines(folder)) - (2 if "--sync-checkpoints" in how else 4)
        newest = [path for path in sorted((folder / "checkpoints").glob("round-*.h5")) if path.is_file()]
        assert int(newest[-1].stem.split("-")[1]) >= allowed, (newest, allowed)
    rounds = len(lines(folder)) + 10
    last = mpirun(2, "istmpi", *RUN, "--rounds", rounds, "--out", folder, timeout=300)
    assert last.returncode == 0 and "resuming from" in last.stdout
    assert not list(folder.rglob("*.tmp")) and len(list((folder / "checkpoints").iterdir())) == 2
    assert [line["round"] for line in lines(folder)] == list(range(1, rounds + 1))
    alone = [*RUN, "--rounds", rounds, "--checkpoint-every", "0", "--out", tmp_path / "peace"]
    peace = mpirun(2, "istmpi", *alone, timeout=600)
    assert peace.returncode == 0, peace.stderr
    ours, theirs = model(folder / "network.h5"), model(tmp_path / "peace" / "network.h5")
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name])


DAMAGES = {
    "a flipped byte": (lambda path: flip(path), "hidden1.linear.weight, rows .* the checksum differs"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size // 2), "truncated"),
    "emptied": (lambda path: os.truncate(path, 0), "not an HDF5 file"),
    "a missing dataset": (lambda path: remove(path, "model/hidden1.linear.weight"), "no dataset model/hidden1.linear"),
    "an odd attribute": (lambda path: set_root(path, "round", float("inf")), "its attribute round: Expected `int`"),
    "a future format": (
        lambda path: set_root(path, "version", 99),
        "format version 99; this istmpi reads versions 1 and 2",
    ),
}


def flip(path):
    with h5py.File(path) as file:
        at = file["model/hidden1.linear.weight"].id.get_offset() + 1001
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def remove(path, name):
    with h5py.File(path, "r+") as file:
        del file[name]


def set_root(path, name, value):
    with h5py.File(path, "r+") as file:
        file.attrs[name] = value


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run's folder with checkpoints of rounds 2 and 4, and no network yet."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    command = [
        Path(sys.executable).with_name("istmpi"),
        "train",
        "--rounds",
        "6",
        "--checkpoint-every",
        "2",
        "--out",
        folder,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=patient(60))
    (folder / "network.h5").unlink()
    return folder


def test_damaged_checkpoints_are_passed_over_by_name(mpirun, tmp_path, saved):
    """One of each damage, each newer than the valid one: the first is refused by name, then all are passed over."""
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", saved, folder], check=True)
    checkpoints = folder / "checkpoints"
    valid, newest = checkpoints / "round-00000002.h5", checkpoints / "round-00000004.h5"
    damaged = {damage: checkpoints / f"round-{number:08d}.h5" for number, damage in enumerate(DAMAGES, 4)}
    for path in list(damaged.values())[1:]:
        shutil.copy(newest, path)
    for damage, path in damaged.items():
        DAMAGES[damage][0](path)
    refused = mpirun(2, "istmpi", "train", "--resume", newest, "--rounds", "6")
    assert refused.returncode == 2
    (said,) = refused.errors
    assert str(newest) in said and re.search(next(iter(DAMAGES.values()))[1], said)
    went_on = mpirun(2, "istmpi", "train", "--resume", "auto", "--rounds", "6", "--out", folder)
    assert went_on.returncode == 0, went_on.stderr
    for damage, path in damaged.items():
        assert re.search(f"{path}.*{DAMAGES[damage][1]}.*Skipped", went_on.stdout), damage
    assert f"resuming from {valid}, after 2 of 6 rounds" in went_on.stdout
    assert [line["round"] for line in lines(folder)] == [1, 2, 3, 4, 5, 6]


def test_with_no_valid_checkpoint_left_nothing_is_overwritten(mpirun, tmp_path, saved):
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", saved, folder], check=True)
    for path in (folder / "checkpoints").iterdir():
        flip(path)
    result = mpirun(2, "istmpi", "train", "--resume", "auto", "--rounds", "6", "--out", folder)
    assert result.returncode == 2 and result.stderr.count("no checkpoint in it is valid") == 1
    assert len(lines(folder)) == 6


def test_a_run_killed_before_its_first_checkpoint_starts_anew(mpirun, tmp_path, saved):
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", saved, folder], check=True)
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    result = mpirun(2, "istmpi", "train", "--resume", "auto", "--rounds", "3", "--out", folder)
    assert result.returncode == 0 and "going on" not in result.stdout
    assert [line["round"] for line in lines(folder)] == [1, 2, 3]


@pytest.mark.parametrize("how", IN_TURNS, ids=" ".join)
def test_a_full_disk_loses_nothing(mpirun, tmp_path, how):
    """Room for one checkpoint of 1.2 MB and not for a second: the run goes on, then gives up, with the first intact."""
    with small_disk(tmp_path / "disk", "2m") as disk:
        command = ["train", "--checkpoint-every", "2", "--evaluate-every", "100", *how, "--resume", "auto"]
        full = mpirun(2, "istmpi", *command, "--rounds", "20", "--out", disk / "run")
        assert full.returncode == 74, full
        why = "cannot be written (No space left on device)" if "direct" in " ".join(how) else "MB are free there"
        assert why in full.stderr and why in full.stdout
        said = full.stdout.count("The run continues; older checkpoints are untouched.")
        assert said == 2 and "Failures in a row: 3." in full.stderr, full.stdout
        assert [path.name for path in (disk / "run" / "checkpoints").iterdir()] == ["round-00000002.h5"]
        subprocess.run(["mount", "-o", "remount,size=9m", disk], check=True)
        rest = mpirun(1, "istmpi", *command, "--rounds", "20", "--out", disk / "run")
        assert rest.returncode == 0 and "after 2 of 20 rounds" in rest.stdout, rest.stderr
        names = [path.name for path in sorted(Path(disk / "run" / "checkpoints").iterdir())]
        assert names == ["round-00000016.h5", "round-00000018.h5"]
