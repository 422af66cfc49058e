"""What ``istmpi train --survive`` is worth: ranks killed at random moments, what copies cost, goodput with failures.

    MPIRUN=.../mpirun python benchmarks/survival.py kills cost goodput --out FOLDER

needs an Open MPI 5 with ULFM. Each part prints a table in Markdown; they are in results/survival.md. Every run trains
the digits on ranks of this host, or, with ``--rate``, of emulated ones (benchmarks/cluster), a rank on each. Moments
are drawn from ``--seed``: the round, the rank, and how far in the phase.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

PHASES = {"training": "compute", "hop": "hop", "checkpoint": "save", "evaluation": "evaluate"}
LOSE = Path(__file__).with_name("lose.py")
TRUSTING = {
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
LIMIT = 300


def start(ranks, words):
    """What stands in front of a command, with more words for mpirun."""
    if not given.rate:
        return [os.environ.get("MPIRUN", "mpirun"), *words.split(), "-n", str(ranks)]
    cluster = [sys.executable, str(LOSE.with_name("cluster")), "--hosts", str(ranks), "--rate", given.rate]
    return [*cluster, "--name", "survival", f"--mpirun={words}", "--"]


def train(folder, ranks, faults, *settings, survive=True):
    """One run; its exit code, seconds, lines of metrics and summary."""
    began = time.monotonic()
    command = [*start(ranks, "--with-ft ulfm" * survive), sys.executable, str(LOSE)]
    command += [faults, "train", "digits", "--out", str(folder), "--quiet"]
    command += ["--survive"] * survive
    for setting in settings:
        command += ["--set", setting] if not setting.startswith("--") else setting.split("=")
    done = subprocess.run(
        command, env={**os.environ, **TRUSTING}, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    seconds = time.monotonic() - began
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = folder / "summary.json"
    return done, seconds, read, json.loads(summary.read_text()) if summary.exists() else {}


def accuracy(lines):
    return [line["score"] for line in lines if "score" in line][-1]


def kills(out, seed, count, ranks):
    """Ranks killed at random moments of each phase."""
    rounds, every = 16, 4
    settings = (f"train.rounds={rounds}", "evaluate.every=2", f"checkpoint.every={every}")
    undisturbed = accuracy(train(out / "kills-undisturbed", ranks, "", *settings)[2])
    drawn, rows, scores = random.Random(seed), [], []
    print(f"accuracy undisturbed: {undisturbed:.4f}\n", flush=True)
    print("| moment | rank | at | went on | lost round | seconds lost | accuracy |\n|---|---|---|---|---|---|---|")
    for number in range(count):
        name = list(PHASES)[number % len(PHASES)]
        times = drawn.randint(1, rounds // {"checkpoint": every, "evaluation": 2}.get(name, 1) - 1)
        rank, inside = drawn.randrange(ranks), drawn.uniform(0, 0.05)
        faults = f"{rank}:{PHASES[name]}:{times}:{inside:.3f}"
        done, _, lines, summary = train(out / f"kills-{number}", ranks, faults, *settings)
        whole = done.returncode == 0 and [line["round"] for line in lines] == list(range(1, rounds + 1))
        losses = summary.get("losses", [])
        rows.append(whole and len(losses) == 1 and losses[0]["rank"] == rank)
        scores.append(accuracy(lines))
        seconds = losses[0]["seconds"] if losses else float("nan")
        lost = losses[0]["round"] if losses else "-"
        print(
            f"| {name} {times} | {rank} | {1000 * inside:.0f} ms | {'yes' if rows[-1] else 'NO'} | {lost} | "
            f"{seconds:.2f} | {scores[-1]:.4f} |",
            flush=True,
        )
    print(f"\n{sum(rows)} of {count} went on; accuracy {min(scores):.4f} to {max(scores):.4f}.\n", flush=True)


def cost(out, seed, count, ranks):
    """Seconds of a round without failures: without --survive, with it, with buddies; turn by turn."""
    ways = {
        "without --survive": (False, ""),
        "without buddies": (True, "comm.buddies=false"),
        "with buddies": (True, ""),
    }
    settings = ("train.rounds=12", "evaluate.every=100", "model.hidden=[1024,1024]", "method.local_steps=50")
    seconds = {way: [] for way in ways}
    for turn in range(count):
        for way, (survive, setting) in ways.items():
            folder = out / f"cost-{turn}-{way.replace(' ', '-')}"
            lines = train(folder, ranks, "", *settings, *filter(None, [setting]), survive=survive)[2]
            seconds[way].append(statistics.median(line["round_seconds"] for line in lines[2:]))
    print("| | seconds a round, median of turns | least | beside none, median of the turns' ratios | ratios |")
    print("|---|---|---|---|---|")
    for way, of in seconds.items():
        ratios = sorted(one / none for one, none in zip(of, seconds["without --survive"]))
        words = f"{statistics.median(ratios) - 1:+.1%} | {ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(f"| {way} | {statistics.median(of):.3f} | {min(of):.3f} | {words} |")
    print(flush=True)


def goodput(out, seed, count, ranks):
    """The share of the time that went into rounds which count, with a rank killed every 20 rounds."""
    rounds, between = 60, 20
    settings = (f"train.rounds={rounds}", "evaluate.every=100", "checkpoint.every=10")
    drawn = random.Random(seed)
    victims = drawn.sample(range(ranks), 2)
    at = [between * (number + 1) - drawn.randint(0, between // 2) for number in range(2)]
    faults = ",".join(f"{rank}:compute:{times}" for rank, times in zip(victims, at))
    survived = train(out / "goodput-survive", ranks, faults, *settings)[2]
    folder, lines, left = out / "goodput-resume", [], ranks
    for times in (*at, 0):
        done = len(lines) and lines[-1]["round"] // 10 * 10
        fault = f"0:compute:{times - done}" if times else ""
        lines = train(folder, left, fault, *settings, "--resume=auto", survive=False)[2]
        left -= 1
    print("| | ranks lost in rounds | seconds | of rounds that count | goodput |\n|---|---|---|---|---|")
    for way, of in (("--survive", survived), ("stop and resume", lines)):
        wall = stamp(of[-1]) - stamp(of[0]) + of[0]["round_seconds"]
        useful = sum(line.get("round_seconds", 0) for line in of)
        print(f"| {way} | {', '.join(map(str, at))} | {wall:.1f} | {useful:.1f} | {useful / wall:.2f} |")
    print(flush=True)


def stamp(line):
    from datetime import datetime

    return datetime.fromisoformat(line["time"]).timestamp()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["kills", "cost", "goodput"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--count", type=int, default=20, help="kills, or turns of cost")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", help="of each rank's emulated host, in tc's words; without it all are on this one")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for part in given.parts:
        {"kills": kills, "cost": cost, "goodput": goodput}[part](given.out, given.seed, given.count, given.ranks)
