"""Stopping a run from outside, and going on with it: signals, a file, the end of a job's time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest
from following import lines, wait_for_rounds
from patience import patient

LOCAL_STEPS = 10
SLOW = ["train", "--rounds", "100000", "--hidden", "64", "--checkpoint-every", "20", "--set", "evaluate.every=1000000"]
SLOW += ["--local-steps", str(LOCAL_STEPS)]
"""A run that does not end by itself."""


def reached(folder):
    """Rounds, and local steps in the one that follows, of the newest checkpoint."""
    # By name a round's end would come behind the steps that follow it.
    newest = max((folder / "checkpoints").glob("*.h5"), key=lambda path: path.stat().st_mtime_ns)
    with h5py.File(newest) as file:
        return int(file.attrs["round"]), int(file.attrs["local_step"])


# That each signal is received, at whatever moment, is shown by tests/unit/test_signals.py.


def test_a_signal_to_one_rank_stops_all_in_the_round_they_are_in(start, tmp_path):
    job = start(2, "istmpi", *SLOW, "--local-steps", "50", "--out", tmp_path / "run")
    wait_for_rounds(tmp_path / "run", 3, job)
    os.kill(job.ranks[1], signal.SIGTERM)
    result = job.end(20)
    assert result.returncode == 75, result
    said = result.errors
    assert len(said) == 1 and "stopped by SIGTERM, after " in said[0], result.stderr
    assert "--resume auto to continue" in said[0]
    rounds, steps = reached(tmp_path / "run")
    assert rounds == len(lines(tmp_path / "run")) and f"after {rounds} of 100000 rounds" in said[0]
    assert (f"and {steps} of 50 local steps" in said[0]) == (steps > 0)


def test_a_signal_to_all_ranks_stops_them_once(start, tmp_path):
    job = start(3, "istmpi", *SLOW, "--out", tmp_path / "run")
    wait_for_rounds(tmp_path / "run", 3, job)
    for rank in job.ranks:
        os.kill(rank, signal.SIGINT)
    result = job.end(20)
    assert result.returncode == 75 and "stopped by SIGINT, after " in result.stderr, result


def catches(process, number):
    """Whether a process has a handler of its own for a signal."""
    caught = next(
        line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_a_signal_while_everything_is_imported_is_not_lost(start, tmp_path):
    """Twice, as when a terminal and a launcher both pass it on."""
    job = start(2, "istmpi", *SLOW, "--out", tmp_path / "run")
    rank = job.ranks[1]
    while not catches(rank, signal.SIGUSR2):
        time.sleep(0.001)
    mapped = Path(f"/proc/{rank}/maps").read_text()
    for _ in range(2):
        os.kill(rank, signal.SIGTERM)
    assert "libtorch" not in mapped and "libmpi" not in mapped, "it was signalled too late"
    result = job.end(100)
    assert result.returncode == 75 and "stopped by SIGTERM, after 0 of 100000 rounds" in result.stderr, result
    assert reached(tmp_path / "run")[0] == 0


def test_a_command_that_saves_nothing_is_interrupted_at_once_and_without_a_trace(tmp_path):
    """In its imports."""
    command = [sys.executable, Path(sys.executable).with_name("istmpi"), "evaluate", tmp_path / "none.h5"]
    # Whatever started the tests may have had it ignored, as shells have for what they start in the background.
    listening = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **listening) as process:
        while "multiarray" not in Path(f"/proc/{process.pid}/maps").read_text():
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=patient(60))[1]
    assert said == "" and process.returncode in (130, -signal.SIGINT)


def test_a_second_sigterm_ends_at_once(start, tmp_path):
    job = start(2, "istmpi", *SLOW, "--out", tmp_path / "run")
    wait_for_rounds(tmp_path / "run", 3, job)
    first, second = job.ranks
    os.kill(second, signal.SIGSTOP)  # so that the first waits inside MPI
    os.kill(first, signal.SIGTERM)
    time.sleep(0.8)
    assert job.process.poll() is None
    os.kill(first, signal.SIGTERM)
    time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):  # its launcher may have ended it
        os.kill(second, signal.SIGCONT)
    assert job.end(20).returncode not in (0, 75)


def test_a_file_stops_the_run_and_the_same_command_goes_on(start, mpirun, tmp_path):
    folder = tmp_path / "run"
    command = ["istmpi", *SLOW, "--resume", "auto", "--out", folder]
    job = start(2, *command)
    wait_for_rounds(folder, 3, job)
    beside = mpirun(1, *command)
    assert beside.returncode == 2 and len(beside.errors) == 1, beside.stderr
    assert f"--out {folder} is used by another run, process {job.ranks[0]} on host" in beside.stderr
    (folder / "STOP").touch()
    result = job.end(20)
    assert result.returncode == 75 and f"stopped by the file {folder}/STOP" in result.stderr
    assert f"Remove {folder}/STOP and run the same command" in result.stderr
    rounds, steps = reached(folder)
    # For another number of ranks a round is over that one of these was through with; nobody knows its loss.
    done = rounds + (steps == LOCAL_STEPS)
    # The file is still there: nothing may be lost by trying again.
    again = mpirun(1, *command)
    assert again.returncode == 75 and f"after {done} of 100000 rounds" in again.stderr
    (folder / "STOP").unlink()
    job = start(1, *command)
    wait_for_rounds(folder, rounds + 3, job)
    found = [line["round"] for line in lines(folder)]
    assert found == [*range(1, rounds + 1), *range(done + 1, found[-1] + 1)]


def test_the_end_of_the_jobs_time_stops_the_run(mpirun, tmp_path):
    ends = {"SLURM_JOB_END_TIME": str(int(time.time()) + 66)}
    command = ["istmpi", *SLOW, "--out", tmp_path / "run", "--stop-before-walltime", "1"]
    result = mpirun(2, *command, env=ends)
    assert result.returncode == 75 and "stopped by the job's time limit" in result.stderr


@pytest.mark.parametrize("answer, code", [("date -d '+1 minute' +%Y-%m-%dT%H:%M:%S", 75), ("exit 1", 2)])
def test_one_rank_asks_slurm_for_all(mpirun, tmp_path, answer, code):
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho asked >>{tmp_path}/asked\n{answer}\n")
    squeue.chmod(0o755)
    # Not for the launcher, which would look for the job's nodes.
    slurm = (
        "import os; os.environ['SLURM_JOB_ID'] = '7'; os.environ.pop('SLURM_JOB_END_TIME', None)\n"
        f"os.environ['PATH'] = '{tmp_path}:' + os.environ['PATH']\n"
        "from istmpi.cli.main import main; main()"
    )
    result = mpirun(2, "python", "-c", slurm, *SLOW, "--out", tmp_path / "run", "--stop-before-walltime", "1")
    assert result.returncode == code, result
    said = result.errors
    assert len(said) == 1 and ("the job's time limit" if code == 75 else "squeue --noheader --jobs 7") in said[0]
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_run_killed_before_its_summary_is_completed_by_the_same_command(mpirun, tmp_path):
    folder = tmp_path / "run"
    program = (
        "import os, sys; from istmpi.cli.main import main; from istmpi.record import RunFolder\n"
        "write = RunFolder.write\n"
        "RunFolder.write = lambda *of: os._exit(9) if of[1] == 'summary.json' else write(*of)\n"
        "main()"
    )
    command = ["train", "--rounds", "3", "--resume", "auto", "--out", folder]
    assert mpirun(2, "python", "-c", program, *command).returncode != 0
    before = {name: (folder / name).read_bytes() for name in ("network.h5", "metrics.jsonl")}
    assert not (folder / "summary.json").exists()
    for ranks in 1, 2:
        (folder / "progress.png").unlink(missing_ok=True)  # as when it was killed behind the summary
        result = mpirun(ranks, "istmpi", *command)
        assert result.returncode == 0, result.stderr
        assert ("nothing left to train" in result.stdout) == (ranks == 2)
        assert {name: (folder / name).read_bytes() for name in before} == before
        assert {"summary.json", "progress.png"} <= {path.name for path in folder.iterdir()}
    last, summary = lines(folder)[-1], json.loads((folder / "summary.json").read_text())["last"]
    assert summary["score"]["score"] == pytest.approx(last["score"]) and summary["round"] == last["round"] == 3
    assert [summary[fact] for fact in ("seconds", "bytes", "loss")] == [last[f] for f in ("seconds", "bytes", "loss")]


def test_a_folder_that_one_rank_does_not_see_is_refused_on_all(mpirun, tmp_path):
    """As on a node where it is not mounted, or from another working directory."""
    done = mpirun(1, "istmpi", "train", "--rounds", "3", "--out", tmp_path / "here" / "run")
    assert done.returncode == 0 and "started without mpirun" not in done.stdout
    (tmp_path / "there").mkdir()
    program = "import os, sys; os.chdir(sys.argv.pop(1)); from istmpi.cli.main import main; main()"
    here, there = (
        ["python", "-c", program, tmp_path / name, "train", "--rounds", "5", "--resume", "run"]
        for name in ("here", "there")
    )
    result = mpirun(1, *here, ":", "-n", "1", *there, timeout=30)
    assert result.returncode == 2, result
    assert "rank 1: run/network.h5 does not exist. Skipped." in result.stdout
    said = result.errors
    assert said == [
        "istmpi: run: no checkpoint in it is valid on every rank. "
        "Put it where all ranks see it, remove its checkpoints, or give another --out."
    ]
