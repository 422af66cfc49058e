"""Kills runs again and again, lets the same command go on, and compares what comes out with an uninterrupted run.

    python -m benchmarks.campaigns kill --minutes 30 --seed 1
    python -m benchmarks.campaigns kill --kills 300 --seed 1
    MPIRUN=/usr/bin/mpirun python -m benchmarks.campaigns kill --kills 50 --ranks 3 --minutes 20
    python -m benchmarks.campaigns kill --kills 60 --private-disks          (needs root, for mounts)
    python -m benchmarks.campaigns kill --kills 30 --ranks 4 --group-size 2 --hosts 2   (needs root, for networks)

A run is drawn from the seed: method, optimizer, what is carried, arithmetic, normalisation, writer. One rank or all
get SIGKILL as it starts or resumes, while a checkpoint is written, while it trains or evaluates, and as it ends. What
has to hold: the same command goes on and says nothing of damage, no checkpoint that was there is lost, nothing is left
behind, and every weight and every slot of the optimizer equals the one of an undisturbed run, bit for bit.
"""

import argparse
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import h5py

from benchmarks.campaigns.job import SECONDS_TO_START, Job, rounds_of, wait_until
from benchmarks.campaigns.libraries import WRITERS, libraries
from benchmarks.emulated import FOR_OPEN_MPI, Cluster, alone
from benchmarks.reporting import HERE, report
from istmpi.config.methods import METHODS
from istmpi.config.spec import KEEP

KILLS_OF_A_RUN = 8
MOMENTS = ("starting", "training", "writing", "ending")
"""Drawn for each kill; evaluations fall into training. The last kills of a run come at its end."""
EXITS = {
    "model.name": "resnet",
    "model.blocks": [1, 1],
    "model.channels": [4, 6],
    "model.inner": [4, 6],
    "model.exits": [1],
}
"""A network of two exits; its settings replace those of the mlp."""
SHARE_OF_EXITS = 0.3
"""Of the runs that may have exits."""
LAST_ROUNDS = 6
"""Trained once a run has been killed often enough."""
NO_GROUPS = ("codistillation", "joint")
"""Methods that do not train in replica groups."""
MANY = 10**5
"""No campaign has time for more."""
SECONDS_TO_END = 120
"""After a kill."""
PRIVATE = """
own=$0-${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
mkdir -p "$own" && mount --bind "$own" "$0" && exec "$@"
"""
"""Lets a rank see its own folder at the place of a common one."""


@dataclass
class Case:
    """A run as it was drawn."""

    number: int
    settings: dict[str, object]
    ranks: int
    folder: Path
    kills: Counter = field(default_factory=Counter)
    killed: list = field(default_factory=list)  # the processes of each kill, of which some lead replica groups
    rounds: int = 0
    findings: list[str] = field(default_factory=list)
    private: bool = False
    """Each rank has a disk of its own at the place of the folder."""

    @property
    def out(self) -> Path:
        """The run's folder as rank 0 sees it, for a look from outside."""
        return self.folder / ("disk-0" if self.private else "") / "run"

    def start(self, out: Path, rounds: int) -> Job:
        """Start the run, or an uninterrupted one, which has one disk."""
        command = self.command(out, rounds)
        if self.private and out == self.out:
            (self.folder / "disk").mkdir(exist_ok=True)
            command = self.command(self.folder / "disk/run", rounds)
            command = ["unshare", "--mount", "sh", "-c", PRIVATE, str(self.folder / "disk"), *command]
        return Job(self.folder, self.ranks, command)

    def command(self, out: Path, rounds: int) -> list[str]:
        """The command that starts this run and goes on with it."""
        settings = {"train.rounds": rounds, "output.folder": str(out), **self.settings}
        sets = [part for name, value in settings.items() for part in ("--set", f"{name}={json.dumps(value)}")]
        return ["istmpi", "train", "--resume", "auto", *sets]


