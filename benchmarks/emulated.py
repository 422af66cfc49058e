"""An emulated slow cluster on one Linux host: each of its hosts is a network namespace, at a given line rate.

The hosts hang on one bridge, which is in a namespace too, as is mpirun: the machine's own network is never touched. A
token bucket on both ends of each host's cable limits what it sends and what it receives; a process adds latency
(`benchmarks.latency`). Hosts talk TCP only. A host has a name, and a core for each of its processes, the cores in turn;
ISTMPI_NETWORK tells the ranks the line rate, for their records, MASTER_ADDR and the like tell torch.distributed where
host 0 is. Needs root, iproute2 (ip, tc) and the mpirun of MPICH or Open MPI on the PATH.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from istmpi.errors import ConfigError, OutputError

ENTER = """#!/bin/sh
# Stands in for ssh: [-x] HOST COMMAND... runs the command in that host's namespace, under its name, on its cores.
[ "$1" = -x ] && shift
host=$1; shift
cores=$(echo {cores} | cut -d " " -f $(( ${{host##*-}} + 1 )))
export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 ISTMPI_NETWORK="{network}"
export MASTER_ADDR=10.0.1.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0" && exec taskset -c "$1" sh -c "$2"' "$host" "$cores" "$*"
"""

SUBNET = "10.0.0.0/16"
OVER_TCP = (
    "--host {slots} --map-by ppr:{members}:node --bind-to none --mca btl tcp,self --mca btl_tcp_if_include {subnet} "
)
LAUNCHERS = {
    "hydra": "-launcher ssh -launcher-exec {enter} -iface bridge -hosts {slots} -ppn {members}",
    "open mpi) 4": OVER_TCP
    + "--mca plm_rsh_agent {enter} --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include {subnet}",
    "open mpi) 5": OVER_TCP
    + "--prtemca plm_ssh_agent {enter} --prtemca plm_ssh_no_tree_spawn 1 --prtemca prte_if_include {subnet}",
}
"""By what ``mpirun --version`` says, in lower case: words that start processes on hosts by ``enter``, over TCP."""
BY_ENVIRONMENT = {
    "HYDRA_LAUNCHER": "ssh",
    "HYDRA_LAUNCHER_EXEC": "{enter}",
    "HYDRA_IFACE": "bridge",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": SUBNET,
    "OMPI_MCA_plm_rsh_agent": "{enter}",
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "OMPI_MCA_oob_tcp_if_include": SUBNET,
    "PRTE_MCA_plm_ssh_agent": "{enter}",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "PRTE_MCA_prte_if_include": SUBNET,
}
"""The same for programs that call mpirun themselves, of whichever MPI; they name the hosts."""
FOR_OPEN_MPI = {
    **{f"{name}_ALLOW_RUN_AS_ROOT{confirmed}": "1" for name in ("OMPI", "PRTE") for confirmed in ("", "_CONFIRM")},
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
"""It refuses root unless told, and takes each host for a machine whose cores are its rank's alone."""


RATE_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
LATENCY = (sys.executable, str(Path(__file__).with_name("latency.py")))
"""The program that delays frames, and measures round trips."""


@dataclass(frozen=True)
class Delays:
    """What the network adds to a frame's time on the line."""

    round_trip: float
    """Seconds there and back."""
    jitter: float = 0.0
    """Seconds by which a round trip is shorter or longer; frames keep their order."""
    loss: float = 0.0
    """The probability that a frame is lost."""


BURST_SECONDS = 0.01
"""The seconds of a line's rate that pass at once after a pause. Short messages would cross a slow line in no time if
it were longer."""
LEAST_BURST = 16 * 1024
MOST_BURST = 256 * 1024
QUEUE_SECONDS = 0.05


def _bucket(rate: str, delays: Delays | None) -> list[str]:
    """Return tc's words for a token bucket: its rate, its burst, and a queue in front of it."""
    bytes_a_second = parse_rate(rate) / 8
    burst = round(min(max(bytes_a_second * BURST_SECONDS, LEAST_BURST), MOST_BURST))
    # A router's queue: as long as a sender needs to fill a line with this latency.
    longest = QUEUE_SECONDS
    if delays:
        longest = max(longest, delays.round_trip)
    queue = round(bytes_a_second * longest) + MOST_BURST
    return ["rate", rate, "burst", str(burst), "limit", str(queue)]


def parse_rate(rate: str) -> float:
    """Return the bits a second of a rate in tc's words, such as 10mbit or 2.5gbit."""
    for unit, bits in RATE_UNITS.items():
        if rate.lower().endswith(unit):
            return float(rate[: -len(unit)]) * bits
    raise ConfigError(f"--rate {rate} has no unit. Give one of {', '.join(RATE_UNITS)}, as in 10mbit.")


class Cluster:
    """P namespaces ``istmpi-NAME-0`` ... around the namespace ``istmpi-NAME``, in which bridge and mpirun are."""

    def __init__(self, name: str):
        self.switch = f"istmpi-{name}"

    @property
    def hosts(self) -> list[str]:
        """The namespaces of the hosts that are up."""
        prefix = f"{self.switch}-"
        names = [entry["name"] for entry in json.loads(_output("ip", "-json", "netns", "list") or "[]")]
        return sorted((name for name in names if name.startswith(prefix)), key=lambda name: int(name[len(prefix) :]))

    def up(self, hosts: int, rate: str, delays: Delays | None = None) -> None:
        """Make the cluster anew; ``rate`` is tc's: 250mbit, 1gbit. Without ``delays`` the links have no latency."""
        self.down()
        _do("ip", "netns", "add", self.switch)
        _do("ip", "-n", self.switch, "link", "set", "lo", "up")
        _do("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _do("ip", "-n", self.switch, "address", "add", "10.0.0.1/16", "dev", "bridge")
        _do("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for number in range(hosts):
            host, port = f"{self.switch}-{number}", f"port{number}"
            _do("ip", "netns", "add", host)
            _do("ip", "-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            if delays:
                self._insert_forwarder(number)
            else:
                _do("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            _do("ip", "-n", host, "address", "add", f"10.0.{1 + number // 250}.{1 + number % 250}/16", "dev", "eth0")
            for interface in ("lo", "eth0"):
                _do("ip", "-n", host, "link", "set", interface, "up")
            for namespace, interface in ((self.switch, port), (host, "eth0")):
                _do("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf", *_bucket(rate, delays))
        if delays:
            self._start_forwarder(hosts, delays)

    def _insert_forwarder(self, number: int) -> None:
        """Put two more interfaces between a host's port and the bridge. A forwarder copies frames from one to the
        other."""
        port, lag, wire = f"port{number}", f"lag{number}", f"wire{number}"
        _do("ip", "-n", self.switch, "link", "add", lag, "type", "veth", "peer", "name", wire)
        _do("ip", "-n", self.switch, "link", "set", wire, "master", "bridge")
        for interface in (port, lag, wire):
            _do("ip", "-n", self.switch, "link", "set", interface, "up")
        # A frame of 64 kB, which offloads make, would not fit the next interface.
        inside = ["ip", "netns", "exec", self.switch]
        _do(*inside, *LATENCY, "--no-offloads", port, lag, wire)
        _do("ip", "netns", "exec", f"{self.switch}-{number}", *LATENCY, "--no-offloads", "eth0")

    def _start_forwarder(self, hosts: int, delays: Delays) -> None:
        """Start the process that delays frames; it ends with the cluster."""
        self._delays.write_text(json.dumps(asdict(delays)), encoding="utf-8")
        pairs = [f"port{number}:lag{number}" for number in range(hosts)]
        # A round trip waits four times: at both hosts, there and back.
        options = ["--delay", delays.round_trip / 4, "--jitter", delays.jitter / 4, "--loss", delays.loss]
        words = ["ip", "netns", "exec", self.switch, *LATENCY, *options, "--counts", self._counts, *pairs]
        forwarder = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
        )
        assert forwarder.stdout is not None
        if forwarder.stdout.readline() != b"ready\n":
            raise OutputError("the process that delays frames did not start")

    @property
    def _counts(self) -> Path:
        """What became of the frames that the forwarder took."""
        return Path(f"/run/{self.switch}-frames.json")

    @property
    def _delays(self) -> Path:
        """The delays of the cluster that is up."""
        return Path(f"/run/{self.switch}-delays.json")

    def _read_delays(self) -> str:
        """Return the delays in words, each after a comma; nothing if there are none."""
        if not self._delays.exists():
            return ""
        delays = Delays(**json.loads(self._delays.read_text(encoding="utf-8")))
        words = f", {delays.round_trip * 1000:g} ms there and back"
        if delays.jitter:
            words += f", {delays.jitter * 1000:g} ms of jitter"
        if delays.loss:
            words += f", {delays.loss:.2%} of frames lost"
        return words

    def describe(self) -> str:
        """Say in a line what the network between the hosts is, as measured now."""
        hosts = self.hosts
        text = f"{len(hosts)} hosts, {self._line_rate(hosts[0]) / 1e6:g} Mbit/s each way"
        if len(hosts) < 2:
            return text
        answer = _output("ip", "netns", "exec", hosts[0], *LATENCY, "--ping", "10.0.1.2")
        least, middle, most = map(float, answer.split())
        return f"{text}, round trip {middle:.1f} ms by ping ({least:.1f} to {most:.1f})"

    def run(self, command: list[str], *words: str, members: int = 1) -> int:
        """Run as many processes of a command on every host, with more words for mpirun.

        Returns mpirun's exit code, after the interfaces' counters.
        """
        hosts = self.hosts
        if not hosts:
            raise ConfigError(
                f"no cluster {self.switch} is up. Start one: benchmarks/cluster up --hosts 4 --rate 1gbit"
            )
        before = self.counters()
        with tempfile.TemporaryDirectory(prefix=f"{self.switch}-") as folder:
            launch = [*self.launcher(Path(folder), members), "-n", str(members * len(hosts)), *words]
            code = subprocess.run([*launch, *command], env={**FOR_OPEN_MPI, **os.environ}).returncode
        print("host                    MB sent  MB received   (by the interfaces' counters)", file=sys.stderr)
        for host, (sent, received) in self.counters().items():
            sent, received = sent - before[host][0], received - before[host][1]
            print(f"{host:20} {sent / 1e6:10.3f} {received / 1e6:12.3f}", file=sys.stderr)
        if self._counts.exists():
            self._print_frames()
        return code

    def _print_frames(self) -> None:
        """Print what became of the frames since the cluster is up."""
        # The forwarder writes its counts every second.
        time.sleep(2)
        counts = json.loads(self._counts.read_text(encoding="utf-8"))
        print("frames  ", ", ".join(f"{count} {name}" for name, count in counts.items()), file=sys.stderr)

    def launcher(self, folder: Path, members: int = 1) -> list[str]:
        """Return the words of an mpirun that starts as many processes on each host, with a file in a folder."""
        slots = ",".join(f"{host}:{members}" for host in self.hosts)
        enter = self.entrance(folder, members)
        launch = _launcher().format(enter=enter, slots=slots, members=members, subnet=SUBNET)
        return ["ip", "netns", "exec", self.switch, "mpirun", *launch.split()]

    def entrance(self, folder: Path, members: int = 1) -> Path:
        """A program that launchers take for ssh, made in a folder: it runs a command on a host of the cluster."""
        enter = folder / "enter"
        network = f"emulated, {self._line_rate(self.hosts[0]) / 1e6:g} Mbit/s per host{self._read_delays()}, TCP"
        cores = sorted(os.sched_getaffinity(0))
        turns = itertools.cycle(map(str, cores))
        of_hosts = [",".join(itertools.islice(turns, members)) for _ in self.hosts]
        enter.write_text(ENTER.format(cores=" ".join(of_hosts), network=network))
        enter.chmod(0o755)
        return enter

    def down(self) -> None:
        """Remove the cluster and whatever still runs in it."""
        self._counts.unlink(missing_ok=True)
        self._delays.unlink(missing_ok=True)
        names = [*self.hosts, self.switch]
        existing = [name for name in names if Path("/run/netns", name).exists()]
        for name in existing:
            for process in _output("ip", "netns", "pids", name).split():
                with _ignore_dead():
                    os.kill(int(process), signal.SIGKILL)
        for name in existing:
            _do("ip", "netns", "delete", name)

    def _line_rate(self, host: str) -> float:
        """Bits per second that a host may send."""
        (bucket,) = json.loads(_output("tc", "-n", host, "-json", "qdisc", "show", "dev", "eth0"))
        return bucket["options"]["rate"] * 8

    def counters(self) -> dict[str, tuple[int, int]]:
        """Bytes that each host's interface sent and received since it is up, with all headers."""
        counters = {}
        for host in self.hosts:
            (link,) = json.loads(_output("ip", "-n", host, "-json", "-statistics", "link", "show", "eth0"))
            counters[host] = link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"]
        return counters

    def segments(self) -> tuple[int, int]:
        """TCP segments that all hosts sent since the cluster is up, and those that they sent again."""
        sent = again = 0
        for host in self.hosts:
            lines = _output("ip", "netns", "exec", host, "cat", "/proc/net/snmp").splitlines()
            names, numbers = (line.split() for line in lines if line.startswith("Tcp:"))
            counts = dict(zip(names, numbers, strict=True))
            sent += int(counts["OutSegs"])
            again += int(counts["RetransSegs"])
        return sent, again


def by_environment(enter: Path) -> dict[str, str]:
    """What has any mpirun, started by another program, reach the hosts of a cluster by its `Cluster.entrance`."""
    return FOR_OPEN_MPI | {name: value.format(enter=enter) for name, value in BY_ENVIRONMENT.items()}


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Nobody else works on the cluster of that name meanwhile."""
    with open(f"/run/istmpi-{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting: another emulated cluster has the name {name}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _ignore_dead() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        pass


def _launcher() -> str:
    """The words for this mpirun, with fields; empty for one that is not known."""
    version = _output("mpirun", "--version").lower() if shutil.which("mpirun") else ""
    return next((words for name, words in LAUNCHERS.items() if name in version), "")


def _output(*command: str) -> str:
    return _do(*command).stdout


def _do(*command: str) -> subprocess.CompletedProcess:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OutputError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done


def obstacle() -> str:
    """Why there can be no emulated cluster on this machine, with what would help; empty where there can be one."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces are made: it needs Linux and root. Try: sudo -E env PATH=$PATH"
    for tool, package in {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "taskset": "util-linux"}.items():
        if shutil.which(tool) is None:
            return f"it needs the program {tool}. Install the package {package}."
    if not _launcher():
        return "it needs the mpirun of MPICH or Open MPI on the PATH. Activate its environment or load its module."
    name = f"istmpi-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return "network namespaces are not allowed here. Use a machine, or a container, in which they are."
    _do("ip", "netns", "delete", name)
    return ""
