"""Whatever happens to a run, its newest valid checkpoint is at most an interval old, and the run goes on from it."""

import os
import random
import signal
import time
from pathlib import Path

import h5py
import pytest
from disks import small_disk
from following import lines, wait_for_rounds, weights

KILLS = [0, 1], [1]
"""The ranks that are killed, one time after another."""
RUN = ["train", "--hidden", "256,256", "--local-steps", "2", "--checkpoint-every", "2"]
RUN += ["--set", "evaluate.every=1000000", "--lr", "0.001", "--set", "method.optimizer_state=carry"]
RUN += ["--set", "optimizer.momentum=0.5", "--resume", "auto"]
WRITERS = ["direct", "mpio"][: 1 + h5py.get_config().mpi]
IN_TURNS = [["--set", f"checkpoint.writer={by}", *more] for by in WRITERS for more in ([], ["--sync-checkpoints"])]


@pytest.mark.timeout(1500)
def test_kills_lose_an_interval_each_and_change_nothing(start, series, tmp_path):
    """One rank or all, at random moments; the run that went through them ends as an uninterrupted one."""
    chance = random.Random(2)
    folder = tmp_path / "killed"
    allowed = 0
    for number, killed in enumerate(KILLS):
        how = IN_TURNS[number % len(IN_TURNS)]
        before = lines(folder)
        job = start(2, "istmpi", *RUN, "--rounds", 10**6, *how, "--out", folder)
        wait_for_rounds(folder, allowed + 5, job, timeout=120, unlike=before)
        time.sleep(chance.random() * 0.2)
        ranks = job.ranks
        for rank in killed:
            os.kill(ranks[rank], signal.SIGKILL)
        result = job.end(30)
        assert result.returncode not in (0, 75) and "Skipped" not in result.stdout + result.stderr
        # The one that was being written when the ranks were killed may be lost, and the rounds since it was begun.
        assert len(lines(folder)) > allowed
        allowed = len(lines(folder)) - (2 if "--sync-checkpoints" in how else 4)
        newest = [path for path in sorted((folder / "checkpoints").glob("round-*.h5")) if path.is_file()]
        assert int(newest[-1].stem.split("-")[1]) >= allowed, (newest, allowed)
    rounds = len(lines(folder)) + 10
    last = [*RUN, "--rounds", rounds, "--out", folder]
    peace = [*RUN, "--rounds", rounds, "--checkpoint-every", "0", "--out", tmp_path / "peace"]
    said = series(2, tmp_path, {"last": last, "peace": peace}).end(600)
    assert said["last"].returncode == 0 and "resuming from" in said["last"].stdout
    assert not list(folder.rglob("*.tmp")) and len(list((folder / "checkpoints").iterdir())) == 2
    assert [line["round"] for line in lines(folder)] == list(range(1, rounds + 1))
    assert said["peace"].returncode == 0, said["peace"]
    assert weights(folder) == weights(tmp_path / "peace")


# What is damaged is passed over: tests/mpi/test_going_back.py, tests/unit/test_checkpoint_damage.py.


@pytest.mark.parametrize("how", IN_TURNS[::2], ids=" ".join)
def test_a_full_disk_loses_nothing(series, tmp_path, how):
    """Room for one checkpoint of 1.2 MB and not for a second: the run goes on, then gives up, with the first intact."""
    with small_disk(tmp_path / "disk", "2m") as disk:
        command = ["train", "--checkpoint-every", "2", "--evaluate-every", "100", *how, "--resume", "auto"]
        command += ["--rounds", "20", "--out", "disk/run"]
        looked = "import os\nif rank == 0: print(os.listdir('disk/run/checkpoints'))"
        more = "import os\nif rank == 0: os.system('mount -o remount,size=9m disk')"
        said = series(2, tmp_path, {"full": command, "looked": looked, "more": more, "rest": command}).end()
        full, rest = said["full"], said["rest"]
        assert full.returncode == 74, full
        why = "cannot be written (No space left on device)" if "direct" in " ".join(how) else "MB are free there"
        assert why in full.stderr and why in full.stdout
        again = full.stdout.count("The run continues; older checkpoints are untouched.")
        assert again == 2 and "Failures in a row: 3." in full.stderr, full.stdout
        assert said["looked"].stdout == "['round-00000002.h5']\n"
        assert rest.returncode == 0 and "after 2 of 20 rounds" in rest.stdout, rest
        names = [path.name for path in sorted(Path(disk / "run" / "checkpoints").iterdir())]
        assert names == ["round-00000016.h5", "round-00000018.h5"]