def draw(
    chance: random.Random, number: int, writers: Sequence[str] = WRITERS, ranks: int = 1, members: int = 1
) -> dict[str, object]:
    """The settings of a run on ``ranks`` ranks, each of some members: methods take turns, the rest is drawn."""
    methods = [name for name in METHODS if members == 1 or name not in NO_GROUPS]
    method = methods[number % len(methods)]
    every = chance.choice([1, 2, 3])
    settings = {
        "method.name": method,
        "method.local_steps": (local_steps := chance.choice([1, 3, 5])),
        "method.passes": chance.choice([1, local_steps]),
        "method.optimizer_state": chance.choice(["reset", "carry", *["keep"] * (KEEP in METHODS[method].states)]),
        "method.redeal": chance.choice([1.0, 0.3]),
        "method.burn_in": chance.choice([0, 4]),
        "method.staleness": chance.choice([1, 3]),
        "optimizer.name": chance.choice(["sgd", "adam", "adamw"]),
        "optimizer.lr": 0.003,
        "optimizer.warm_up": chance.choice([0, 4]),
        "model.hidden": chance.choice([[24], [14, 11], [64, 48]]),
        "model.norm": chance.choice(["batch", "layer", "none"]),
        "model.dropout": chance.choice([0.0, 0.3]),
        "model.bias": chance.random() < 0.5,
        "model.dtype": chance.choice(["float32", "float64"]),
        "train.batch": chance.choice([8, 32]),
        "train.seed": chance.randrange(2**63),
        "evaluate.every": chance.choice([1, 3, 1000]),
        "evaluate.calibration_examples": 64,
        "checkpoint.every": every,
        "checkpoint.keep": chance.choice([1, 2, 3]),
        "checkpoint.writer": chance.choice(writers),
        "checkpoint.wait": chance.random() < 0.3,
    }
    if settings["optimizer.name"] == "sgd":
        settings["optimizer.momentum"] = chance.choice([0.0, 0.9])
    if settings["model.dtype"] == "float32":
        settings["train.autocast"] = chance.random() < 0.5
    if method in ("ist", "local-sgd", "diloco") and chance.random() < 0.5:
        settings |= {"method.outer_momentum": 0.5, "method.outer_lr": 0.8}
    if method == "fedavg":
        settings |= {"train.batch": 200, "method.fraction": chance.choice([0.6, 1.0])}
        if members > 1:
            settings["model.norm"] = "layer"
    if method == "dynamic-averaging":
        settings["method.threshold"] = chance.choice([0.0, 0.002, 1.0])
    if method == "ist" and ranks % 2 == 0:
        settings["method.holders"] = chance.choice([1, 2])
    if method != "joint":
        settings["data.placement"] = chance.choice(["shared", "sharded", "label-shards"])
        if chance.random() < SHARE_OF_EXITS:
            settings = with_exits(settings, chance)
    if members > 1:
        settings["train.group_size"] = members
    read = {f"method.{name}" for name in METHODS[method].reads}
    return {name: value for name, value in settings.items() if name in read or not name.startswith("method.")}


def with_exits(settings: dict[str, object], chance: random.Random) -> dict[str, object]:
    """The settings with a network of two exits in place of the mlp."""
    of_mlp = ("hidden", "norm", "dropout", "bias")
    others = {name: value for name, value in settings.items() if name not in {f"model.{word}" for word in of_mlp}}
    return others | EXITS | {"train.exit_weights": chance.choice([[], [0.3, 1.0]])}


# ---- one run through its kills


def newest(out: Path) -> str:
    """The name of the newest checkpoint."""
    checkpoints = out / "checkpoints"
    names = [path.name for path in (*checkpoints.glob("round-*.h5"), *checkpoints.glob("round-????????"))]
    return max(names, default="")


def being_written(out: Path) -> bool:
    return any((out / "checkpoints").glob(".round-*.tmp"))


def at_its_end(out: Path) -> bool:
    return (out / "network.h5").exists() or any(out.glob(".network.h5.*.tmp"))


