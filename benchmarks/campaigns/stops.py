"""Stops runs by signals at random instants, lets the same command go on, and compares records with an undisturbed run.

    python -m benchmarks.campaigns stops --stops 440 --seed 1
    python -m benchmarks.campaigns stops --stops 60 --seed 1 --mpirun

A run is drawn from the seed: what `kill` draws, with a validation split, patience, the best checkpoint, schedules and
evaluations of several kinds; every fourth is a program with a loop of its own. On simulated ranks a signal reaches one
rank or all of them at a random look for it, in rounds that are then finished or dropped. With --mpirun it is a real
signal to a rank at a random time. The record (losses, scores, rates, examples), best.h5, network.h5, and the reason and
the score of the end have to equal those of the undisturbed run, bit for bit.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.campaigns.job import SECONDS_TO_START, Job, rounds_of, wait_until
from benchmarks.campaigns.kill import SECONDS_TO_END, differences, draw
from benchmarks.campaigns.libraries import libraries
from benchmarks.reporting import HERE, report

STOPS_OF_A_RUN = 5
TIMES = ("time", "seconds", "bytes", "round_seconds", "save_seconds", "evaluating")
"""Facts of a line of metrics.jsonl that differ between two runs; those that end with _seconds or _bytes, too."""
SLOW = {"method.local_steps": 40, "train.batch": 128, "model.hidden": [256, 256]}
"""For real signals: rounds that take a while."""


@dataclass
class Case:
    """A run as it was drawn."""

    number: int
    settings: dict[str, Any]
    ranks: int
    folder: Path
    own_loop: bool
    stops: Counter = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        return self.stops.total() - self.stops["refused"]

    @property
    def kind(self) -> str:
        return "own loop" if self.own_loop else "patience" if self.settings["train.patience"] else "rounds"


def drawn(seed: int, number: int, place: Path, slow: bool) -> Case:
    """Draw a run and its number of ranks."""
    chance = random.Random(f"stops {seed} {number}")
    settings = draw(chance, number, ["direct"])
    settings |= {
        "train.rounds": chance.choice([5, 8, 13]),
        "train.patience": chance.choice([0, 1, 2, 3]),
        "data.validation": 0.2,
        "checkpoint.best": chance.random() < 0.6,
        "evaluate.every": chance.choice([1, 2, 3]),
        "optimizer.lr": chance.choice([0.003, 0.03, 0.3]),
        "optimizer.warm_up": 0,
        "optimizer.schedule": chance.choice(["constant", "cosine", "linear", "step"]),
        "train.threads": 1,
    }
    settings["method.finish"] = "" if settings["method.name"] == "fedavg" else chance.choice(["", "local-sgd:40%"])
    if slow:
        settings |= {name: value for name, value in SLOW.items() if name in settings}
        settings["train.rounds"] = 12
    own_loop = number % 4 == 3 and settings["method.name"] not in ("codistillation", "fedavg")
    return Case(number, settings, chance.choice([1, 2, 3]), place / str(number), own_loop)


# ---- a program of one's own


def own_loop(settings: dict[str, Any], folder: str, communicator: Any = None) -> None:
    """Train with a loop that evaluates, and ends when its own patience is over."""
    import torch

    import istmpi
    from istmpi.data.sources import open_dataset
    from istmpi.training.watch import Watch

    class Net(torch.nn.Module):
        def __init__(self, hidden: int = 24):
            super().__init__()
            self.a, self.b = torch.nn.Linear(64, hidden), torch.nn.Linear(hidden, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.relu(self.a(x)))

    data = open_dataset("digits")
    sets = {}
    for name, split in data.splits.items():
        batch = split.batch(range(len(split)))
        sets[name] = torch.utils.data.TensorDataset(batch.inputs[0].float().reshape(-1, 64), batch.targets)
    names = ("local_steps", "optimizer_state")
    chosen = {name: settings[f"method.{name}"] for name in names if f"method.{name}" in settings}
    chosen |= {"seed": settings["train.seed"], "checkpoint_every": settings["checkpoint.every"], "threads": 1}
    lr, rounds = settings["optimizer.lr"], settings["train.rounds"]
    job = istmpi.Distributed(
        Net,
        {"hidden": settings["model.hidden"][0]},
        communicator,
        example=sets["train"][:8][0],
        method=settings["method.name"],
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr / 10),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.7),
        **chosen,
    )
    loader = torch.utils.data.DataLoader(sets["train"], batch_size=settings["train.batch"], shuffle=True)
    tests = torch.utils.data.DataLoader(sets["test"], batch_size=100)
    watch = Watch() if communicator else None  # a simulated run prints nothing
    for round in job.rounds(rounds, folder=folder, resume="auto", signals=communicator is None, watch=watch):
        for x, y in round.take(loader):
            round.step(torch.nn.functional.cross_entropy(round.outputs(round.module(x)), y))
        if round.number % settings["evaluate.every"] == 0:
            scores = [line["score"] for line in job.metrics() if "score" in line]
            scores.append(job.evaluate(lambda module, b: (module(b[0]).argmax(1) == b[1]).double().mean(), tests))
            patience = settings["train.patience"]
            if patience and len(scores) - 1 - scores.index(max(scores)) >= patience:
                job.end()


# ---- one run on simulated ranks


def simulated(case: Case, out: Path, stop_at: dict[int, int], drops: bool) -> tuple[str, dict[int, int]]:
    """Run the case until it ends or is stopped; return what its end says, and each rank's looks for a signal.

    ``stop_at``: the number of the look at which a rank sees a signal. ``drops``: rounds are dropped, not finished.
    """
    from istmpi.comm.stopping import StopSign
    from istmpi.config import Run
    from istmpi.errors import IstmpiError, StoppedError
    from istmpi.methods.base import Method
    from istmpi.simulated import simulate
    from istmpi.training import run as training_run

    looks: Counter[int] = Counter()

    class Signalled(StopSign):
        def asked(self) -> bool:
            looks[self._rank] += 1
            if looks[self._rank] == stop_at.get(self._rank):
                self._take("SIGUSR1")
            return super().asked()

    def program(communicator: Any) -> None:
        if case.own_loop:
            own_loop(case.settings, str(out), communicator)
        else:
            run = Run().override({**case.settings, "output.folder": str(out)})
            training_run.run_training(run, communicator, resume="auto")

    was = training_run.StopSign, Method.finished_within
    training_run.StopSign, Method.finished_within = Signalled, 0.0 if drops else 10.0
    try:
        outcome = simulate(program, case.ranks)
    finally:
        training_run.StopSign, Method.finished_within = was
    error = outcome.ended or next(filter(None, outcome.errors), None)
    if error is None:
        return "", looks
    if isinstance(error, IstmpiError):
        return "stopped" if isinstance(error, StoppedError) else f"{type(error).__name__}: {error}", looks
    raise error


def on_simulated_ranks(case: Case, chance: random.Random, stops: int) -> None:
    """Let an undisturbed run end, and another one that is stopped so often."""
    said, looks = simulated(case, case.folder / "peace", {}, False)
    if said:
        case.stops["refused"] += 1
        print(f"run {case.number} is refused: {said}", flush=True)
    for number in range(0 if said else stops + 1):
        done = rounds_of(case.folder / "run")
        left = 1 - done / case.settings["train.rounds"]
        ranks = chance.choice([[rank] for rank in range(case.ranks)] + [list(range(case.ranks))])
        stop_at = {rank: 1 + int(chance.random() * looks[rank] * left * 0.7) for rank in ranks}
        again, _ = simulated(case, case.folder / "run", stop_at if number < stops else {}, chance.random() < 0.4)
        if again != "stopped":
            case.findings += [f"after {case.stops.total()} stops: {again}"] * bool(again)
            return
        case.stops["dropped" if rounds_of(case.folder / "run") == done else "finished"] += 1


# ---- one run under mpirun


def under_mpirun(case: Case, chance: random.Random, stops: int) -> None:
    """Do the same with real processes and signals."""
    early = 0.0 if case.own_loop else 1e-4  # the odds, at each look, of a signal before a round is done
    for name in ("peace", "run"):
        out = case.folder / name
        if case.own_loop:
            command = [sys.executable, "-m", "benchmarks.campaigns.stops", json.dumps(case.settings), str(out)]
        else:
            sets = {**case.settings, "output.folder": str(out)}
            words = [part for key, value in sets.items() for part in ("--set", f"{key}={json.dumps(value)}")]
            command = ["istmpi", "train", "--resume", "auto", *words]
        for _ in range(stops if name == "run" else 0):
            job = Job(case.folder, case.ranks, command)
            ranks, before = job.ranks(), rounds_of(out)
            wait_until(lambda before=before, out=out: rounds_of(out) > before or chance.random() < early, job)
            time.sleep(chance.random() * 0.3)
            sent = chance.choice([signal.SIGTERM, signal.SIGUSR1])
            for rank in chance.choice([[chance.choice(ranks)], ranks] if ranks else [[]]):
                if not job.over:
                    os.kill(rank, sent)
            code = job.end(SECONDS_TO_END)
            # A program that ended early would go on if started again; a signal may end one behind its rounds.
            if case.own_loop and (out / "summary.json").exists():
                return
            if code == 0:
                break
            case.stops["signal"] += 1
            if code != 75:
                case.findings.append(f"exit code {code} after {sent.name}: {job.said[-400:]}")
                return
        job = Job(case.folder, case.ranks, command)
        if code := job.end(SECONDS_TO_START + SECONDS_TO_END):
            case.findings.append(f"{name}: exit code {code}: {job.said[-400:]}")
            return


# ---- what has to be equal


def facts(line: dict[str, Any]) -> dict[str, Any]:
    """Return what two runs must share of a line of a record."""
    kept = {name: value for name, value in line.items() if name not in TIMES and not name.startswith("rank")}
    return {name: value for name, value in kept.items() if not name.endswith(("_seconds", "_bytes", "_per_second"))}


def compare(case: Case) -> None:
    """Note the differences between the stopped run and the undisturbed one."""
    peace, run = case.folder / "peace", case.folder / "run"
    lines = [[facts(json.loads(line)) for line in (out / "metrics.jsonl").open()] for out in (peace, run)]
    if [len(each) for each in lines][0] != len(lines[1]):
        case.findings.append(f"{len(lines[1])} rounds in the record, not {len(lines[0])}")
    for expected, line in zip(*lines):
        names = [name for name in {**expected, **line} if expected.get(name) != line.get(name)]
        shown = ", ".join(f"{name} {line.get(name)}, not {expected.get(name)}" for name in names)
        case.findings += [f"round {expected['round']}: {shown}"[:200]] * bool(names)
    for name in ("network.h5", "best.h5"):
        there = [(out / name).exists() for out in (peace, run)]
        if there[0] != there[1]:
            case.findings.append(f"{name} is in one of them")
        elif there[0]:
            case.findings += [f"{name}: {line}" for line in differences(run / name, peace / name)]
    ends = [json.loads((out / "summary.json").read_text()) for out in (peace, run)]
    for name in ("ended", "score_name", "best"):
        expected, found = (
            {**end.get(name), "path": ""} if name == "best" and end.get(name) else end.get(name) for end in ends
        )
        if expected != found:
            case.findings.append(f"summary: {name} = {found}, not {expected}"[:300])


def main(arguments: list[str]) -> int:
    """Run the cases; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.campaigns stops", description=__doc__.partition("\n")[0])
    parser.add_argument("--stops", type=int, default=440, help="of all runs together (440)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="after which no further run begins")
    parser.add_argument("--mpirun", action="store_true", help="real ranks and signals")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER", help="for the table")
    options = parser.parse_args(arguments)
    place = Path(tempfile.mkdtemp(prefix="istmpi-stops-"))
    cases, number = [], options.case or 0
    begun = time.monotonic()
    minutes = options.minutes or 1e9
    while sum(case.done for case in cases) < options.stops and time.monotonic() - begun < 60 * minutes:
        case = drawn(options.seed, number, place, options.mpirun)
        case.folder.mkdir()
        chance = random.Random(f"instants {options.seed} {number}")
        (under_mpirun if options.mpirun else on_simulated_ranks)(case, chance, STOPS_OF_A_RUN)
        if not (case.findings or case.stops["refused"]):
            compare(case)
        said = "; ".join(case.findings[:3]) or "the same" * (not case.stops["refused"]) or "refused"
        print(f"run {number}, {case.settings['method.name']}, {case.kind}: {dict(case.stops)}: {said}", flush=True)
        cases.append(case)
        if not case.findings:
            shutil.rmtree(case.folder)
        number += 1
        if options.case is not None:
            break
    if options.case is None:
        tell(cases, options)
    found = [case for case in cases if case.findings]
    if found:
        print(f"benchmarks.campaigns stops: {len(found)} runs with findings; they lie in {place}", file=sys.stderr)
        return 1
    shutil.rmtree(place)
    return 0


def tell(cases: list[Case], options: argparse.Namespace) -> None:
    """Write a row for each kind of run."""
    rows = []
    for kind in ("rounds", "patience", "own loop", "all"):
        its = [case for case in cases if kind in ("all", case.kind) and not case.stops["refused"]]
        stops = sum((case.stops for case in its), Counter())
        row = {"run": kind, "runs": len(its), "stops": stops.total()}
        row |= {name: stops[name] for name in (("signal",) if options.mpirun else ("finished", "dropped"))}
        rows.append(row | {"runs with findings": sum(bool(case.findings) for case in its)})
    report(
        "campaign-stops-mpirun" if options.mpirun else "campaign-stops",
        "Runs stopped by signals at random instants",
        rows,
        "Finished and dropped: what the stop did to its round. Without findings metrics.jsonl (losses, scores, rates, "
        "examples), best.h5, network.h5 and the end are those of an undisturbed run, bit for bit. "
        f"{libraries()}.",
        folder=options.results,
    )


if __name__ == "__main__":
    own_loop(json.loads(sys.argv[1]), sys.argv[2])
