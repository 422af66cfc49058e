"""The emulated cluster, PyTorch's methods as peers, and small pieces of benchmarks/time_to_accuracy.py."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import Limit, patient

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
NAME = f"test{os.getpid()}"
TINY = ["--data", "digits", "--hidden", "24,24", "--local-steps", "5", "--lr", "0.05", "--batch", "32"]
ROUNDS = 2


def environment():
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(*command, timeout=100):
    command = list(map(str, command))
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=patient(timeout))


def namespaces():
    return [line for line in run("ip", "netns", "list").stdout.splitlines() if f"istmpi-{NAME}" in line]


@pytest.fixture
def cluster(emulated):
    """``cluster(*words)`` is the start of a benchmarks/cluster command; skipped where there can be none."""
    if reason := emulated.obstacle():
        pytest.skip(f"no emulated network: {reason}")
    yield lambda *words: [BENCHMARKS / "cluster", "--name", NAME, *words]
    left = namespaces()
    run(BENCHMARKS / "cluster", "down", "--name", NAME)
    Path(f"/run/istmpi-{NAME}.lock").unlink(missing_ok=True)
    assert not left


def test_without_root_one_line_says_so():
    command = [sys.executable, str(BENCHMARKS / "cluster"), "--hosts", "2", "--", "true"]
    if os.geteuid() == 0:
        if not shutil.which("unshare") or run("unshare", "--user", "true").returncode:
            pytest.skip("root cannot become nobody here")
        command = ["unshare", "--user", *command]
    result = run(*command)
    assert result.returncode != 0
    assert "needs Linux and root" in result.stderr and "Traceback" not in result.stderr


def test_ranks_are_hosts_that_talk_over_their_interfaces_and_failures_leave_nothing(cluster):
    code = "from istmpi.comm import world; c = world(); print(sorted(c.hosts())); import sys; sys.exit(3)"
    result = run(*cluster("--hosts", "2", "--rate", "100mbit", "--"), sys.executable, "-c", code)
    assert f"['istmpi-{NAME}-0', 'istmpi-{NAME}-1']" in result.stdout, result.stderr
    assert result.returncode != 0
    assert "by the interfaces' counters" in result.stderr


def test_hosts_have_the_cores_that_the_command_may_use(cluster):
    last = max(os.sched_getaffinity(0))
    code = "import os, platform; print(f'{platform.node()} {sorted(os.sched_getaffinity(0))}\\n', end='')"
    result = run("taskset", "-c", last, *cluster("--hosts", "2", "--"), sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"istmpi-{NAME}-{host} [{last}]" for host in (0, 1)]


def test_a_terminated_cluster_leaves_nothing(cluster):
    command = [*map(str, cluster("--hosts", "2", "--")), "sh", "-c", "echo up; sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout.readline() == "up\n"
        assert len(namespaces()) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=patient(30)) != 0
    limit = Limit(5)
    while namespaces() and limit.left:
        time.sleep(0.1)


@pytest.mark.parametrize("method, peer", [("local-sgd", "local-sgd"), ("data-parallel", "ddp")])
def test_ours_the_peer_and_one_process_learn_the_same(mpirun, tmp_path, method, peer):
    """The law on which composed figures rest, for the peers; for more of our methods it is in tests/mpi."""
    train = mpirun(
        2,
        "istmpi",
        "train",
        *("--method", method, *TINY, "--rounds", ROUNDS, "--evaluate-every", 1, "--out", tmp_path / "ours"),
    )
    assert train.returncode == 0, train.stderr
    lines = map(json.loads, (tmp_path / "ours/metrics.jsonl").read_text().splitlines())
    expected = {line["local_steps"]: (line["score"], line["test_loss"]) for line in lines}
    assert sorted(expected) == [5, 10]

    steps = ["--steps", 5 * ROUNDS]
    printed = run(sys.executable, BENCHMARKS / "curves.py", method, *TINY, *steps, "--ranks", 2)
    points = list(map(json.loads, printed.stdout.splitlines()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tmp_path / "peer.json"
    curve = tmp_path / "curve.json"
    words = [*TINY, *steps, "--evaluate-every", 5, "--out", out, "--curve", curve]
    script = BENCHMARKS / "peers.py"
    result = mpirun(2, "python", script, peer, *words, env={"MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.stderr
    theirs = json.loads(out.read_text())["points"]
    assert [point["samples"] for point in theirs] == [5 * 2 * 32, 10 * 2 * 32]
    assert all(point["bytes"] > 0 for point in theirs)
    points += theirs
    report = run("istmpi", "report", tmp_path / "ours", curve, "--json")
    [comparison] = json.loads(report.stdout)["comparisons"]
    assert {(row["method"], row["ranks"]) for row in comparison["rows"]} == {(method, 2), (f"pytorch-{peer}", 2)}
    trained = [point for point in points if point["step"]]
    assert len(trained) == 4
    for point in trained:
        accuracy, loss = expected[point["step"]]
        assert point["loss"] == pytest.approx(loss, rel=1e-4)
        assert point["accuracy"] == pytest.approx(accuracy, abs=0.006)  # two of 360 examples may lie on the edge


def test_a_narrow_network_and_ist_that_never_redeals_take_turns_with_ist(mpirun, tmp_path):
    """What each sends in a round, counted: nothing without a new deal, else the narrow network twice round the ring."""
    out, names = tmp_path / "speeds.json", "ist,ist-never,narrow-local-sgd,narrow-diloco"
    words = [*TINY, "--out", out, "--contestants", names, "--turns", 1, "--turn-seconds", 0.1]
    result = mpirun(2, "python", BENCHMARKS / "speeds.py", "turns", *words, env={"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.stderr
    found = json.loads(out.read_text())["contestants"]
    sent = {name: {one["bytes"] for rounds in turns for one in rounds} for name, turns in found.items()}
    # 64-12-12-10, and of each layer's normalisation scale and shift but of the last
    weights = 64 * 12 + 12 * 12 + 12 * 10 + 4 * 12
    assert sent["ist-never"] == {0} and min(sent["ist"]) > 0
    assert sent["narrow-local-sgd"] == sent["narrow-diloco"] == {2 * 4 * weights}
    assert {one["steps"] for turns in found.values() for rounds in turns for one in rounds} == {5}


@pytest.mark.timeout(300)
def test_quick_cells_are_measured_reported_and_not_measured_again(cluster, tmp_path):
    program = [sys.executable, BENCHMARKS / "time_to_accuracy.py", "--quick", "--cells", tmp_path, "--name", NAME]
    wanted = ["machine-P2", "speed-digits-P2-1x-local", "curve-digits-P2-ist-J5", "curve-digits-P2-local-sgd-J5"]
    for name in wanted:
        program += ["--only", name]
    first = run(*program, timeout=240)
    assert first.returncode == 0, first.stdout + first.stderr
    cells = {path.stem: path.stat().st_mtime_ns for path in tmp_path.glob("*-P2*.json")}
    assert len(cells) == len(wanted)
    speed = json.loads((tmp_path / "speed-digits-P2-1x-local.json").read_text())
    assert set(speed["contestants"]) == {"ist", "ist-tenth", "local-sgd", "pytorch-local-sgd"}
    for turns in speed["contestants"].values():
        assert len(turns) == 3
        for one in (one for rounds in turns for one in rounds):
            assert one["bytes"] <= one["wire"] < 1.2 * one["bytes"]
    report = json.loads((tmp_path / "time-to-accuracy.json").read_text())
    (row,) = report["rows"]
    assert row["PyTorch DDP, s"] == "-" and row["IST, s"].endswith("*") and float(row["against local SGD"]) > 0
    assert (tmp_path / "time-to-accuracy.png").stat().st_size > 10_000
    second = run(*program)
    assert second.returncode == 0, second.stderr
    assert {path.stem: path.stat().st_mtime_ns for path in tmp_path.glob("*-P2*.json")} == cells