def kill_once(case: Case, chance: random.Random, moment: str, start_takes: float) -> float:
    """Start the run, kill ranks at the moment, see how the job ends; returns how long it took to begin to train."""
    out, begun = case.out, time.monotonic()
    had, checkpoint = rounds_of(out), newest(out)
    job = case.start(out, case.rounds if moment == "ending" else 10**6)
    try:
        ranks = job.ranks()
        every = case.settings["checkpoint.every"]
        stamp = (out / "metrics.jsonl").stat().st_mtime_ns if had else 0
        if moment == "starting":
            time.sleep(chance.random() * start_takes)
        elif moment == "ending":
            been_there = at_its_end(out)
            wait_until(lambda: at_its_end(out), job)
            time.sleep(chance.random() * (start_takes if been_there else 1))
        else:
            wait_until(lambda: rounds_of(out) and (out / "metrics.jsonl").stat().st_mtime_ns != stamp, job)
            start_takes = time.monotonic() - begun
            # Two more checkpoints are begun, so that one of them is complete.
            wanted = rounds_of(out) + 2 * every + 1 + chance.randrange(3)
            wait_until(lambda: rounds_of(out) >= wanted, job)
            if moment == "writing":
                wait_until(lambda: being_written(out), job)
            else:
                time.sleep(chance.random() * 0.1)
        case.killed.append([*map(ranks.index, chance.choice([ranks, *([rank] for rank in ranks)]))])
        for rank in [ranks[place] for place in case.killed[-1]]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        code = job.end(SECONDS_TO_END)
    except TimeoutError as error:
        job.kill()
        case.findings.append(f"{moment}: {error}: {job.words}: {job.said[-500:]}")
        return start_takes
    case.kills[moment] += 1
    if newest(out) < checkpoint:
        case.findings.append(f"{moment}: the newest checkpoint was {checkpoint}, and is {newest(out)}")
    check_words(case, job, moment)
    # At its end a run may have been through when it was to be killed.
    if code in (2, 3, 74, 75) or (code == 0 and moment != "ending"):
        case.findings.append(f"{moment}: exit code {code}: {job.words}: {job.said[-500:]}")
    return start_takes


def check_words(case: Case, job: Job, moment: str) -> None:
    """What no job may have to say here."""
    for words in ("Passed over", "set aside", "another run is at work", "cannot be written"):
        # A kill between the names of two parts leaves a round that is not complete.
        if words in job.said and not (case.private and words == "set aside"):
            line = next(line for line in job.said.splitlines() if words in line)
            case.findings.append(f"{moment}: {line[:300]}")


def finish(case: Case, out: Path) -> None:
    """Let the run come to its end."""
    job = case.start(out, case.rounds)
    try:
        code = job.end(SECONDS_TO_START + SECONDS_TO_END)
    except TimeoutError as error:
        code = str(error)
    if code != 0:
        case.findings.append(f"uninterrupted: exit code {code}: {job.words}: {job.said[-500:]}")
    check_words(case, job, "uninterrupted")


def differences(one: Path, other: Path) -> Iterator[str]:
    """The datasets in which two networks differ, checksums left out."""
    with h5py.File(one) as ours, h5py.File(other) as theirs:
        names = [set(), set()]
        for found, file in zip(names, (ours, theirs), strict=True):
            file.visititems(lambda path, item, found=found: found.add(path) if isinstance(item, h5py.Dataset) else None)
        for path in sorted(names[0] ^ names[1]):
            yield f"{path} is in one of them"
        for path in sorted(names[0] & names[1]):
            if ours[path][...].tobytes() != theirs[path][...].tobytes():
                yield f"{path} differs"


