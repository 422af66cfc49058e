"""What ``istmpi train --survive`` is worth: ranks killed at random moments, what copies cost, goodput with failures.

    MPIRUN=.../mpirun python benchmarks/survival.py kills cost goodput --out FOLDER

needs an Open MPI 5 with ULFM. Each part prints a table in Markdown; they are in results/survival.md. Every run trains
the digits on ranks of this host, or, with ``--rate``, of emulated ones (benchmarks/cluster), a rank on each. Moments
are drawn from ``--seed``: the round, the rank, and how far in the phase.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from emulated import FOR_OPEN_MPI

PHASES = {"training": "compute", "hop": "hop", "checkpoint": "save", "evaluation": "evaluate"}
LOSE = Path(__file__).with_name("lose.py")
TRUSTING = {
    **FOR_OPEN_MPI,
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
LIMIT = 300


@dataclass(frozen=True)
class Ended:
    """What became of a run."""

    why: str
    """Why it did not come to its end; empty where it did."""
    lines: list
    """Of its metrics."""
    losses: list

    def finding(self, rounds):
        """What is wrong with it, in words; empty where it has told of so many rounds, each once."""
        told = [line["round"] for line in self.lines] == list(range(1, rounds + 1))
        return self.why or ("" if told else "not each round told once")


@dataclass(frozen=True)
class Campaign:
    """Where runs are made, and how."""

    out: Path
    seed: int
    count: int
    ranks: int
    rate: str | None

    def start(self, ranks, words):
        """What stands in front of a command, with more words for mpirun."""
        if not self.rate:
            return [os.environ.get("MPIRUN", "mpirun"), *words.split(), "-n", str(ranks)]
        cluster = [sys.executable, str(LOSE.with_name("cluster")), "--hosts", str(ranks), "--rate", self.rate]
        return [*cluster, "--name", "survival", f"--mpirun={words}", "--"]

    def train(self, name, ranks, faults, *settings, survive=True):
        """One run, in a folder of that name."""
        folder = self.out / name
        command = [*self.start(ranks, "--with-ft ulfm" * survive), sys.executable, str(LOSE)]
        command += [faults, "train", "digits", "--out", str(folder), "--quiet"]
        command += ["--survive"] * survive
        for setting in settings:
            command += ["--set", setting] if not setting.startswith("--") else setting.split("=")
        try:
            done = subprocess.run(
                command, env={**os.environ, **TRUSTING}, capture_output=True, text=True, timeout=LIMIT, check=False
            )
            why = f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            why = f"not over after {LIMIT} s"
        summary = "".join(read(folder / "summary.json"))
        return Ended(
            why or ("" if summary else "no summary"),
            [json.loads(line) for line in read(folder / "metrics.jsonl") if line.endswith("}\n")],
            json.loads(summary or "{}").get("losses") or [],
        )


def read(path):
    """The lines of a file; none where it is missing."""
    with suppress(FileNotFoundError), path.open() as file:
        return list(file)
    return []


def accuracy(ended):
    """The last one known; NaN where none is."""
    return next((line["score"] for line in reversed(ended.lines) if "score" in line), math.nan)


def kills(campaign):
    """Ranks killed at random moments of each phase."""
    rounds, every, ranks = 16, 4, campaign.ranks
    settings = (f"train.rounds={rounds}", "evaluate.every=2", f"checkpoint.every={every}")
    undisturbed = accuracy(campaign.train("kills-undisturbed", ranks, "", *settings))
    drawn, rows, scores = random.Random(campaign.seed), [], []
    print(f"accuracy undisturbed: {undisturbed:.4f}\n", flush=True)
    print("| moment | rank | at | went on | lost round | seconds lost | accuracy |\n|---|---|---|---|---|---|---|")
    for number in range(campaign.count):
        name = list(PHASES)[number % len(PHASES)]
        times = drawn.randint(1, rounds // {"checkpoint": every, "evaluation": 2}.get(name, 1) - 1)
        rank, inside = drawn.randrange(ranks), drawn.uniform(0, 0.05)
        ended = campaign.train(f"kills-{number}", ranks, f"{rank}:{PHASES[name]}:{times}:{inside:.3f}", *settings)
        losses, score = ended.losses, accuracy(ended)
        found = ended.finding(rounds)
        if not found and [loss["rank"] for loss in losses] != [rank]:
            found = "not this loss alone"
        rows.append(not found)
        scores += [score] * math.isfinite(score)
        seconds, lost = (losses[0]["seconds"], losses[0]["round"]) if losses else (math.nan, "-")
        print(
            f"| {name} {times} | {rank} | {1000 * inside:.0f} ms | {f'NO: {found}' if found else 'yes'} | {lost} | "
            f"{seconds:.2f} | {score:.4f} |",
            flush=True,
        )
    between = f"; accuracy {min(scores):.4f} to {max(scores):.4f}" if scores else ""
    print(f"\n{sum(rows)} of {campaign.count} went on{between}.\n", flush=True)


def cost(campaign):
    """Seconds of a round without failures: without --survive, with it, with buddies; turn by turn."""
    none = "without --survive"
    ways = {none: (False, ""), "without buddies": (True, "comm.buddies=false"), "with buddies": (True, "")}
    rounds = 12
    settings = (f"train.rounds={rounds}", "evaluate.every=100", "model.hidden=[1024,1024]", "method.local_steps=50")
    turns, findings = [], []
    for turn in range(campaign.count):
        seconds = {}
        for way, (survive, setting) in ways.items():
            name = f"cost-{turn}-{way.replace(' ', '-')}"
            chosen = (*settings, *filter(None, [setting]))
            ended = campaign.train(name, campaign.ranks, "", *chosen, survive=survive)
            if found := ended.finding(rounds):
                findings.append(f"NO: turn {turn}, {way}: {found}")
            else:
                seconds[way] = statistics.median(line["round_seconds"] for line in ended.lines[2:])
        if seconds.keys() == ways.keys():
            turns.append(seconds)
    print("| | seconds a round, median of turns | least | beside none, median of the turns' ratios | ratios |")
    print("|---|---|---|---|---|")
    for way in ways if turns else ():
        of, ratios = [turn[way] for turn in turns], sorted(turn[way] / turn[none] for turn in turns)
        words = f"{statistics.median(ratios) - 1:+.1%} | {ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(f"| {way} | {statistics.median(of):.3f} | {min(of):.3f} | {words} |")
    print("".join(f"\n{finding}" for finding in findings), flush=True)


def goodput(campaign):
    """The share of the time that went into rounds which count, a rank killed every 20 rounds; the same each way."""
    rounds, between, every, ranks = 60, 20, 10, campaign.ranks
    settings = (f"train.rounds={rounds}", "evaluate.every=100", f"checkpoint.every={every}")
    drawn = random.Random(campaign.seed)
    victims = drawn.sample(range(ranks), 2)
    at = [between * (number + 1) - drawn.randint(0, between // 2) for number in range(2)]
    faults = ",".join(f"{rank}:compute:{times}" for rank, times in zip(victims, at))
    ended = {"--survive": campaign.train("goodput-survive", ranks, faults, *settings)}
    left, resume = list(range(ranks)), (*settings, "--resume=auto")
    for victim, times in zip(victims, at):
        fault = f"{left.index(victim)}:compute:{times - saved(campaign.out / 'goodput-resume')}"
        campaign.train("goodput-resume", len(left), fault, *resume, survive=False)
        left.remove(victim)
    ended["stop and resume"] = campaign.train("goodput-resume", len(left), "", *resume, survive=False)
    print("| | ranks lost | in rounds | seconds | of rounds that count | goodput |\n|---|---|---|---|---|---|")
    for way, of in ended.items():
        lost = f"{', '.join(map(str, victims))} | {', '.join(map(str, at))}"
        if found := of.finding(rounds):
            print(f"| {way} | {lost} | NO: {found} | | |")
            continue
        seconds = counted(of.lines)
        wall = stamp(of.lines[-1]) - stamp(of.lines[0]) + seconds[0]
        print(f"| {way} | {lost} | {wall:.1f} | {sum(seconds):.1f} | {sum(seconds) / wall:.2f} |")
    print("\nA round in which a rank was lost and the others went on counts as the median of the rounds beside it.\n")


def saved(folder):
    """Rounds done at the last checkpoint in a run's folder."""
    return max((int(path.stem.split("-")[1]) for path in (folder / "checkpoints").glob("round-*.h5")), default=0)


def counted(lines):
    """Seconds of each round; of one that has none, for a rank was lost in it, the median of the rounds beside it."""
    seconds = [line.get("round_seconds") for line in lines]
    beside = [[one for one in seconds[max(at - 1, 0) : at + 2] if one is not None] for at in range(len(seconds))]
    return [statistics.median(near or [0.0]) if one is None else one for one, near in zip(seconds, beside)]


def stamp(line):
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
        {"kills": kills, "cost": cost, "goodput": goodput}[part](
            Campaign(given.out, given.seed, given.count, given.ranks, given.rate)
        )
