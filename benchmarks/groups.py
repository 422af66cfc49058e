"""Seconds of a local step of a replica group of two processes, beside a rank with two threads, on two cores.

    python -m benchmarks.groups             (--quick: the first network alone, with batches of 32)

A figure is the median over turns of the fastest round after the first. A profile tells when the
all-reduce of each bucket of gradients begins in a backward pass.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import truediv
from pathlib import Path
from statistics import median

import torch

from benchmarks.reporting import report, table
from istmpi.comm import Communicator, world
from istmpi.config import Run
from istmpi.data.prepare import prepare
from istmpi.engine import replica_group
from istmpi.engine.replica_group import ReplicaGroup
from istmpi.training.run import run_training

BATCHES = (32, 128, 512)
STEPS = 10
ROUNDS = 4
NETWORKS = {
    "mlp 64-1024-1024-10": {"model.name": "mlp", "model.hidden": [1024, 1024], "model.norm": "layer"},
    "resnet of 32 and 64 channels": {
        "model.name": "resnet",
        "model.blocks": [1, 1],
        "model.channels": [32, 64],
        "model.inner": [32, 64],
    },
    "decoder of 2 layers, 32 tokens": {
        "model.name": "transformer",
        "model.layers": 2,
        "model.embed": 64,
        "model.heads": [4, 4],
        "model.head_dim": 16,
        "model.hidden": [256, 256],
        "data.length": 32,
        "optimizer.name": "adamw",
    },
}
WIDE = {**NETWORKS["mlp 64-1024-1024-10"], "model.hidden": [2048] * 3}
PROFILED = {"mlp 64-2048-2048-2048-10": WIDE, **NETWORKS}
BATCH = 128
"""The batch of a profile."""
TURNS = 4
KINDS = {"a rank": (1, 1), "a group": (2, 2), "two ranks": (2, 1)}
"""Processes, and the size of their groups. Two ranks, which average nothing, are the control."""
NOTES = """Two cores: members have a thread each, and average gradients with MPI through shared memory.
A figure is the median over four turns of the fastest of three rounds of five or ten local steps; a ratio is the median
of those of the turns. Local SGD, one group or one rank, single precision. An all-reduce is that of all gradients in a
step with a batch of 128, on the member that comes last, which does not wait for the other's gradients.
NCCL, GPUs and sockets were never timed. A backward pass of the leader, with batches of 128, in milliseconds
from its beginning, medians of 20 steps. PyTorch begins a bucket's all-reduce when its last gradient is there, so that
of the last bucket begins as computing ends. The backward pass waits for each all-reduce on CPUs."""
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")


@dataclass
class Backward:
    """The instants of a backward pass."""

    begins: float = field(default_factory=time.perf_counter)
    buckets: list[float] = field(default_factory=list)
    """The beginnings of the all-reduces."""
    averaging: float = 0.0
    """Seconds of all all-reduces."""
    returns: float = 0.0


class Watch:
    """Notes backward passes of a group."""

    passes: list[Backward]

    def __init__(self) -> None:
        self._wrap = ReplicaGroup.wrap
        self._average_bucket = replica_group.average_bucket
        self._averaging = ReplicaGroup.averaging
        watch = self

        def wrap(group: ReplicaGroup, network: torch.nn.Module, may_skip: bool) -> torch.nn.Module:
            watch.passes = []
            return watch._wrap(group, network, may_skip)

        @contextmanager
        def averaging(group: ReplicaGroup) -> Iterator[None]:
            watch.passes.append(Backward())
            with watch._averaging(group):
                yield
            watch.passes[-1].returns = time.perf_counter()

        ReplicaGroup.wrap = wrap
        ReplicaGroup.averaging = averaging
        replica_group.average_bucket = self._note_bucket

    def _note_bucket(
        self, members: Communicator, bucket: torch.distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        begin = time.perf_counter()
        averaged = self._average_bucket(members, bucket)
        self.passes[-1].buckets.append(begin)
        self.passes[-1].averaging += time.perf_counter() - begin
        return averaged

    def time_all_reduces(self) -> float:
        """Return the seconds of a step's all-reduces, of the member that comes last and waits least. Collective."""
        by_member = world().allgather([each.averaging for each in self.passes[STEPS:]])
        return median(map(min, zip(*by_member, strict=True)))

    def describe(self, name: str) -> dict[str, str | int]:
        """Return the row of a network."""
        passes = self.passes[STEPS:]

        def milliseconds(instants: Sequence[float]) -> str:
            since = [instant - each.begins for instant, each in zip(instants, passes, strict=True)]
            return f"{1000 * median(since):.2f}"

        return {
            "network": name,
            "buckets": len(passes[0].buckets),
            "first all-reduce begins": milliseconds([each.buckets[0] for each in passes]),
            "last begins": milliseconds([each.buckets[-1] for each in passes]),
            "backward returns": milliseconds([each.returns for each in passes]),
        }


