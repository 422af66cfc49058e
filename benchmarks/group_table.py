"""Each method on each kind of data in replica groups: what runs, and what is refused by which line.

    python -m benchmarks.group_table --cells FOLDER          (some of it: --methods ist,fedavg)

FOLDER keeps what was found: the same command goes on with the methods that are left, and reports all that are there.

Two groups of two processes, tiny networks in double precision. A run that trains is stopped by the file STOP, goes on,
loses a process by SIGKILL, goes on, and is compared with an undisturbed run and with two ranks. A refused run is
trained by two ranks, and then resumed by groups. Exit code 1: a cell neither runs nor is refused in one line.
"""

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

from benchmarks.campaigns.job import Job, rounds_of, wait_until
from benchmarks.reporting import ROOT, report
from istmpi.config.methods import METHODS

SUPPORT = ROOT / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

import group_programs  # noqa: E402
import masked_data  # noqa: E402
import replay_cases  # noqa: E402

LOOP = "own loop"
OWN = "own network"
KINDS = {
    "rows": {"model.hidden": [14, 12], "model.norm": "layer"},
    "images": {**replay_cases.RESNET, "train.sync_batch_norm": True},
    "text": replay_cases.TRANSFORMER,
    "sparse rows": replay_cases.XC,
    "graph": replay_cases.GCN,
    OWN: {"model.name": f"{masked_data.FILE}:Pairs", "data.source": f"{masked_data.FILE}:blank"},
    LOOP: {},
}
"""Each with its settings. The targets of the own network count for some examples only."""
PROGRAM = """
def run():
    kept = data
    if "{method}" == "fedavg":
        kept = torch.utils.data.Subset(data, range(90))
        del settings["local_steps"]
        settings.update(examples=45, batch=9)  # both ranks have as many, which an epoch needs
    job = istmpi.Distributed(Net, {{}}, example=x[:9], **settings | dict(method="{method}"), optimizer=make)
    for round in job.rounds({rounds}, folder="{folder}", resume="auto"):
        for a, b in round.take(DataLoader(kept, batch_size=9, shuffle=True)):
            round.step(torch.nn.functional.cross_entropy(round.outputs(round.module(a)), b))
        job.evaluate(accuracy, DataLoader(data, batch_size=7))

try:
    run()
except istmpi.ConfigError as error:
    print("istmpi:", error, file=sys.stderr)
    sys.exit(2)
"""
COLUMNS = ("train", "resume", "stop", "kill", "evaluate")
MANY = 10**6
NOT_STARTED = dict.fromkeys(("stop", "kill"), "not started")
ROUNDS = 2  # of each part of a run that is disturbed
SECONDS = 900
NOTES = """Two groups of two processes (`--group-size 2`), tiny networks in double precision. Images are normalised over
the whole batch of a group (`train.sync_batch_norm`).

- *train*: the largest difference of a weight beside two ranks, as a part of the tensor's largest value.
- *stop*: the exit code after the file STOP.
- *resume*, *kill*: the weights of a run that was stopped, went on, lost a process by SIGKILL, and went on, beside those
  of an undisturbed run.
- *evaluate*: the largest difference of a score, beside two ranks and, except of own loops, beside `istmpi evaluate` on
  four ranks.
- A refused run: two ranks trained it, groups were asked to resume it, and four ranks to evaluate it."""


@dataclass
class Cell:
    """A method on a kind of data, and what was found."""

    method: str
    kind: str
    settings: Mapping[str, object]
    folder: Path
    rounds: int = 1
    found: dict[str, str] = field(default_factory=dict)
    refusal: str = ""

    def command(self, place: str, rounds: int, group_size: int) -> list[str] | str:
        """The words of istmpi, or the code of a program, that start or resume the run in a folder."""
        out = self.folder / place
        if self.kind == LOOP:
            return (group_programs.HEAD + PROGRAM).format(
                method=self.method, rounds=rounds, folder=out, size=group_size
            )
        settings = {
            **self.settings,
            "method.name": self.method,
            "model.dtype": "float64",
            "train.rounds": rounds,
            "train.group_size": group_size,
            "checkpoint.every": 1,
            "evaluate.every": 1,
            "output.folder": str(out),
        }
        if self.method != "fedavg":
            settings["method.local_steps"] = 3
        elif self.kind in ("rows", "images"):
            settings["train.batch"] = 200
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
        return ["train", "--resume", "auto", "-q", *sets]

    def evaluate(self, place: str) -> list[str] | str:
        """The words that score a finished run; nothing to do for a program, which has scored its own."""
        words = ["evaluate", str(self.folder / place / "network.h5"), "--json"]
        if self.kind == OWN:
            # Code in a checkpoint runs only if it is named.
            words += ["--model", str(self.settings["model.name"]), "--data", str(self.settings["data.source"])]
        return "0" if self.kind == LOOP else words


