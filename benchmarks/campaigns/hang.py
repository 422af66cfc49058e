"""Lets a rank hang, and sees whether the job says which one, ends, and goes on as if nothing had been.

    python -m benchmarks.campaigns hang --minutes 30 --seed 1
    MPIRUN=/usr/bin/mpirun python -m benchmarks.campaigns hang --cases 12 --ranks 3

A run, a rank and a moment are drawn from the seed. The rank is stopped (SIGSTOP), or stays in an endless loop in a
local step, or its disk does not answer any more: what writes a checkpoint does not return. What has to hold: the job
ends with exit code 76 within its two deadlines, names that rank and no other as the one that it waits for, and leaves
stacks of the others in the run's folder; the newest checkpoint is still there, and the same command goes on to the
weights of an undisturbed run, bit for bit.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.campaigns.job import SECONDS_TO_START, Job, rounds_of, wait_until
from benchmarks.campaigns.kill import Case, differences, draw, finish, newest
from benchmarks.campaigns.libraries import WRITERS, libraries
from benchmarks.reporting import HERE, ROOT, report

KINDS = ("stopped", "loop", "disk")
STUCK = 76
PATIENCE = 5.0
"""Seconds, of `comm.patience`."""
CHECKPOINT = 2
"""That does not get onto the disk, from 1."""
MARGIN = 30.0
"""Seconds, beside the two deadlines, in which the job has to have ended."""
MORE_ROUNDS = 6
"""Trained once the run goes on."""


@dataclass
class Hang:
    """One that was drawn."""

    case: Case
    kind: str
    rank: int
    round: int
    """From 1, in which it happens, or behind which; not where its disk hangs."""
    seconds: float = 0.0
    """From then until the job had ended."""
    findings: list[str] = field(default_factory=list)


def drawn(chance: random.Random, number: int, ranks: int, folder: Path) -> Hang:
    """A hang: kinds and methods take turns."""
    settings = {**draw(chance, number // len(KINDS), WRITERS[:1]), "comm.patience": PATIENCE}
    settings["checkpoint.every"] = chance.choice([1, 2])
    kind, rank = KINDS[number % len(KINDS)], chance.randrange(ranks)
    if kind == "loop" and settings["method.name"] == "fedavg":
        settings["method.fraction"] = 1.0  # so that the rank trains
    return Hang(Case(number, settings, ranks, folder), kind, rank, chance.randrange(3, 8))


def carry_through(hang: Hang, chance: random.Random) -> None:
    """Let it hang, let the same command go on, and compare with an undisturbed run."""
    case, out = hang.case, hang.case.folder / "run"
    words = [sys.executable, "-m", __name__, hang.kind, str(hang.rank), str(hang.round)]
    os.environ["PYTHONPATH"] = str(ROOT)
    job = Job(case.folder, case.ranks, [*words, *case.command(out, 10**6)[1:]])
    try:
        before = CHECKPOINT * case.settings["checkpoint.every"] if hang.kind == "disk" else hang.round - 1
        wait_until(lambda: rounds_of(out) >= before, job)
        if hang.kind == "stopped":
            wait_until(lambda: rounds_of(out) >= hang.round, job)
            time.sleep(chance.random() * 0.3)
            os.kill(job.ranks()[hang.rank], signal.SIGSTOP)
        begun, checkpoint = time.monotonic(), newest(out)
        slowest = max((line["round_seconds"] for line in _lines(out)), default=0.0)
        code = job.end(2 * max(PATIENCE, 3 * slowest) * _busy() + MARGIN * _busy())
        hang.seconds = time.monotonic() - begun
    except TimeoutError as error:
        job.kill()
        hang.findings.append(f"{error}: {job.words}: {job.said[-800:]}")
        return
    finally:
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(job.ranks()[hang.rank], signal.SIGKILL)
    if code != STUCK:
        hang.findings.append(f"exit code {code}: {job.words}: {job.said[-800:]}")
    said = [line for line in job.said.splitlines() if line.startswith("istmpi: aborting, a rank does not respond: ")]
    named = {int(rank) for line in said for rank in re.findall(r"rank (\d+) on ", line)}
    if named != {hang.rank}:
        hang.findings.append(f"rank {hang.rank} hung, and the job named {named or 'none'}: {job.said[-800:]}")
    if not any((out / "stacks").glob("rank*.txt")):
        hang.findings.append("no stacks were left")
    if newest(out) < checkpoint:
        hang.findings.append(f"the newest checkpoint was {checkpoint}, and is {newest(out)}")
    case.rounds = rounds_of(out) + MORE_ROUNDS
    finish(case, out)
    finish(case, case.folder / "peace")
    hang.findings += case.findings
    if not hang.findings:
        networks = out / "network.h5", case.folder / "peace" / "network.h5"
        hang.findings += [f"weights: {line}" for line in differences(*networks)]


def _lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines(True) if line[-1] == "\n"]


def _busy() -> float:
    """How many times as long things may take on this machine at this moment."""
    return max(os.getloadavg()[0] / len(os.sched_getaffinity(0)), 1.0)


def main(arguments: list[str]) -> int:
    """The campaign; 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.campaigns hang", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, help="so many (60; with --minutes as many as there is time)")
    parser.add_argument("--minutes", type=float, help="after which no further one begins")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="at a time (1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one: others of the same seed")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER", help="for the table")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="istmpi-hang-"))

    def run(number: int) -> Hang | None:
        """One; None when it is too late to begin."""
        if options.minutes and time.monotonic() - begun > 60 * options.minutes:
            return None
        chance = random.Random(f"{options.seed} {number}")
        folder = place / str(number)
        folder.mkdir()
        hang = drawn(chance, number, options.ranks, folder)
        carry_through(hang, chance)
        what = "; ".join(hang.findings) or f"named, and ended after {hang.seconds:.1f} s"
        print(f"{number}: {hang.kind}, rank {hang.rank}, {hang.case.settings['method.name']}: {what}", flush=True)
        if not hang.findings:
            shutil.rmtree(folder)
        return hang

    cases = options.cases or (10**5 if options.minutes else 60)
    with ThreadPoolExecutor(options.jobs) as pool:
        hangs = list(filter(None, pool.map(run, range(options.first, options.first + cases))))
    tell(hangs, options)
    if found := [hang for hang in hangs if hang.findings]:
        print(f"benchmarks.campaigns hang: {len(found)} with findings; they lie in {place}", file=sys.stderr)
        return 1
    place.rmdir()
    return 0


