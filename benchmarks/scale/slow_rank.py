"""What a slow rank costs, and how much of that ``--shares auto`` gets back.

    python -m benchmarks.scale.slow_rank

The last rank is stopped and let go on all the time (SIGSTOP, SIGCONT), so that it has a part of its processor's time in
all that it does. Every rank needs a core. Examples a second are those of all ranks, each of which takes a batch in each
local step, in the median round behind those in which shares settle. They stand beside those of an undisturbed run, of
equal shares, and of shares that do not change, the best of which are the ideal.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.campaigns.job import Job, rounds_of, wait_until
from benchmarks.reporting import report

BATCH = 128
SETTINGS = {"train.batch": BATCH, "evaluate.every": 10**6, "optimizer.lr": 0.001, "train.threads": 1}
PERIOD = 0.02
"""Seconds from one stop to the next."""
COUNTED = 5
"""Rounds that count: the last ones."""
TRIED = (0.5, 0.4, 0.3)
"""Shares of the slow rank beside 1 of each other one."""


def main() -> int:
    """All ways in turns, several times; medians go into results/slow-rank-stopped.*"""
    options = _options()
    ways: dict[str, object] = {"undisturbed": None, "equal shares": None, "--shares auto": "auto"}
    ways |= {f"the slow rank {one:g}, the others 1": [1.0] * (options.ranks - 1) + [one] for one in TRIED}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    ended = []
    with tempfile.TemporaryDirectory(prefix="slow-rank-") as folder:
        for turn in range(options.repeats):
            for number, (way, shares) in enumerate(ways.items()):
                place = Path(folder, f"{turn}-{number}")
                place.mkdir()
                rounds = options.rounds if shares == "auto" else COUNTED + 2
                lines = _carried_out(place, options, rounds, shares, 1.0 if way == "undisturbed" else options.slower)
                seconds = median(line["round_seconds"] for line in lines[-COUNTED:])
                rates[way].append(options.ranks * BATCH * options.local_steps / seconds)
                if shares == "auto":
                    ended.append(", ".join(f"{lines[-1][f'rank{rank}_share']:.3f}" for rank in range(options.ranks)))
                print(f"turn {turn}: {way}: {rates[way][-1]:.0f} examples/s", flush=True)
    typical = {way: median(turns) for way, turns in rates.items()}
    best = max((way for way in ways if way not in ("undisturbed", "--shares auto")), key=typical.__getitem__)
    rows = [
        {
            "shares": f"{way} (the best of these)" if way == best else way,
            "examples/s": round(typical[way]),
            "of the ideal": round(typical[way] / typical[best], 3),
            "of undisturbed": round(typical[way] / typical["undisturbed"], 3),
            "lowest": round(min(rates[way])),
            "highest": round(max(rates[way])),
        }
        for way in ways
    ]
    report(
        "slow-rank-stopped",
        f"One of {options.ranks} ranks {options.slower:g} times slower",
        rows,
        f"Digits, hidden layers {options.hidden}, J = {options.local_steps}, batch {BATCH} a rank. The last rank is "
        f"stopped for all but 1/{options.slower:g} of the time. The ideal is the best of the shares that do not "
        f"change. Examples of all ranks a second, in the median of the last {COUNTED} rounds (of {options.rounds} with "
        f"--shares auto, of {COUNTED + 2} else); medians of {options.repeats} turns, and the lowest and highest of "
        f"them. What --shares auto came to: {'; '.join(ended)}.",
    )
    return 0


def _carried_out(folder: Path, options: argparse.Namespace, rounds: int, shares: object, slower: float) -> list[dict]:
    """A run; the lines of its metrics."""
    out = folder / "run"
    settings = {**SETTINGS, "model.hidden": [int(width) for width in options.hidden.split(",")]}
    settings |= {"method.local_steps": options.local_steps, "train.rounds": rounds, "output.folder": str(out)}
    settings |= {"method.shares": shares} if shares else {}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    job = Job(folder, options.ranks, ["istmpi", "train", *words])
    try:
        wait_until(lambda: rounds_of(out) >= 1, job)
        with _stopped(job.ranks()[-1], slower) if slower > 1 else contextlib.nullcontext():
            wait_until(lambda: rounds_of(out) >= rounds, job)
        if code := job.end(120):
            sys.exit(f"slow_rank: {job.words} ended with {code}\n{job.said[-2000:]}")
    finally:
        if not job.over:
            job.kill()
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@contextlib.contextmanager
def _stopped(process: int, times: float) -> Iterator[None]:
    """Let a process run but a part of the time."""
    over = threading.Event()

    def stop_and_go() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                begun = time.monotonic()
                os.kill(process, signal.SIGSTOP)
                time.sleep(PERIOD * (1 - 1 / times))
                os.kill(process, signal.SIGCONT)
                # A late wake-up makes a longer period of it, with the same part.
                time.sleep((time.monotonic() - begun) / (times - 1))

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--slower", type=float, default=4.0, help="the last rank, by this factor (4)")
    parser.add_argument("--hidden", default="2048,2048")
    parser.add_argument("--local-steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=24, help="of the run whose shares follow the times (24)")
    parser.add_argument("--repeats", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
