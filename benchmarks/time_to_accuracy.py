"""Time, bytes and samples to an accuracy on a slow network: our methods, PyTorch DDP and PyTorch local SGD.

    sudo -E env PATH="$PATH" python benchmarks/time_to_accuracy.py               # resumes; most valuable cells first
    sudo -E env PATH="$PATH" python benchmarks/time_to_accuracy.py --quick       # all of it in small, on built-in data
    python benchmarks/time_to_accuracy.py --list                                 # the cells, and which are there
    python benchmarks/time_to_accuracy.py --report                               # only tables and plots anew

Every finished cell is one JSON file; what is there is not run again. Kinds of cells:

* machine: FLOP/s of a rank while P ranks share this host's cores, one thread each. The line rate is 1.25e-3 bytes a
  FLOP of it, which is that of the IST paper's cluster (m5.2xlarge), or ten times that;
* speed: seconds and bytes of a step on the emulated cluster, ours, PyTorch's and IST in turns within one job;
* curve: accuracy by step, P ranks in one process at full speed (benchmarks/curves.py), the same on any network;
* long: a curve of four times the steps, to see where the methods end;
* direct: a whole run on the slow network, with evaluations, where it takes less than 100 seconds (``--quick``: 10);
* model: the cost model's cluster, for the scaling to 1,000 ranks; that of istmpi's other methods is measured by their
  speed alone.

Time to an accuracy is the steps of the curve times the seconds of a step (composed), or the clock of a direct run at
the same step. Needs root, as benchmarks/cluster does; the data are made once, by ``istmpi prepare`` from
../shared/data.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from reporting import HERE, RESULTS, keep_cell
from time_analysis import step_seconds
from time_plan import AS_MEASURED, BATCH, CONTESTANTS, FULL, JOBS, PEERS, QUICK, Cell, Scale, Task, cells, settings_of

ROOT = HERE.parent
BYTES_PER_FLOP = 1.25e-3
SPARE_SECONDS = 180
"""What starting and ending a job may take beside its work, before it is ended."""


class CellError(Exception):
    """A cell that could not be measured, and why; the others still can."""


class Postponed(Exception):
    """A cell that is left out on purpose, and why."""


class Bench:
    """The cells of a scale in a folder."""

    def __init__(self, scale: Scale, folder: Path, name: str, raw: Path):
        self.scale, self.folder, self.raw, self._name = scale, folder, raw, name
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.name}.json"

    def record(self, cell: Cell) -> dict | None:
        """What a finished cell found."""
        path = self.path(cell)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def measure(self, cell: Cell) -> None:
        """Measure a cell and write its file; CellError or Postponed where there will be none."""
        work: dict[str, Callable[[Cell], dict]] = {
            "machine": self._machine,
            "speed": self._speed,
            "curve": self._curve,
            "long": self._curve,
            "control": self._curve,
            "rate": self._curve,
            "direct": self._direct,
            "model": self._model,
        }
        start = time.perf_counter()
        record = work[cell.kind](cell)
        keep_cell(self.path(cell), cell.name, start, record)

    def rate(self, ranks: int, bandwidth: str) -> float:
        """Bits a second of every host."""
        machine = self.record(Cell("machine", ranks))
        if machine is None:
            raise CellError(f"needs the cell {Cell('machine', ranks).name} first")
        rate = 8 * BYTES_PER_FLOP * machine["flops"] * (10 if bandwidth == "10x" else 1)
        return max(round(rate / 1e7), 1) * 1e7

    def _machine(self, cell: Cell) -> dict:
        settings = ["--seconds", self.scale.flops_seconds, "--data", "digits", "--hidden", self.scale.flops_width]
        return self._speeds_job("flops", cell.ranks, 1e9, settings, self.scale.flops_seconds, contestants="ist")

    def _speed(self, cell: Cell) -> dict:
        scale = self.scale
        settings = ["--turns", scale.turns, "--turn-seconds", scale.turn_seconds, "--seconds", scale.speed_seconds]
        settings += ["--local-steps", scale.local_steps[0]]
        if machine := self.record(Cell("machine", cell.ranks)):
            settings += ["--flops", machine["flops"]]
        return self._on_cluster(cell, "turns", settings, 2 * scale.speed_seconds, ",".join(JOBS[cell.group]))

    def _model(self, cell: Cell) -> dict:
        return self._on_cluster(cell, "model", ["--local-steps", self.scale.local_steps[0]], 240, "ist")

    def _on_cluster(self, cell: Cell, work: str, settings: list, seconds: float, contestants: str) -> dict:
        """A job of benchmarks/speeds.py on a cell's task and network."""
        rate = self.rate(cell.ranks, cell.bandwidth)
        settings = [*settings, "--data", self._data(cell.task), "--hidden", cell.task.hidden, "--rate", rate]
        return self._speeds_job(work, cell.ranks, rate, settings, seconds, contestants) | {"rate": rate}

    def _speeds_job(self, work: str, ranks: int, rate: float, settings: list, seconds: float, contestants: str) -> dict:
        out = self.folder / "job.out"
        out.unlink(missing_ok=True)
        command = [sys.executable, HERE / "speeds.py", work, "--out", out, "--contestants", contestants]
        self._cluster(ranks, rate, [*command, "--batch", BATCH, *settings], seconds)
        return json.loads(out.read_text(encoding="utf-8"))

    def _curve(self, cell: Cell) -> dict:
        task, times = cell.task, self.scale.longer if cell.kind == "long" else 1
        settings = ["--data", self._data(task), "--hidden", task.hidden_of(cell.method, cell.ranks), "--batch", BATCH]
        settings += ["--lr", cell.lr or task.lr, "--placement", cell.placement or "shared"]
        settings += ["--evaluate-every", task.evaluate_every]
        settings += ["--ranks", cell.ranks, "--steps", times * task.steps, "--seconds", times * task.seconds]
        settings += ["--seed", cell.seed, "--local-steps", cell.local_steps or 5]
        command = [sys.executable, HERE / "curves.py", *_words(cell.method), *settings]
        printed = self._run(command, 4 * times * task.seconds + SPARE_SECONDS)
        return {"points": [json.loads(line) for line in printed.splitlines()]}

    def _direct(self, cell: Cell) -> dict:
        task, local_steps = cell.task, cell.local_steps
        rounds = 6
        group = next(group for group, names in CONTESTANTS.items() if cell.method in names)
        speed = self.record(Cell("speed", cell.ranks, task, cell.bandwidth, group))
        if speed is None:
            raise CellError("needs its speed cells first")
        turns = speed["contestants"][cell.method]
        expected = rounds * local_steps * step_seconds(turns[-1], local_steps, cell.method in AS_MEASURED)
        if expected > self.scale.direct_seconds:
            raise Postponed(f"{rounds * local_steps} steps would take {expected:.0f} s: composed")
        settings = ["--data", self._data(task), "--hidden", task.hidden, "--lr", task.lr, "--batch", BATCH]
        settings += ["--local-steps", local_steps, "--seed", cell.seed]
        rate, limit = self.rate(cell.ranks, cell.bandwidth), 2 * self.scale.direct_seconds
        if cell.method in PEERS:
            out = self.folder / "job.out"
            out.unlink(missing_ok=True)
            settings += ["--steps", rounds * local_steps, "--evaluate-every", 2 * local_steps, "--out", out]
            program = [sys.executable, HERE / "peers.py", PEERS[cell.method]]
            self._cluster(cell.ranks, rate, [*program, *settings], limit)
            return {"points": json.loads(out.read_text(encoding="utf-8"))["points"], "rate": rate}
        out = self.folder / "job-run"
        shutil.rmtree(out, ignore_errors=True)
        settings += ["--rounds", rounds, "--evaluate-every", 2, "--threads", 1, "--out", out]
        self._cluster(cell.ranks, rate, ["istmpi", "train", "--method", *_words(cell.method), *settings], limit)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        phases = json.loads((out / "summary.json").read_text(encoding="utf-8"))["seconds"]
        shutil.rmtree(out)
        points = [
            {
                "step": line["local_steps"],
                "seconds": line["seconds"],
                "bytes": line["bytes"],
                "samples": line["examples"],
                "accuracy": line["score"],
                "loss": line["test_loss"],
            }
            for line in lines
            if "score" in line
        ]
        return {"points": points, "rate": rate, "phases": phases}

    def _data(self, task: Task) -> str:
        """The task's data, prepared once."""
        if task.prepare is None:
            return task.data
        path = self.folder / task.data
        if not path.exists():
            kind, raw = task.prepare
            if not (self.raw / raw).exists():
                raise CellError(f"there is no {self.raw / raw}; name the folder that has it with --raw")
            self._run(["istmpi", "prepare", kind, self.raw / raw, path], 600)
        return str(path)

    def _cluster(self, ranks: int, rate: float, command: list, seconds: float) -> str:
        prefix = [HERE / "cluster", "--name", self._name, "--hosts", ranks, "--rate", f"{rate:.0f}bit", "--"]
        return self._run([*prefix, *command], seconds + SPARE_SECONDS)

    def _run(self, command: list, seconds: float) -> str:
        """Run a program to its end, at most so long; its output. CellError with its last words when it fails."""
        environment = {
            **os.environ,
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # that hosts without a name server have no names
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        try:
            out, errors = process.communicate(timeout=seconds)
        except BaseException as error:
            process.send_signal(signal.SIGTERM)  # benchmarks/cluster takes the cluster down
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise CellError(f"still ran after {seconds:.0f} s") from None
            raise
        if process.returncode:
            said = [line for line in (errors + out).splitlines() if line.strip() and "istmpi-" not in line]
            raise CellError("; ".join(said[-3:]) or f"exit code {process.returncode}")
        return out


def _words(method: str) -> list:
    """A method as a command line names it."""
    settings = settings_of(method)
    name = settings.pop("method.name")
    return [name, *(word for key, value in settings.items() for word in (f"--{key.removeprefix('method.')}", value))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small network on built-in data; under ten minutes")
    parser.add_argument("--only", action="append", help="only cells whose name contains this; may be repeated")
    parser.add_argument("--minutes", type=float, default=40, help="no cell begins after that (40)")
    parser.add_argument("--cells", type=Path, help="the folder of the cells (benchmarks/cells; with --quick -quick)")
    parser.add_argument("--raw", type=Path, default=ROOT.parent / "shared/data", help="the raw data (../shared/data)")
    parser.add_argument("--results", type=Path, help="where the report goes (results/; with --quick the cells' folder)")
    parser.add_argument("--name", default="accuracy", help="of the emulated cluster")
    parser.add_argument("--list", action="store_true", help="list the cells and end")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    folder = options.cells or HERE / ("cells-quick" if options.quick else "cells")
    bench = Bench(scale, folder.resolve(), options.name, options.raw.resolve())
    wanted = [
        cell for cell in cells(scale) if not options.only or any(pattern in cell.name for pattern in options.only)
    ]
    if options.list:
        for cell in wanted:
            print(f"{'done' if bench.path(cell).exists() else '    '} {cell.name}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    failed = {}
    if not options.report:
        ready = subprocess.run([HERE / "cluster", "down", "--name", options.name])  # what a killed run left behind
        if ready.returncode:
            return 2
        failed = measure(bench, wanted, options.minutes)
    from time_report import report

    report(bench, options.results or (folder if options.quick else RESULTS), failed)
    return 1 if failed else 0


def measure(bench: Bench, wanted: list[Cell], minutes: float) -> dict[str, str]:
    """Measure what is not there yet, in order, until the time is over; the cells that failed, and why."""
    start, failed = time.monotonic(), {}
    for number, cell in enumerate(wanted, start=1):
        if bench.path(cell).exists():
            continue
        if time.monotonic() - start > 60 * minutes:
            missing = sum(not bench.path(cell).exists() for cell in wanted)
            print(f"the time is over, {missing} cells are left; the same command goes on", flush=True)
            break
        began = time.monotonic()
        try:
            bench.measure(cell)
            outcome = f"{time.monotonic() - began:.0f} s"
        except Postponed as reason:
            outcome = str(reason)
        except CellError as error:
            failed[cell.name] = str(error)
            outcome = f"FAILED: {error}"
        print(f"[{number}/{len(wanted)}] {cell.name}: {outcome}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
