"""Thousands of simulated schedules of small runs, all methods on 2 to 8 ranks: does any of them come to another end?

    python -m benchmarks.campaigns.schedules --schedules 10000
    python -m benchmarks.campaigns.schedules --minutes 30  # as many as there is time for

Each seed draws a method, a number of ranks and what befalls them (`istmpi.simulated`): always delays, often a rank
that stands still or is slow, at times one that is killed. The law (`istmpi.simulated.schedules`): the run ends with the
bits of the undisturbed one; where a rank was killed, the run that goes on from its checkpoints does. A seed is repeated
by ``--seed S --schedules 1``. Seeds are spread over ``--jobs`` processes, a core each.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from benchmarks.processes import worker_processes
from benchmarks.reporting import report
from istmpi.config import Run
from istmpi.environment import list_cores
from istmpi.simulated import DELAYS, KILLS, KINDS, SLOW, STOPS
from istmpi.simulated.schedules import Schedule, Schedules

SMALL = {
    "model.hidden": [24, 16],
    "method.local_steps": 2,
    "optimizer.lr": 0.1,
    "train.rounds": 2,
    "train.batch": 8,
    "train.threads": 1,
    "train.device": "cpu",
    "evaluate.every": 1000,
}
MOMENTUM = {"optimizer.momentum": 0.9, "optimizer.lr": 0.03}
CONVOLUTIONS = str(Path(__file__).parents[2] / "examples" / "convnet.py") + ":ConvNet"
RUNS = {
    "ist": {},
    "ist, a tenth redealt": {"method.redeal": 0.1, "train.rounds": 3},
    "ist, an outer step": {"method.outer_momentum": 0.6, "method.outer_lr": 0.8},
    "ist, state carried": {"method.optimizer_state": "carry", "method.redeal": 0.5, **MOMENTUM},
    "ist, dropout": {"model.dropout": 0.3},
    "ist, a finish": {"method.finish": "local-sgd:50%", **MOMENTUM},
    "local-sgd": {"method.name": "local-sgd"},
    "data-parallel": {"method.name": "data-parallel"},
    "diloco": {"method.name": "diloco"},
    "fedavg": {"method.name": "fedavg", "method.fraction": 0.5, "train.batch": 100},
    "dynamic-averaging": {"method.name": "dynamic-averaging", "method.threshold": 0.012},
    "streaming-diloco": {"method.name": "streaming-diloco", "method.local_steps": 6, "method.fragments": 2},
    "sparse-loco": {"method.name": "sparse-loco"},
    "ist, wire of int8": {"model.dtype": "float32", "method.wire": "int8"},
    "codistillation": {"method.name": "codistillation", "method.burn_in": 1},
    "joint": {"method.name": "joint", "method.local_steps": 3, **MOMENTUM},
    "joint, a step a round": {"method.name": "joint", "method.local_steps": 1, "train.rounds": 5},
    "admm": {"method.name": "admm"},
    "easgd": {"method.name": "easgd"},
    "easgd, round-robin": {"method.name": "easgd", "method.order": "round-robin"},
    "downpour": {"method.name": "downpour"},
    "ist, convolutions": {"model.name": CONVOLUTIONS, "model.channels": [8, 16], "model.hidden": 16},
}
RANKS = (2, 2, 3, 3, 4, 5, 6, 7, 8)
DRAWN = (DELAYS, STOPS, STOPS, SLOW, SLOW, KILLS)


class Tried:
    """What came of the schedules of one method."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.ranks: set[int] = set()
        self.schedules = self.switches = self.messages = 0
        self.seconds = self.virtual = 0.0
        self.findings: list[str] = []

    @staticmethod
    def of(schedule: Schedule, ranks: int, seconds: float) -> "Tried":
        """One schedule's, which took so many seconds of wall-clock time."""
        one = Tried()
        one.schedules, one.seconds, one.ranks = 1, seconds, {ranks}
        one.kinds.update(schedule.kinds)
        one.switches = sum(outcome.switches for outcome in schedule.outcomes)
        one.messages = sum(outcome.messages["messages"] for outcome in schedule.outcomes)
        one.virtual = sum(outcome.seconds for outcome in schedule.outcomes)
        if schedule.finding:
            one.findings = [f"seed {schedule.seed}, {ranks} ranks ({schedule.faults}): {schedule.finding}"]
        return one

    def add(self, other: "Tried") -> None:
        self.kinds.update(other.kinds)
        self.ranks |= other.ranks
        self.schedules, self.switches = self.schedules + other.schedules, self.switches + other.switches
        self.messages, self.seconds = self.messages + other.messages, self.seconds + other.seconds
        self.virtual, self.findings = self.virtual + other.virtual, self.findings + other.findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first (0)")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many; 0: when all are done (0)")
    parser.add_argument("--jobs", type=int, default=len(list_cores()), help="processes (a core each)")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.schedules)
    jobs = max(1, min(options.jobs, len(seeds)))
    if jobs == 1:
        return gathered(map(tried_by, seeds), options.minutes, jobs)
    with worker_processes(jobs) as processes:
        try:
            return gathered(processes.map(tried_by, seeds), options.minutes, jobs)
        finally:
            processes.shutdown(cancel_futures=True)


