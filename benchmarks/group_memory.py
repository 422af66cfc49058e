"""The peak of memory of a leader and of another member of a replica group of two, beside the plan.

python -m benchmarks.group_memory
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.reporting import report
from benchmarks.scale.memory import watching
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
NOTE = """One group of two processes; MB. The peak of resident memory is the kernel's. The C library returns freed
blocks to the system (`MALLOC_MMAP_THRESHOLD_=65536`); by its default it keeps some, and peaks are larger."""


def measure(words: list[str]) -> list[float]:
    """Return the peaks of a leader and of another member, in MB."""
    with tempfile.TemporaryDirectory() as name:
        peaks = Path(name) / "peaks"
        peaks.mkdir()
        command = ["mpirun", "-n", "2", *watching(peaks), "istmpi", *words, "-q", "--out", f"{name}/run"]
        subprocess.run(command, check=True, env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"})
        return [int((peaks / str(process)).read_text()) / 1e6 for process in range(len(ROLES))]


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
    main()
