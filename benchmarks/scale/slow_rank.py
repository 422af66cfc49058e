"""What a slow rank costs, and how much of that ``--shares auto`` gets back.

    python -m benchmarks.scale.slow_rank --ranks 2 --hidden 2048,2048

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
from math import prod
from pathlib import Path
from statistics import median

from benchmarks.campaigns.job import Job, rounds_of, wait_until
from benchmarks.reporting import ROOT, report

BATCH = 128
SETTINGS = {"train.batch": BATCH, "evaluate.every": 10**6, "optimizer.lr": 0.001, "train.threads": 1}
STEP = 0.5
"""Seconds that a rank sleeps in a local step with an equal share, if it is not the slow one."""
PERIOD = 0.02
"""Seconds from one stop to the next."""
COUNTED = 5
"""Rounds that count: the last ones."""
TRIED = (0.5, 0.4, 0.3)
"""Shares of the slow rank beside 1 of each other one."""


def main() -> int:
    """All ways in turns, several times; medians go into results/slow-rank.*"""
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
                    ended.append([lines[-1][f"rank{rank}_share"] for rank in range(options.ranks)])
                print(f"turn {turn}: {way}: {rates[way][-1]:.0f} examples/s", flush=True)
    typical = {way: median(of) for way, of in rates.items()}
    best = max((way for way in ways if way not in ("undisturbed", "--shares auto")), key=typical.__getitem__)
    ideal = options.ranks * BATCH / _ideal_step(options) if options.by == "sleep" else typical[best]
    rows = [
        {
            "shares": f"{way} (the best of these)" if way == best else way,
            "examples/s": round(typical[way]),
            "of the ideal": round(typical[way] / ideal, 3),
            "of undisturbed": round(typical[way] / typical["undisturbed"], 3),
            "lowest": round(min(rates[way])),
            "highest": round(max(rates[way])),
        }
        for way in ways
    ]
    came_to = "; ".join(", ".join(f"{share:.3f}" for share in of) for of in ended)
    report(
        "slow-rank" if options.by == "sleep" else "slow-rank-stopped",
        f"One of {options.ranks} ranks {options.slower:g} times slower",
        rows,
        f"Digits, hidden layers {options.hidden}, J = {options.local_steps}, batch {BATCH} a rank. {_how(options)} "
        f"The ideal is {ideal:.0f} examples/s. Examples of all ranks a second, in the median of the last {COUNTED} "
        f"rounds (of {options.rounds} with --shares auto, of {COUNTED + 2} else); medians of {options.repeats} turns, "
        f"and the lowest and highest of them. What --shares auto came to: {came_to}.",
        facts={"rates": rates, "ended": ended, "ideal": ideal},
    )
    return 0


def _how(options: argparse.Namespace) -> str:
    """How the last rank is slow, and what the ideal is, in words."""
    if options.by == "stop":
        return (
            f"The last rank is stopped for all but 1/{options.slower:g} of the time. The ideal is the best of the "
            f"shares that do not change."
        )
    return (
        f"In each local step a rank sleeps {1e3 * STEP:g} ms with an equal share, in proportion to the weights that "
        f"it trains, the last rank {options.slower:g} times as long; what it computes and sends comes on top. "
        f"The ideal are the shares with which all ranks sleep equally long, with nothing on top."
    )


def _carried_out(folder: Path, options: argparse.Namespace, rounds: int, shares: object, slower: float) -> list[dict]:
    """A run; the lines of its metrics."""
    out = folder / "run"
    settings = {**SETTINGS, "model.hidden": _widths(options), "method.local_steps": options.local_steps}
    settings |= {"train.rounds": rounds, "method.shares": shares, "output.folder": str(out)}
    asleep = _seconds_of_a_weight(options) if options.by == "sleep" else 0.0
    words = [sys.executable, "-m", __spec__.name, json.dumps(settings), str(asleep), str(slower)]
    os.environ["PYTHONPATH"] = str(ROOT)
    job = Job(folder, options.ranks, words)
    try:
        wait_until(lambda: rounds_of(out) >= 1, job)
        stopping = options.by == "stop" and slower > 1
        with _stopped(job.ranks()[-1], slower) if stopping else contextlib.nullcontext():
            wait_until(lambda: rounds_of(out) >= rounds, job)
        if code := job.end(120):
            sys.exit(f"slow_rank: {job.words} ended with {code}\n{job.said[-2000:]}")
    finally:
        if not job.over:
            job.kill()
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _on_a_rank(settings: dict[str, object], asleep: float, slower: float) -> int:
    """The run, on a rank that sleeps so many seconds for each weight that it trains in a step, the last one longer."""
    from istmpi import comm
    from istmpi.config import Run
    from istmpi.methods.base import Method
    from istmpi.training.run import run_training

    communicator, forward = comm.world(), Method.forward
    times = slower if communicator.rank == communicator.size - 1 else 1.0

    def sleeping(method: Method, network, batch):
        time.sleep(asleep * times * sum(parameter.numel() for parameter in network.parameters() if parameter.dim() > 1))
        return forward(method, network, batch)

    Method.forward = sleeping
    run_training(Run().override(settings), communicator)
    return 0


@contextlib.contextmanager
def _stopped(process: int, times: float) -> Iterator[None]:
    """Meanwhile a process runs but a part of the time."""
    over = threading.Event()

    def stop_and_go() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                begun = time.monotonic()
                os.kill(process, signal.SIGSTOP)
                time.sleep(PERIOD * (1 - 1 / times))
                os.kill(process, signal.SIGCONT)
                # Whoever is late here makes a longer period of it, with the same part.
                time.sleep((time.monotonic() - begun) / (times - 1))

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---- what sleeping costs


def _widths(options: argparse.Namespace) -> list[int]:
    return [int(width) for width in options.hidden.split(",")]


def _weights(options: argparse.Namespace, share: float) -> float:
    """Of the subnet of a rank with that share of all units: 64 features in, 10 labels out."""
    first, *_, last = widths = [share * width for width in _widths(options)]
    return 64 * first + sum(map(prod, zip(widths, widths[1:]))) + 10 * last


def _seconds_of_a_weight(options: argparse.Namespace) -> float:
    return STEP / _weights(options, 1 / options.ranks)


def _ideal_step(options: argparse.Namespace) -> float:
    """Seconds of a local step in which all ranks sleep equally long, found by halving the slow rank's share."""
    low, high = 0.0, 1 / options.ranks
    for _ in range(60):
        slow = (low + high) / 2
        fast = (1 - slow) / (options.ranks - 1)
        late = options.slower * _weights(options, slow) > _weights(options, fast)
        low, high = (low, slow) if late else (slow, high)
    return _weights(options, fast) * _seconds_of_a_weight(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--by", choices=("sleep", "stop"), default="sleep")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slower", type=float, default=4.0, help="the last rank, by this factor (4)")
    parser.add_argument("--hidden", default="512,512")
    parser.add_argument("--local-steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=24, help="of the run whose shares follow the times (24)")
    parser.add_argument("--repeats", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        from istmpi.cli.main import main as as_istmpi

        as_istmpi(lambda: _on_a_rank(json.loads(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
    sys.exit(main())
