"""Ranks that wait for one that does not come: it is named, the job ends with a code of its own, and the run goes on."""

import os
import re
import signal
import time
from pathlib import Path

from following import lines, wait_for_rounds
from patience import Limit

PATIENCE = 3
STUCK = 76
NETWORK = '''
import os
from pathlib import Path

from torch import nn


class Net(nn.Module):
    """On rank 1 it computes for ever once a file is there."""

    def __init__(self, features, outputs, width=24):
        super().__init__()
        self.first = nn.Linear(features, width)
        self.last = nn.Linear(width, outputs)

    def forward(self, x):
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
        while rank == "1" and Path("FILE").exists():
            pass
        return self.last(self.first(x).relu())
'''
RUN = ["--rounds", "1000000", "--local-steps", "2", "--checkpoint-every", "1", "--progress", "lines"]
RUN += ["--set", "evaluate.every=1000000", "--resume", "auto"]


def test_a_stopped_rank_and_one_in_an_endless_loop_are_named_and_the_run_goes_on(start, tmp_path):
    network, loops, folder = tmp_path / "net.py", tmp_path / "loops", tmp_path / "run"
    network.write_text(NETWORK.replace("FILE", str(loops)))
    run = ["train", *RUN, "--set", f"comm.patience={PATIENCE}", "--model", f"{network}:Net", "--out", folder]

    job = start(3, "istmpi", *run)
    wait_for_rounds(folder, 3, job)
    # Once a second a rank tells another where it is: by then in a round.
    job.wait_until(lambda: lines(folder)[-1]["seconds"] >= 2)
    (_, stopped, _), begun = job.ranks, time.monotonic()
    os.kill(stopped, signal.SIGSTOP)
    result = job.end(20 * PATIENCE)
    assert time.monotonic() - begun > PATIENCE, "nobody is missed before the patience is over"
    assert result.returncode == STUCK, result
    said = [line for line in result.stdout.splitlines() if "waiting for rank" in line]
    assert said and said[0].startswith("waiting for rank 1 on ") and f"(process {stopped})" in said[0], result
    assert "its process is stopped (kill -CONT" in said[0] and "last seen " in said[0] and ", round " in said[0]
    (last,) = result.errors
    assert "aborting, a rank does not respond: rank 1 on" in last and "--resume auto" in last
    assert sorted(path.name for path in (folder / "stacks").iterdir()) == ["rank0.txt", "rank2.txt"]
    assert "communicator.py" in (folder / "stacks" / "rank0.txt").read_text()
    assert gone(stopped)

    before = lines(folder)
    job = start(2, "istmpi", *run)
    wait_for_rounds(folder, len(before) + 2, job, unlike=before)
    loops.touch()
    result = job.end(20 * PATIENCE)
    assert result.returncode == STUCK, result
    (last,) = result.errors
    assert re.search("rank 1 on .*its process answers but has made no progress for .*in compute, round", last)
    stack = (folder / "stacks" / "rank1.txt").read_text()
    assert any(f'File "{network}"' in line and line.endswith(" in forward") for line in stack.splitlines()), stack
    assert len(lines(folder)) > len(before)


STOPS = """
import os, signal, sys

class Stops:
    def find_spec(self, name, *_):
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
        if rank == "1" and name == os.environ["STOPS"]:
            os.kill(os.getpid(), signal.SIGSTOP)

sys.meta_path.insert(0, Stops())
"""


def loading(start, folder, module, patience, **settings):
    """A job whose rank 1 stops as it imports a module."""
    (folder / "sitecustomize.py").write_text(STOPS)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = ["train", *RUN, "--set", f"comm.patience={patience}", "--out", folder / "run"]
    return start(2, "istmpi", *run, env={"PYTHONPATH": path, "STOPS": module}, **settings)


def test_a_rank_that_stops_while_ranks_load_is_named_and_ends_the_job(start, tmp_path):
    result = loading(start, tmp_path, "torch", 1).end(90)
    assert result.returncode == STUCK, result
    first, last = result.errors
    assert re.match(r"istmpi: waiting for rank 1 on .* in setting up .* its process is stopped \(kill -CONT", first)
    assert "rank 1 on " in last and "Training had not begun: run the same command again." in last


def test_a_rank_that_stops_before_mpi_starts_is_named_and_goes_on_once_it_is_woken(start, tmp_path):
    with (tmp_path / "said").open("w") as said:
        job = loading(start, tmp_path, "mpi4py.MPI", 60, output=said)
        named = re.compile(r"istmpi: waiting for rank 1 on .*: its process is stopped \(kill -CONT (\d+)")
        job.wait_until(lambda: named.search((tmp_path / "said").read_text()))
        os.kill(int(named.search((tmp_path / "said").read_text())[1]), signal.SIGCONT)
        wait_for_rounds(tmp_path / "run", 2, job)
    ranks_whose_launcher_is_gone_end(job)


def test_ranks_end_whose_launcher_is_gone_before_mpi_has_started(start, tmp_path):
    """From the console script's first line on: in MPI's start, ranks wait for each other without a look at it."""
    begun = "from istmpi import comm; comm.announce([]); open(f'begun-{comm.read_launcher()[0]}', 'x')"
    job = start(2, "python", "-c", f"{begun}; __import__('time').sleep(600)", cwd=tmp_path)
    job.wait_until(lambda: len([*tmp_path.glob("begun-*")]) == 2)
    ranks_whose_launcher_is_gone_end(job)


def ranks_whose_launcher_is_gone_end(job):
    """MPICH's mpirun has a process between itself and the ranks, without which nobody would end them."""
    ranks = job.ranks
    above = int(Path(f"/proc/{ranks[0]}/stat").read_text().rpartition(")")[2].split()[1])
    if Path(f"/proc/{above}/comm").read_text().strip() == "hydra_pmi_proxy":  # else they are mpirun's own children
        os.kill(above, signal.SIGKILL)
        assert all(gone(rank) for rank in ranks)
        assert job.end(20).returncode != 0


def test_a_stop_that_is_asked_for_does_not_wait_for_a_stopped_rank(start, tmp_path):
    """Without the file the job would end after two minutes."""
    folder = tmp_path / "run"
    job = start(2, "istmpi", "train", *RUN, "--set", "comm.patience=60", "--out", folder)
    wait_for_rounds(folder, 2, job)
    stopped = job.ranks[1]
    os.kill(stopped, signal.SIGSTOP)
    (folder / "STOP").touch()
    result = job.end(45)
    assert result.returncode == STUCK, result
    (last,) = result.errors
    assert f"(stop requested by the file {folder / 'STOP'}), a rank does not respond: rank 1 on " in last, result
    assert f"its process is stopped (kill -CONT {stopped} resumes it)" in last and "--resume auto" in last
    assert gone(stopped)


def gone(process):
    """Whether a process ends within seconds."""
    limit = Limit(10)
    while limit.left and Path(f"/proc/{process}").exists():
        time.sleep(0.05)
    return not Path(f"/proc/{process}").exists()
