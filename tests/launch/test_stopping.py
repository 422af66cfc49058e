"""Stopping a run from outside, and going on: signals, a file, the end of a job's time; what listens meanwhile."""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest
from following import lines, wait_for_rounds
from patience import Limit, patient

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


# SLURM's variables are not for the launcher, which would look for the job's nodes.
SQUEUE = """
import os
os.environ["SLURM_JOB_ID"], os.environ["PATH"] = "7", os.getcwd() + ":" + os.environ["PATH"]
if rank == 0:
    with open("squeue", "w") as file:
        file.write("#!/bin/sh\\necho asked >>asked\\nANSWER\\n")
    os.chmod("squeue", 0o755)
"""
ANSWER = SQUEUE.replace("ANSWER", "date -d '+1 minute' +%Y-%m-%dT%H:%M:%S")
ELSEWHERE = """
import os, shutil
if rank == 0:
    shutil.copytree("one", "here/run")
else:
    os.mkdir("there")
os.chdir("there" if rank else "here")
"""
GO = "import os, time\nwhile not os.path.exists('{}'): time.sleep(0.02)"
READY = f"import istmpi.training.run\n{GO.format('file/metrics.jsonl')}"
"""A job's imports take seconds, in which the run of others would train."""


def listening(process):
    """The addresses at which a process listens on the network, by the numbers of its sockets."""
    links = [path.readlink() for path in Path(f"/proc/{process}/fd").iterdir()]
    own = {str(link)[8:-1] for link in links if str(link).startswith("socket:")}
    rows = [row.split() for row in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
    return {
        row[9]: socket.inet_ntoa(struct.pack("=I", int(row[1].split(":")[0], 16)))
        for row in rows
        if row[3] == "0A" and row[9] in own
    }


@pytest.fixture(scope="module")
def said(series, folder):
    """The outcomes of runs that are stopped, one after another in a job of two ranks, and of another job beside."""
    file = [*SLOW, "--resume", "auto", "--out", "file"]
    slow = [*SLOW, "--stop-before-walltime", "1", "--out"]
    runs = {
        "one": [*SLOW, "--local-steps", "50", "--out", "one"],
        "all": [*SLOW, "--out", "all"],
        "file": file,
        "squeue answers": ANSWER,
        "answer": [*slow, "answer"],
        "squeue fails": SQUEUE.replace("ANSWER", "exit 1"),
        "no answer": [*slow, "no-answer"],
        "elsewhere": ELSEWHERE,
        "not seen": ["train", "--resume", "run"],
    }
    alone = {"ready": READY, "beside": file, "go": GO.format("go"), "again": file}
    alone |= {"removed": "import os; os.remove('file/STOP')", "on": file}
    runs, alone = series(2, folder, runs), series(1, folder, alone)
    wait_for_rounds(folder / "one", 3, runs.job)
    ranks = runs.job.ranks
    listens = [listening(process) for process in (runs.job.process.pid, *ranks)]
    os.kill(ranks[1], signal.SIGTERM)
    wait_for_rounds(folder / "all", 3, runs.job)
    for rank in ranks:
        os.kill(rank, signal.SIGINT)
    wait_for_rounds(folder / "file", 3, runs.job)
    alone.wait("beside")
    (folder / "file" / "STOP").touch()
    runs.wait("file")
    stopped = reached(folder / "file")
    (folder / "go").touch()
    alone.wait("removed")
    wait_for_rounds(folder / "file", stopped[0] + 3, alone.job)
    rounds = [line["round"] for line in lines(folder / "file")]
    (folder / "file" / "STOP").touch()
    facts = {"job": ranks[0], "reached": stopped, "rounds": rounds, "listens": listens}
    return runs.end() | alone.end() | facts | {"launcher": runs.job.process.args[0]}


def test_ranks_of_one_host_listen_to_nobody_outside_it(said):
    """The launcher may: its own sockets, which ranks inherit, are left out. Open MPI decides for itself."""
    if "HYDRA" not in subprocess.run([said["launcher"], "--version"], capture_output=True, text=True).stdout:
        pytest.skip("needs MPICH")
    launcher, *ranks = said["listens"]
    for sockets in ranks:
        own = {number: address for number, address in sockets.items() if number not in launcher}
        assert own and {*own.values()} == {"127.0.0.1"}


# That each signal is received, at whatever moment, is shown by tests/unit/test_signals.py.


def test_a_signal_to_one_rank_stops_all_in_the_round_they_are_in(said, folder):
    assert said["one"].returncode == 75, said["one"]
    (error,) = said["one"].errors
    assert "stopped by SIGTERM, after " in error and "--resume auto to continue" in error
    rounds, steps = reached(folder / "one")
    assert rounds == len(lines(folder / "one")) and f"after {rounds} of 100000 rounds" in error
    assert (f"and {steps} of 50 local steps" in error) == (steps > 0)


def test_a_signal_to_all_ranks_stops_them_once(said):
    (error,) = said["all"].errors
    assert said["all"].returncode == 75 and "stopped by SIGINT, after " in error, said["all"]


def test_a_file_stops_the_run_and_the_same_command_goes_on(said, folder):
    assert f"--out file is used by another run, process {said['job']} on host" in said["beside"].refusal()
    result = said["file"]
    assert result.returncode == 75 and "stopped by the file file/STOP" in result.stderr, result
    assert "Remove file/STOP and run the same command" in result.stderr
    rounds, steps = said["reached"]
    # For another number of ranks a round is over that one of these was through with; nobody knows its loss.
    done = rounds + (steps == LOCAL_STEPS)
    # The file is still there: nothing may be lost by trying again.
    assert said["again"].returncode == 75 and f"after {done} of 100000 rounds" in said["again"].stderr, said["again"]
    assert said["rounds"] == [*range(1, rounds + 1), *range(done + 1, said["rounds"][-1] + 1)]
    assert said["on"].returncode == 75 and "started without mpirun" not in said["on"].stdout


def test_one_rank_asks_slurm_for_the_end_of_the_jobs_time(said, folder):
    (error,) = said["answer"].errors
    assert said["answer"].returncode == 75 and "the job's time limit" in error, said["answer"]
    assert "squeue --noheader --jobs 7" in said["no answer"].refusal()
    assert (folder / "asked").read_text() == "asked\n" * 2


def catches(process, number):
    """Whether a process has a handler of its own for a signal."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)[1]
    return bool(int(caught, 16) >> (number - 1) & 1)


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
    limit, sent = Limit(60), 0
    with contextlib.suppress(ProcessLookupError):  # its launcher may end it soon
        while Path(f"/proc/{first}").exists():
            assert limit.left, f"it is there after {sent} signals"
            os.kill(first, signal.SIGTERM)
            sent += 1
            time.sleep(0.8)  # a signal that follows at once counts as the same request
        os.kill(second, signal.SIGCONT)
    assert sent > 1, "the first one is a request"
    assert job.end(20).returncode not in (0, 75)


def test_a_folder_whose_settings_one_rank_does_not_see_is_refused_on_all(said):
    """As on a node where it is not mounted, or from another working directory."""
    line = said["not seen"].refusal()
    assert line.startswith("istmpi: rank 1: the ranks have different settings (checkpoint.every: 20 or 0; "), line
