"""The peak of memory of a leader and of another member of a replica group of two, beside the plan.

python -m benchmarks.group_memory
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.reporting import report
from benchmarks.scale.memory import status
from istmpi.cli.main import main as istmpi
from istmpi.cost.counts import Memory

WIDE = ("--hidden", "4096,4096", "--optimizer")
RUNS = {
    "ist, SGD": [*WIDE, "sgd", "--method", "ist"],
    "ist, Adam": [*WIDE, "adam", "--method", "ist"],
    "local SGD, Adam": [*WIDE, "adam", "--method", "local-sgd"],
    "SparseLoCo, AdamW": ["--hidden", "2048,2048", "--optimizer", "adamw", "--method", "sparse-loco"],
}
COMMON = ["train", "digits", "--group-size", "2", "--rounds", "2", "--local-steps", "5", "--lr", "0.001"]
ROLES = ("leader", "member")
NOTE = """One group of two processes; MB. The peak is the kernel's VmHWM at the end. The C library returns freed blocks
to the system (`MALLOC_MMAP_THRESHOLD_=65536`); by its default it keeps some, and peaks are larger."""


def train(folder: str, words: list[str]) -> None:
    """Train as ``words`` say, and write this process's peak in MB into ``folder``."""
    try:
        sys.argv = ["istmpi", *words]
        istmpi()
    finally:
        (Path(folder) / os.environ["PMI_RANK"]).write_text(str(status("VmHWM")))


def measure(words: list[str]) -> list[float]:
    """Return the peaks of a leader and of another member, in MB."""
    with tempfile.TemporaryDirectory() as name:
        command = ["mpirun", "-n", "2", sys.executable, "-m", "benchmarks.group_memory", name, *words]
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
        subprocess.run([*command, "-q", "--out", f"{name}/run"], check=True, env=environment)
        return [float((Path(name) / str(process)).read_text()) for process in range(len(ROLES))]


def main() -> None:
    rows = []
    for name, settings in RUNS.items():
        words = [*COMMON, *settings]
        plan = ["istmpi", *words, "--dry-run", "--json", "--ranks", "1"]
        planned = json.loads(subprocess.run(plan, check=True, capture_output=True).stdout)["group"]
        row: dict[str, object] = {"run": name}
        for role, peak in zip(ROLES, measure(words), strict=True):
            megabytes = Memory(**planned[role]).total / 1e6
            row |= {
                role: f"{peak:.0f}",
                f"{role}, planned": f"{megabytes:.0f}",
                f"{role} / plan": f"{peak / megabytes:.2f}",
            }
        rows.append(row)
    report("groups-memory", "Memory of the members of a replica group", rows, NOTE)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1], sys.argv[2:])
    else:
        main()