def tell(hangs: list[Hang], options: argparse.Namespace) -> None:
    """A row for each kind, and one for all."""
    rows = []
    for kind in [*KINDS, "all"]:
        its = [hang for hang in hangs if kind in (hang.kind, "all")]
        took = [hang.seconds for hang in its] or [0.0]
        row = {"what hangs": kind, "cases": len(its), "ended after s, shortest": round(min(took), 1)}
        rows.append(row | {"longest": round(max(took), 1), "findings": sum(len(hang.findings) for hang in its)})
    methods = Counter(hang.case.settings["method.name"] for hang in hangs)
    report(
        "campaign-hang",
        f"A rank of {options.ranks} that hangs, and what came of it",
        rows,
        f"comm.patience = {PATIENCE:g}. Without findings the job ended with exit code {STUCK}, named that rank alone "
        f"and left stacks, and the same command went on to the weights, the optimizer's state and the calibration of "
        f"an undisturbed run, bit for bit. {', '.join(f'{name} {count}' for name, count in sorted(methods.items()))}. "
        f"Seed {options.seed}. {libraries()}.",
        folder=options.results,
        facts={"cases": [{**h.case.settings, "kind": h.kind, "rank": h.rank, "findings": h.findings} for h in hangs]},
    )


# ---- the rank that hangs


def _hanging(kind: str, rank: int, round: int) -> None:
    """Have that rank hang in a local step of a round, or in what it writes behind it."""
    from istmpi.checkpoint import saver
    from istmpi.methods.base import Method

    mine = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", -1))) == rank
    steps, forward = [0], Method.forward

    def looping(method: Method, network, batch):
        steps[0] += 1
        while steps[0] >= (round - 1) * method.steps(0) + 1:
            pass
        return forward(method, network, batch)

    if mine and kind == "loop":
        Method.forward = looping
    if mine and kind == "disk":
        write = saver.write_file

        def waiting(*arguments):
            steps[0] += 1
            while steps[0] >= CHECKPOINT:
                time.sleep(SECONDS_TO_START)
            write(*arguments)

        saver.write_file = waiting


if __name__ == "__main__":
    from istmpi.cli.main import main as as_istmpi

    _hanging(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sys.argv = ["istmpi", *sys.argv[4:]]
    as_istmpi()