def carry_through(case: Case, chance: random.Random, kills: int) -> None:
    """Kill the run so often, let it end, and compare it with an uninterrupted one."""
    out, peace = case.out, case.folder / "peace"
    ending = max(kills // 6, 1)
    start_takes = 5.0
    for moment in [chance.choice(MOMENTS[:3]) for _ in range(kills - ending)]:
        start_takes = kill_once(case, chance, moment, start_takes)
        if case.findings:
            return
    case.rounds = rounds_of(out) + LAST_ROUNDS
    for _ in range(ending):
        kill_once(case, chance, "ending", start_takes)
    finish(case, out)
    finish(case, peace)
    if case.findings:
        return
    case.findings += [f"weights: {line}" for line in differences(out / "network.h5", peace / "network.h5")]
    numbers = [json.loads(line)["round"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    if numbers != list(range(1, case.rounds + 1)):
        case.findings.append(f"metrics: not every round once, 1 to {case.rounds}")
    names = [path.name for path in out.rglob("*")]
    left = [name for name in names if name.startswith((".", "lock")) or (".aside" in name and not case.private)]
    left = [name for name in left if not name.startswith(".lock.json.")]  # a later run removes them
    expected = {"run.toml", "metrics.jsonl", "summary.json", "network.h5", "progress.png"}
    if left or not expected <= {path.name for path in out.iterdir()}:
        case.findings.append(f"left behind: {left}; there: {sorted(path.name for path in out.iterdir())}")


@contextlib.contextmanager
def on_hosts(hosts: int, processes: int) -> Iterator[None]:
    """Let jobs start on emulated ``hosts``, if any."""
    if not hosts:
        yield
        return
    cluster = Cluster("kill")
    with alone("kill"), tempfile.TemporaryDirectory() as folder:
        cluster.up(hosts, "1gbit")
        words = cluster.launcher(Path(folder), processes // hosts)
        os.environ |= {**FOR_OPEN_MPI, "MPIRUN": shlex.join(words)}
        try:
            yield
        finally:
            cluster.down()


def main(arguments: list[str]) -> int:
    """The campaign; 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.campaigns kill", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, help="of all runs together (300; with --minutes as many as there is time)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="after which no further run begins")
    parser.add_argument("--kills-of-a-run", type=int, default=KILLS_OF_A_RUN)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--private-disks", action="store_true", help="a disk of its own for each rank")
    parser.add_argument("--group-size", type=int, default=1, help="processes of a replica group (1)")
    parser.add_argument("--hosts", type=int, default=0, help="emulated hosts, which divide the processes")
    parser.add_argument("--first", type=int, default=0, help="number of the first run: others of the same seed")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER", help="for the table")
    options = parser.parse_args(arguments)
    if options.ranks % (options.hosts or 1) or options.ranks % options.group_size:
        parser.error("--ranks must be a multiple of --hosts and of --group-size")
    kills = options.kills or (MANY if options.minutes else 300)
    begun = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="istmpi-kill-"))

    def run(done: int) -> Case | None:
        """One run, ``done`` kills having been given to others; None when it is too late to begin."""
        if options.minutes and time.monotonic() - begun > 60 * options.minutes:
            return None
        number = options.first + done // options.kills_of_a_run
        chance = random.Random(f"{options.seed} {number}")
        writers = ("auto",) if options.private_disks else WRITERS
        case = Case(
            number,
            draw(chance, number, writers, options.ranks // options.group_size, options.group_size),
            options.ranks,
            place / str(number),
            private=options.private_disks,
        )
        case.folder.mkdir()
        carry_through(case, chance, min(options.kills_of_a_run, kills - done))
        what = "; ".join(case.findings) or "as if nothing had been"
        print(f"run {number}, {case.settings['method.name']}, {case.kills.total()} kills: {what}", flush=True)
        if not case.findings:
            shutil.rmtree(case.folder)
        return case

    with on_hosts(options.hosts, options.ranks), ThreadPoolExecutor(options.jobs) as pool:
        cases = list(filter(None, pool.map(run, range(0, kills, options.kills_of_a_run))))
    found = [case for case in cases if case.findings]
    tell(cases, options)
    if found:
        print(f"benchmarks.campaigns kill: {len(found)} runs with findings; they lie in {place}", file=sys.stderr)
        return 1
    place.rmdir()
    return 0


def counted_writers(cases: list[Case]) -> str:
    """How often each was killed, as in ``direct 160 kills, mpio 144 kills``."""
    kills = Counter()
    for case in cases:
        kills[case.settings["checkpoint.writer"]] += case.kills.total()
    return ", ".join(f"{writer} {count} kills" for writer, count in sorted(kills.items()))


def name_results(options: argparse.Namespace) -> str:
    """Return the name of the table."""
    if options.private_disks:
        return "campaign-kill-private-disks"
    return "campaign-kill-groups" if options.group_size > 1 else "campaign-kill"


def tell(cases: list[Case], options: argparse.Namespace) -> None:
    """A row for each method, and one for all."""
    rows = []
    for name in [*METHODS, "all"]:
        its = [case for case in cases if name in ("all", case.settings["method.name"])]
        kills = sum((case.kills for case in its), Counter())
        row = {"method": name, "runs": len(its), "kills": kills.total()}
        row |= {moment: kills[moment] for moment in MOMENTS}
        rows.append(row | {"rounds": sum(case.rounds for case in its), "findings": sum(len(c.findings) for c in its)})
    kept = "kills", "killed", "findings"
    report(
        name_results(options),
        f"Kills of runs with {options.ranks} processes, and what came of them",
        rows,
        "Each run went on by the same command after every kill. Without findings its network, its optimizer's state "
        "and its calibration are, bit for bit, those of an uninterrupted run. Writers of checkpoints: "
        f"{counted_writers(cases)}. {libraries()}.",
        folder=options.results,
        facts={"cases": [case.settings | {name: vars(case)[name] for name in kept} for case in cases]},
    )