def gathered(results: Iterable[tuple[str, Tried]], minutes: float, jobs: int) -> int:
    """Put together what came of each seed, and write it every two minutes and in the end; the exit code."""
    tried = {name: Tried() for name in RUNS}
    begun = kept = time.monotonic()
    for name, one in results:
        tried[name].add(one)
        for finding in one.findings:
            print(f"{name}: {finding}", flush=True)
        now = time.monotonic()
        if minutes and now - begun > 60 * minutes:
            break
        if now - kept > 120:
            kept = now
            told(tried, now - begun, jobs)
    told(tried, time.monotonic() - begun, jobs)
    return int(any(each.findings for each in tried.values()))


def tried_by(seed: int) -> tuple[str, Tried]:
    """Carry out the schedule that a seed draws; the run's name with it."""
    draw = random.Random(f"schedule {seed}")
    name, ranks = draw.choice(list(RUNS)), draw.choice(RANKS)
    schedules, began = schedules_of(name, ranks), time.monotonic()
    (schedule,) = schedules.run([seed])
    return name, Tried.of(schedule, ranks, time.monotonic() - began)


@cache
def schedules_of(name: str, ranks: int) -> Schedules:
    """Those of a run, which has been carried out undisturbed."""
    schedules = Schedules(Run().override(SMALL | RUNS[name]), ranks, DRAWN)
    assert schedules.reached.weights
    return schedules


def told(tried: dict[str, Tried], seconds: float, jobs: int) -> None:
    """Write what there is."""
    rows = [row(name, [each]) for name, each in tried.items()]
    findings = [f"{name}: {finding}" for name, each in tried.items() for finding in each.findings]
    count = sum(each.schedules for each in tried.values())
    processes = "one process" if jobs == 1 else f"{jobs} processes"
    notes = (
        f"{count:,} schedules in {seconds:,.0f} s of wall-clock time, {processes}: {len(findings)} findings. The mlps "
        f"are 64-24-16-10, with two or three rounds of two local steps. The four kinds are how many schedules had such "
        f"a fault; one that lost a rank is two jobs, in a folder with a checkpoint a round."
    )
    notes += "".join(f"\n\n* {finding}" for finding in findings)
    report("schedules", "Simulated schedules", [*rows, row("all", list(tried.values()))], notes)


def row(name: str, those: list[Tried]) -> dict[str, str | int]:
    ranks = sorted(set().union(*(each.ranks for each in those)))
    return {
        "run": name,
        "schedules": sum(each.schedules for each in those),
        "ranks": f"{min(ranks, default=0)} to {max(ranks, default=0)}",
        **{kind: sum(each.kinds[kind] for each in those) for kind in KINDS},
        "messages": sum(each.messages for each in those),
        "switches": sum(each.switches for each in those),
        "virtual s": round(sum(each.virtual for each in those), 2),
        "s": round(sum(each.seconds for each in those)),
        "findings": sum(len(each.findings) for each in those),
    }


if __name__ == "__main__":
    sys.exit(main())