def train(name: str, batch: int, group_size: int, folder: Path, rounds: int) -> list[float]:
    """Return the seconds of a step in each round after the first, on rank 0. Collective."""
    settings = PROFILED[name]
    steps = STEPS if batch <= BATCH else STEPS // 2
    out = folder / f"{name}-{batch}-{rounds}"
    run = Run().override(
        {
            "method.name": "local-sgd",
            "method.local_steps": steps,
            "train.rounds": rounds,
            "train.batch": batch * group_size // world().size,
            "train.group_size": group_size,
            "train.threads": 2 // world().size,
            "evaluate.every": 1000,
            "output.folder": str(out),
            **({"data.source": str(folder.parent / "text.h5")} if "data.length" in settings else {}),
            **settings,
        }
    )
    run_training(run, world())
    if world().rank:
        return []
    _, *later = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line["compute_seconds"] / steps for line in later]


def measure(folder: Path, group_size: int, networks: int, batches: Sequence[int]) -> None:
    """Write the seconds of steps by network and batch, and the profiles of a group. Collective.

    The data are beside ``folder``. ``networks``: the number of those that are measured, the first ones.
    """
    seconds = {}
    for name in list(NETWORKS)[:networks]:
        for batch in batches:
            seconds[f"{name}, {batch}"] = train(name, batch, group_size, folder, ROUNDS)
    profiles = {}
    all_reduces = {}
    if group_size > 1:
        watch = Watch()
        for name in list(PROFILED)[: networks + 1]:
            train(name, BATCH, group_size, folder, ROUNDS - 1)
            profiles[name] = watch.describe(name)
            all_reduces[name] = watch.time_all_reduces()
    if world().rank == 0:
        figures = {"seconds": seconds, "profiles": profiles, "all-reduces": all_reduces}
        (folder / "figures.json").write_text(json.dumps(figures))


def _describe_ratio(seconds: Sequence[float], others: Sequence[float]) -> str:
    """Return the median over turns of the seconds beside the others' in the same turn."""
    return f"{median(map(truediv, seconds, others)):.2f}"


def main() -> None:
    if len(sys.argv) > 2:
        folder, *numbers = sys.argv[1:]
        group_size, networks, *batches = map(int, numbers)
        measure(Path(folder), group_size, networks, batches)
        return
    quick = "--quick" in sys.argv
    numbers = [1, BATCHES[0]] if quick else [len(NETWORKS), *BATCHES]
    steps: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "documents").mkdir()
        text = " ".join(WORDS[place * place % 5] for place in range(4_000))
        for number in range(4):
            (folder / "documents" / f"{number}.txt").write_text(text)
        prepare("text", folder / "documents", folder / "text.h5")
        for turn, kind in itertools.product(range(TURNS), KINDS):
            processes, group_size = KINDS[kind]
            place = folder / f"{turn}-{kind}"
            place.mkdir()
            command = ["mpirun", "-n", str(processes), sys.executable, "-m", "benchmarks.groups", str(place)]
            subprocess.run([*command, str(group_size), *map(str, numbers)], check=True)
            figures = json.loads((place / "figures.json").read_text())
            for case, seconds in figures["seconds"].items():
                # The fastest round of each turn.
                steps.setdefault(case, {kind: [] for kind in KINDS})[kind].append(min(seconds))
            if figures["profiles"]:
                profiled = figures
    rows = []
    for case, by_kind in steps.items():
        alone, together, apart = by_kind.values()
        all_reduce = profiled["all-reduces"][case.rpartition(",")[0]]
        rows.append(
            {
                "network, batch": case,
                "a rank, ms a step": f"{1000 * median(alone):.2f}",
                "a group of two": f"{1000 * median(together):.2f}",
                "two ranks, half a batch each": f"{1000 * median(apart):.2f}",
                "group / rank": _describe_ratio(together, alone),
                "group / two ranks": _describe_ratio(together, apart),
                "all-reduce, ms": f"{1000 * all_reduce:.2f}",
                "of the step": f"{all_reduce / median(together):.0%}",
            }
        )
    title = "A local step of a replica group of two processes, beside a rank with two threads"
    report("groups", title, rows, f"{NOTES}\n\n{table(list(profiled['profiles'].values()))}")


if __name__ == "__main__":
    main()
