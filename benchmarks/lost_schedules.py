"""Ranks lost on simulated ranks while the others go on (``schedules.py --lost``): is all left that should be?

A rank is lost at every MPI call of a small run of three ranks, before it does anything or with its part posted; of
five a further one at every call with which the others recover, and a little beyond, of some losses; drawn ones of eight
ranks, of each method that goes on without one; and the network splits at drawn calls, once or twice. Each is another
schedule. The law and its oracle: `tests/support/lost_ranks.py`.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from reporting import report

from istmpi.comm.simulated import Kill, Split
from istmpi.config import Run
from istmpi.methods import METHODS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from lost_ranks import IN_TIME, Survived

SMALL = {
    "model.hidden": [13, 11],
    "model.dtype": "float64",
    "method.local_steps": 2,
    "optimizer.lr": 0.1,
    "train.rounds": 3,
    "train.batch": 8,
    "train.seed": 5,
    "train.threads": 1,
    "train.device": "cpu",
    "evaluate.every": 1,
}
MOMENTUM = {"optimizer.momentum": 0.9, "optimizer.lr": 0.01}
RUNS = {
    "ist": {},
    "ist, part redealt, state carried": {"method.redeal": 0.5, "method.optimizer_state": "carry", **MOMENTUM},
    "ist, one group dealt": {"method.partition": ["hidden2"]},
    **{name: {"method.name": name} for name, spec in METHODS.items() if spec.survives and name != "ist"},
}
BEYOND = 30
"""Calls behind a recovery at which a further rank is lost, too."""

Lost = tuple[str, str, int, list[Kill], list[Split], int]
"""Part of the table, run, ranks, who is lost at which calls, who is cut off, seed."""


class Losses:
    """All of them, each with the oracle of its run."""

    def __init__(self) -> None:
        self.oracles: dict[tuple[str, int], Survived] = {}

    def of(self, name: str, ranks: int) -> Survived:
        if (name, ranks) not in self.oracles:
            self.oracles[name, ranks] = Survived(Run().override(SMALL | RUNS[name]), ranks)
        return self.oracles[name, ranks]

    def any_call(self) -> Iterator[Lost]:
        calls = self.of("ist", 3).calls
        every = [(rank, call) for rank in range(3) for call in range(1, calls[rank] + 1)]
        random.Random("every call").shuffle(every)  # what there is no time for is missing everywhere
        for number, (rank, call) in enumerate(every):
            yield "one of 3, every call", "ist", 3, [Kill(rank, call, bool(number % 2))], [], number

    def recovering(self) -> Iterator[Lost]:
        every = []
        for number, call in enumerate((210, 260, 310, 360, 410)):
            first = Kill(number, call)
            for rank, (begins, ends) in self.of("ist", 5).recovery(first, call).items():
                every += [(first, rank, then) for then in range(begins, ends + BEYOND)]
        random.Random("every call").shuffle(every)
        for number, (first, rank, then) in enumerate(every):
            kills = [first, Kill(rank, then, bool(number % 2))]
            yield "a second of 5 in recovery", "ist", 5, kills, [], first.call

    def drawn(self) -> Iterator[Lost]:
        for seed in range(10**6):
            draw = random.Random(f"lost {seed}")
            name = draw.choice(list(RUNS))
            calls = self.of(name, 8).calls
            who = draw.sample(range(8), draw.choice((1, 1, 2)))
            first = draw.randrange(1, calls[who[0]] + 1)
            places = [first, first + draw.randrange(200)]
            kills = [Kill(rank, place, draw.random() < 0.5) for rank, place in zip(who, places)]
            yield f"{len(who)} of 8, drawn", name, 8, kills, [], seed

    def split(self) -> Iterator[Lost]:
        for seed in range(10**6):
            draw = random.Random(f"split {seed}")
            name, ranks = draw.choice([("ist", 5), (draw.choice(list(RUNS)), 8)])
            call = draw.randrange(1, min(self.of(name, ranks).calls) + 1)
            splits = [
                Split(draw.sample(range(ranks), draw.randrange(1, ranks)), draw.randrange(ranks), call + later)
                for later in draw.choice(([0], [0, draw.randrange(200)]))
            ]
            yield "a network split, drawn", name, ranks, [], splits, seed


def lost(minutes: float) -> int:
    """Try each for its share of so many minutes, 0 for all and as many drawn ones as the rest; write what there is."""
    all_losses, tried, findings, begun = Losses(), {}, [], time.monotonic()
    parts = all_losses.any_call, all_losses.recovering, all_losses.drawn, all_losses.split
    for place, part in enumerate(parts):
        for count, (title, name, ranks, kills, splits, seed) in enumerate(part()):
            oracle, at = all_losses.of(name, ranks), time.monotonic()
            before = Counter(oracle.seen)
            try:
                finding = oracle.finding(kills, seed, splits=splits)
            except Exception as error:
                finding = f"{type(error).__name__}: {error}"
            seen, spent = tried.setdefault(title, (Counter(), []))
            seen.update(oracle.seen - before)
            spent.append(time.monotonic() - at)
            if finding:
                findings.append(f"{title}, {name}, seed {seed}, {[*kills, *splits]}: {finding}")
                print(findings[-1], flush=True)
            ended = minutes and time.monotonic() - begun > 60 * minutes * (place + 1) / len(parts)
            if ended or (not minutes and part in parts[2:] and count >= 1000):
                break
        told(tried, findings, time.monotonic() - begun)
    return int(bool(findings))


def told(tried: dict[str, tuple[Counter[str], list[float]]], findings: list[str], seconds: float) -> None:
    """Write what there is."""
    cases = [IN_TIME, *sorted({case for seen, _ in tried.values() for case in seen} - {IN_TIME})]
    rows = [
        {"lost": title, "schedules": len(spent), **{case: seen[case] for case in cases}, "s": round(sum(spent))}
        for title, (seen, spent) in tried.items()
    ]
    count = sum(len(spent) for _, spent in tried.values())
    notes = (
        f"{count:,} schedules with lost ranks in {seconds:,.0f} s of wall-clock time, one process: {len(findings)} "
        f"findings. The mlps are 64-13-11-10, with three rounds of two local steps, a checkpoint and an evaluation a "
        f"round. The columns say what was going on; whoever was lost in set-up ended the job, in one line."
    )
    notes += "".join(f"\n\n* {finding}" for finding in findings)
    report("lost_schedules", "Ranks lost in simulated schedules", rows, notes)
