"""A SLURM cluster of several nodes on this host, for tests: slurmctld and one slurmd a node, all in one folder.

Needs Debian's slurm-wlm (22.05 or later) and root. Nothing of an installed SLURM's configuration is read or written.
"""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from following import lines
from patience import Limit, patient

CONFIGURATION = """
ClusterName=istmpi
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=pmi2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SchedulerType=sched/builtin
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ReturnToService=2
KillWait=5
MinJobAge=3600
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed
{nodes}
PartitionName=test Nodes=n[1-{count}] Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """``with Cluster(folder) as cluster``: nodes n1, n2, ... are up inside, and nothing of it is left after."""

    def __init__(self, folder: Path, nodes: int = 4):
        self.folder = folder
        self.nodes = nodes
        self._daemons: dict[str, subprocess.Popen] = {}
        """By the name of the node; that of slurmctld has none."""
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> "Cluster":
        with ExitStack() as sockets:  # all at once, so that no port is given twice
            ports = []
            for _ in range(self.nodes + 1):
                opened = sockets.enter_context(socket.socket())
                opened.bind(("127.0.0.1", 0))
                ports.append(opened.getsockname()[1])
        cores = os.cpu_count() or 1
        nodes = "\n".join(
            f"NodeName=n{number} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs={cores} "
            f"RealMemory=1000 State=UNKNOWN"
            for number, port in enumerate(ports[1:], start=1)
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir()
        text = CONFIGURATION.format(
            folder=self.folder, host=socket.gethostname(), control=ports[0], nodes=nodes, count=self.nodes
        )
        (self.folder / "slurm.conf").write_text(text)
        try:
            self._start("", "slurmctld", "-D")
            for number in range(1, self.nodes + 1):
                self.start_node(f"n{number}")
            self._wait_for_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._daemons:
            self.command("scancel", "--state=RUNNING", "--state=PENDING", check=False)
            limit = Limit(15)
            while self.command("squeue", "-h", check=False).strip() and limit.left:
                time.sleep(0.2)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(patient(10))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()

    def command(self, *words: str, check: bool = True, **settings) -> str:
        """What a SLURM command prints."""
        done = subprocess.run(
            list(map(str, words)), env=self.environment, capture_output=True, text=True, timeout=patient(60), **settings
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")
        return done.stdout

    def start_node(self, node: str) -> None:
        """Start the daemon of a node, at first or again."""
        self._start(node, "slurmd", "-D", "-N", node)

    def lose_node(self, node: str) -> None:
        """Kill all that runs on a node at once: its daemon, the steps that it started, and their processes."""
        self._daemons[node].kill()
        self._daemons.pop(node).wait()
        mark = f"SLURMD_NODENAME={node}\0".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # gone meanwhile
                if mark in (folder / "environ").read_bytes():
                    parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                    if Path("/proc", parent, "comm").read_text().startswith("slurmstepd"):
                        os.kill(int(parent), signal.SIGKILL)
                    os.kill(int(folder.name), signal.SIGKILL)

    def _start(self, name: str, *words: str) -> None:
        program = shutil.which(words[0], path=os.environ["PATH"] + ":/usr/sbin")
        with (self.folder / f"{words[-1]}.out").open("w") as output:
            daemon = subprocess.Popen([program, *words[1:]], env=self.environment, stdout=output, stderr=output)
        self._daemons[name] = daemon

    def _wait_for_nodes(self) -> None:
        limit = Limit(30)
        while limit.left:
            states = self.command("sinfo", "--noheader", "--Node", "--format=%t", check=False).split()
            if states == ["idle"] * self.nodes:
                return
            time.sleep(0.2)
        logs = "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))
        raise RuntimeError(f"the SLURM cluster did not come up:\n{logs}")


OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
"""States in which a job stays."""


class Job:
    """A submitted job: waits for it, disturbs it, reads what it printed."""

    def __init__(self, cluster: Cluster, number: str, log: Path):
        self.cluster, self.number, self.log = cluster, number, log

    @property
    def facts(self) -> dict[str, str]:
        words = shlex.split(self.cluster.command("scontrol", "show", "job", "-o", self.number).splitlines()[0])
        return dict(word.split("=", 1) for word in words if "=" in word)

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_until(self, condition, what: str, seconds: float = 180) -> None:
        """Until a condition holds; a job that waits to begin again does so at once instead of after two minutes."""
        limit = Limit(seconds)
        while not condition():
            facts = self.facts
            if facts["JobState"] == "PENDING" and facts.get("Reason") == "BeginTime":
                # The nodes refuse credentials as old as the end of the last attempt, counted in whole seconds.
                time.sleep(3)
                self.cluster.command("scontrol", "update", f"JobId={self.number}", "StartTime=now", check=False)
            over = facts["JobState"] in OVER
            if not limit.left or (over and not condition()):
                raise AssertionError(f"not seen: {what}; the job is {facts['JobState']}\n{self.output}")
            time.sleep(0.2)

    def end(self, seconds: float = 180) -> str:
        """The state in which it ended."""
        self.wait_until(lambda: self.facts["JobState"] in OVER, "the end of the job", seconds)
        return self.facts["JobState"]

    @property
    def restarts(self) -> int:
        return int(self.facts["Restarts"])


RUN = ("digits", "--hidden", "64,64", "--rounds", "60", "--threads", "1", "--evaluate-every", "60")
"""A run that takes some seconds; the same in all tests, so that they all must end with its weights."""


def rounds(folder: Path) -> int:
    """Rounds that a run has done so far, as its metrics tell."""
    return max((line["round"] for line in lines(folder)), default=0)