class Series:
    """A job of commands that run one after the other."""

    def __init__(self, folder: Path, ranks: int, commands: Sequence[list[str] | str]):
        self.notes = Path(tempfile.mkdtemp(dir=folder))
        self._ranks = ranks
        (self.notes / "commands").write_text(json.dumps(commands))
        self.job = Job(self.notes, ranks, [sys.executable, str(SUPPORT / "in_turn.py"), str(self.notes)])

    def codes(self, number: int) -> list[int]:
        """The exit codes of a command, of ranks on which it has ended."""
        texts = [self._read(number, rank, "code") for rank in range(self._ranks)]
        return [int(text) for text in texts if text]

    def said(self, number: int) -> str:
        """What ranks said of a command on stderr; lines that several said, once."""
        text = "".join(self._read(number, rank, "stderr") for rank in range(self._ranks))
        return "\n".join(dict.fromkeys(text.splitlines()))

    def refusal(self, number: int) -> str:
        """The line with which all ranks refused a command; empty if it ran, or failed in another way."""
        said = self.said(number)
        if self.codes(number) != [2] * self._ranks or len(said.splitlines()) != 1:
            return ""
        return said.removeprefix("istmpi: ")

    def printed(self, number: int) -> str:
        return self._read(number, 0, "stdout")

    def _read(self, number: int, rank: int, kind: str) -> str:
        path = self.notes / f"{number}-{rank}-{kind}"
        return path.read_text() if path.exists() else ""


def run_series(folder: Path, ranks: int, commands: Sequence[list[str] | str]) -> Series:
    """Run commands to their end. Raises RuntimeError if the job fails."""
    folder.mkdir(parents=True, exist_ok=True)
    series = Series(folder, ranks, commands)
    if series.job.end(SECONDS):
        raise RuntimeError(series.job.said)
    return series


def make_cells(folder: Path, method: str) -> list[Cell]:
    if not (folder / "documents").exists():
        replay_cases.files(folder, 2)
    names = {replay_cases.TEXT: "text.h5", replay_cases.ROWS: "rows.h5", replay_cases.GRAPH: "graph.h5"}
    files = {name: str(folder / file) for name, file in names.items()}
    cells = []
    for kind, own in KINDS.items():
        settings = {name.replace("__", "."): files.get(str(value), value) for name, value in own.items()}
        settings.pop("method.optimizer_state", None)
        cells.append(Cell(method, kind, settings, folder / method / kind))
    return cells


def find_refusals(cells: Sequence[Cell]) -> None:
    """Train one round of each cell in groups, and note what is refused."""
    for cell in cells:
        shutil.rmtree(cell.folder / "first", ignore_errors=True)
    series = run_series(cells[0].folder, 4, [cell.command("first", 1, 2) for cell in cells])
    for number, cell in enumerate(cells):
        cell.refusal = series.refusal(number)
        if not cell.refusal and series.codes(number) != [0] * 4:
            cell.found["train"] = f"FAILS: {series.codes(number)} {series.said(number)}"


def disturb(cell: Cell, killed: int) -> None:
    """Stop a run, resume it, and kill one of its processes, if that was not done."""
    out = cell.folder / "disturbed"
    note = cell.folder / "disturbed.json"
    if note.exists():
        cell.found = json.loads(note.read_text())
        cell.rounds = rounds_of(out) + ROUNDS
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    long = cell.command("disturbed", MANY, 2)
    words = [sys.executable, "-c", long] if isinstance(long, str) else ["istmpi", *long]
    job = Job(out.parent, 4, words)
    wait_until(lambda: rounds_of(out) >= ROUNDS, job)
    (out / "STOP").touch()
    code = job.end(SECONDS)
    cell.found["stop"] = "exit code 75" if code == 75 else f"FAILS: {code} {job.said}"
    (out / "STOP").unlink()
    before = rounds_of(out)
    job = Job(out.parent, 4, words)
    wait_until(lambda: rounds_of(out) >= before + ROUNDS, job)
    if not job.over:
        os.kill(job.ranks()[killed], signal.SIGKILL)
    code = job.end(SECONDS)
    if code in (0, 2, 75):
        cell.found["kill"] = f"FAILS: exit code {code} {job.said}"
    cell.rounds = rounds_of(out) + ROUNDS
    note.write_text(json.dumps(cell.found))


