"""What the doctor concludes from what it finds, and its command on one rank."""

import contextlib
import json
import os
import signal
import socket

import pytest

from istmpi.doctor import machine, mpi, network
from istmpi.doctor.watchdog import find_unanswered


def test_a_healthy_folder_leaves_nothing_behind(forked, tmp_path):
    result = forked("doctor", "--json", "--folder", tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    names = [finding["name"] for finding in report["findings"]]
    assert {"MPI", "threads", "ranks", "cores", "network", "GPU", "folder"} <= set(names)
    assert report["ranks"] == 1 and report["hosts"] == [socket.gethostname()]
    assert report["machine"]["packages"]["numpy"] and report["machine"]["python"].startswith("3.")
    assert not list(tmp_path.iterdir())


def test_modules_and_settings_are_recorded_without_secrets(monkeypatch):
    environment = {"LOADEDMODULES": "gcc/12:openmpi/4.1", "SLURM_JOB_ID": "7", "SLURM_JWT": "secret"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    recorded = machine()
    assert recorded["modules"] == ["gcc/12", "openmpi/4.1"]
    assert recorded["settings"]["SLURM_JOB_ID"] == "7"
    assert "secret" not in json.dumps(recorded)


def test_a_launcher_of_another_mpi_is_named(forked, tmp_path):
    """MPICH itself ends such a rank in MPI_Init, without a hint."""
    program = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
    library = forked(program=program).stdout
    if not library.startswith("MPICH"):
        pytest.skip(f"needs MPICH, this is {library.splitlines()[0]}")
    launched = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    told = "2 ranks were started by Open MPI's launcher, but mpi4py uses MPICH"
    result = forked("doctor", "--folder", tmp_path, **launched)
    assert result.returncode == 1
    assert f"red     launcher  {told}" in " ".join(result.stdout.split("\n")), result.stdout
    trained = forked("train", "--rounds", 1, "--out", tmp_path / "run", **launched)
    assert (trained.returncode, trained.stderr.count("\n")) == (2, 1), trained.stderr
    assert told in trained.stderr


@pytest.mark.parametrize(
    "per_rank, name, state, fact",
    [
        ([("a", [0], 16, 1)], "cores", "yellow", "a has 16 cores, but its ranks may use only 1"),
        ([("a", [0, 1], 2, 1)] * 4, "cores", "yellow", "4 ranks share 2 cores of a"),
        ([("a", [0, 1], 2, 2, 2)], "cores", "yellow", "a rank's cores lie in 2 NUMA nodes"),
        ([("a", [0, 1], 2, 1)] * 2 + [("b", [0, 1], 2, 2)], "ranks", "yellow", "unevenly spread"),
    ],
)
def test_cores(per_rank, name, state, fact):
    found = {"cores": mpi.judge_cores, "ranks": mpi.judge_spread}[name]([mpi.RankFacts(*values) for values in per_rank])
    assert found.state == state and fact in found.fact
    assert bool(found.cure) == (state != "green")


ETH, OTHER, BRIDGE = "eth0 (10.0.0.1)", "eth0 (10.0.0.2)", "docker0 (172.17.0.1)"


@pytest.mark.parametrize(
    "by_host, chosen, state, fact",
    [
        ({"a": ([ETH], [])}, {}, "green", "eth0 (10.0.0.1); all ranks are on one host"),
        ({"a": ([ETH], [])}, {"UCX_NET_DEVICES": "lo"}, "green", "eth0 (10.0.0.1); all ranks are on one host"),
        ({"a": ([ETH, BRIDGE], []), "b": ([OTHER], [])}, {}, "yellow", "MPI may choose a slow or unconnected"),
        ({"a": ([ETH, BRIDGE], []), "b": ([OTHER], [])}, {"FI_TCP_IFACE": "eth0"}, "green", "by FI_TCP_IFACE=eth0"),
        ({"a": ([ETH], []), "b": ([OTHER, BRIDGE], [])}, {}, "yellow", "b: eth0 (10.0.0.2), docker0 (172.17.0.1)"),
        ({"a": ([ETH], []), "b": ([OTHER, BRIDGE], [])}, {"FI_TCP_IFACE": "docker0"}, "red", "docker0 is not on a"),
        ({"a": ([ETH], []), "b": ([OTHER], [])}, {"UCX_NET_DEVICES": "wg0"}, "red", "wg0 is not on a, b"),
        ({"a": ([ETH], []), "b": ([OTHER], [])}, {"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/24"}, "green", "0.0/24"),
        ({"a": ([ETH], ["mlx5_0"]), "b": ([OTHER], ["mlx5_0"])}, {"UCX_NET_DEVICES": "mlx5_0:1,eth0"}, "green", "_0:1"),
        ({"a": ([ETH, "ib0 (10.1.0.1)"], ["mlx5_0"]), "b": ([OTHER], [])}, {}, "green", "mlx5_0"),
    ],
)  # fmt: skip
def test_interfaces(by_host, chosen, state, fact):
    found = network.judge_interfaces(by_host, chosen)
    assert found.state == state and fact in found.fact


def test_a_silent_pair_is_named():
    found = network.describe_ring([(2, 5)])
    assert found.state == "red" and "rank 2 receives nothing from rank 5" in found.fact
    assert "and 11 more pairs" in network.describe_ring([(0, rank) for rank in range(1, 20)]).fact


def test_a_connection_without_an_answer_is_seen():
    """A backlog that is full leaves a further connection unanswered."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        assert find_unanswered(os.getpid()) == ["127.0.0.1"]
    assert find_unanswered(os.getpid()) == []


def test_a_hang_is_ended_with_its_place(forked):
    """As MPI_Init hangs: in C, without Python's lock."""
    program = "import ctypes; from istmpi.doctor.watchdog import limit\nwith limit(3, 'starting MPI', 0.2):\n"
    program += "    ctypes.CDLL(None).sleep(60)"
    result = forked(program=program)
    assert result.returncode == -signal.SIGKILL
    assert result.stderr == f"istmpi doctor: rank 3 on {socket.gethostname()} hangs while starting MPI\n"


@pytest.mark.parametrize("cores, count", [([0, 1], 1), ([2, 3], 2), ([0, 6], 2), ([9], 1)])
def test_the_numa_nodes_of_cores_are_counted(tmp_path, cores, count):
    for node, text in enumerate(["0-2,8\n", "3-6\n", "\n"]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(text)
    assert mpi.count_numa_nodes(cores, tmp_path) == count


@pytest.mark.parametrize(
    "devices, processes, fact, cure",
    [
        (8, 8, "H200: a device for each process", ""),
        (8, 1, "H200; a host has 8 devices for 1 rank", "Start 8 processes there, and train with --group-size host."),
        (2, 3, "H200; up to 3 ranks of a host share 2 devices", "Start one rank for each device."),
    ],
)
def test_devices_are_judged_by_the_processes_of_their_host(devices, processes, fact, cure):
    finding = mpi.judge_devices([(["H200"] * devices, processes)] * processes)
    assert (finding.fact, finding.cure) == (fact, cure)