def compare(cells: Sequence[Cell]) -> None:
    """Let disturbed runs go on, and compare them with undisturbed runs and with two ranks."""
    alone = run_series(cells[0].folder, 2, [cell.command("ranks", cell.rounds, 1) for cell in cells])
    commands = []
    for cell in cells:
        runs = [cell.command(place, cell.rounds, 2) for place in ("disturbed", "whole")]
        commands += [*runs, cell.evaluate("disturbed")]
    series = run_series(cells[0].folder, 4, commands)
    for number, cell in enumerate(cells):
        said = [alone.said(number), *(series.said(3 * number + step) for step in range(3))]
        codes = alone.codes(number) + [code for step in range(3) for code in series.codes(3 * number + step)]
        if any(codes):
            cell.found["resume"] = f"FAILS: {codes} {said}"
            continue
        disturbed, whole, ranks = (cell.folder / place for place in ("disturbed", "whole", "ranks"))
        apart = measure(disturbed, whole)
        alike = "equal bits" if apart == 0 else f"FAILS: {apart:.1g}"
        cell.found = {"train": f"{measure(whole, ranks):.0e}", "resume": alike, "kill": alike} | cell.found
        scores = last_scores(disturbed)
        differences = [abs(value - last_scores(ranks)[name]) for name, value in scores.items()]
        if cell.kind != LOOP:
            evaluated = json.loads(series.printed(3 * number + 2))["score"]
            differences.append(abs(evaluated["loss"] - scores["test_loss"]))
        cell.found["evaluate"] = f"{max(differences):.0e}"


def resume_refused(cells: Sequence[Cell]) -> None:
    """Train refused cells on two ranks, if ranks can, and ask groups to resume and processes to evaluate them."""
    ranks = run_series(cells[0].folder, 2, [cell.command("ranks", 1, 1) for cell in cells])
    commands = [words for cell in cells for words in (cell.command("ranks", 2, 2), cell.evaluate("ranks"))]
    series = run_series(cells[0].folder, 4, commands)
    for number, cell in enumerate(cells):
        same = series.refusal(2 * number) == cell.refusal
        cell.found["train"] = "refused"
        cell.found["resume"] = "refused alike" if same else f"FAILS: {series.said(2 * number)}"
        codes = ranks.codes(number) + series.codes(2 * number + 1)
        if ranks.refusal(number):
            cell.found["evaluate"] = "refused for ranks, too"
        elif codes != [0] * 6:
            cell.found["evaluate"] = f"FAILS: {codes} {ranks.said(number)} {series.said(2 * number + 1)}"
        else:
            cell.found["evaluate"] = "in its own loop" if cell.kind == LOOP else "runs"


def read_weights(out: Path) -> dict[str, np.ndarray]:
    with h5py.File(out / "network.h5") as file:
        return {name: values[...] for name, values in file["model"].items()}


def measure(one: Path, other: Path) -> float:
    """Return the largest difference of a weight, as a part of its tensor's largest value."""
    values = read_weights(one)
    others = read_weights(other)
    return max(abs(values[name] - others[name]).max() / max(abs(others[name]).max(), 1e-300) for name in others)


def last_scores(out: Path) -> dict[str, float]:
    *_, last = (out / "metrics.jsonl").read_text().splitlines()
    scores = {name: value for name, value in json.loads(last).items() if re.search("(score|loss|accuracy)$", name)}
    return {name: float(value) for name, value in scores.items() if value is not None}


def fill(folder: Path, method: str) -> None:
    """Find the cells of a method, and keep them in its file."""
    cells = make_cells(folder, method)
    find_refusals(cells)
    training = [cell for cell in cells if not cell.refusal and not cell.found]
    for number, cell in enumerate(training):
        disturb(cell, number % 4)
    if training:
        compare(training)
    resume_refused([cell for cell in cells if cell.refusal])
    rows = []
    for cell in cells:
        row = {name: cell.found.get(name, "FAILS: empty") for name in COLUMNS}
        rows.append({"method": cell.method, "data": cell.kind, **row, "the line of a refusal": cell.refusal})
    (folder / f"{method}.json").write_text(json.dumps(rows))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args(arguments)
    options.cells.mkdir(exist_ok=True)
    for method in options.methods.split(","):
        if not (options.cells / f"{method}.json").exists():
            fill(options.cells, method)
    found = [options.cells / f"{method}.json" for method in METHODS]
    rows = [row for path in found if path.exists() for row in json.loads(path.read_text())]
    refused = sum(bool(row["the line of a refusal"]) for row in rows)
    rows = [row | NOT_STARTED if row["the line of a refusal"] else row for row in rows]
    cells = f"{len(rows)} methods and kinds of data of {len(METHODS) * len(KINDS)}"
    notes = f"{NOTES}\n\n{cells}: {len(rows) - refused} train in groups, and {refused} are refused."
    report("groups-table", "Replica groups: each method on each kind of data", rows, notes)
    return int(any("FAILS" in value for row in rows for value in row.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
