"""Damages best.h5, metrics.jsonl, summary.json and run.toml of a run; each must be said, or change nothing.

    python -m benchmarks.campaigns records --cases 300 --seed 1
    python -m benchmarks.campaigns records --seed 1 --case 123

The run has a validation split, patience and the best checkpoint. A case damages one file of a copy, and lets a command
work on the copy: train that goes on, evaluate, predict, report, verify. It ends as with the file of before (its answer,
losses, scores, weights, the reason of its end), or with a line that names the file; in no case with a trace. Values of
metrics.jsonl and run.toml that are others, and might be right, are the user's: there only the weights must stay, or a
line must say the change.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.campaigns import forked
from benchmarks.campaigns.bad.hostile import damaged_bytes, damaged_tree, json_text
from benchmarks.campaigns.kill import differences
from benchmarks.campaigns.libraries import libraries
from benchmarks.campaigns.stops import facts
from benchmarks.reporting import HERE, report

sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from damaging import damage  # noqa: E402

FILES = ("best.h5", "metrics.jsonl", "summary.json", "run.toml")
SETTINGS = ["--hidden", "16", "--local-steps", "5", "--batch", "32", "--evaluate-every", "1", "--seed", "4"]
SETTINGS += ["--set", "data.validation=0.2", "--set", "train.patience=4", "--set", "checkpoint.best=true"]
SETTINGS += ["--set", "train.threads=1", "--set", "checkpoint.every=1", "--set", "checkpoint.keep=9"]
LONGER = ["train", "digits", *SETTINGS, "--rounds", "8", "--out", "run", "--resume", "auto"]
WORSE = [*LONGER, "--lr", "1e-12"]
"""Goes on without a better score, so that best.h5 stays what it is."""
COMMANDS = {
    "best.h5": [
        WORSE,
        WORSE,
        ["evaluate", "run/best.h5", "digits"],
        ["predict", "run/best.h5", "digits", "--out", "answers.csv"],
        ["checkpoint", "verify", "run/best.h5"],
        ["report", "run"],
    ],
    "metrics.jsonl": [LONGER, WORSE, LONGER, WORSE, ["report", "run"]],
    "summary.json": [LONGER, ["train", "run", *LONGER[-2:]], ["report", "run"]],
    "run.toml": [
        ["train", "run/run.toml", "--rounds", "8", *LONGER[-2:]],
        ["report", "run"],
        ["evaluate", "run", "digits"],
    ],
}
CODES = (0, 1, 2, 3, 65, 74)


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    outcome: forked.Outcome
    weights: Path
    record: list[Any]
    end: list[Any]


def damaged(path: Path, other: Path, chance: random.Random) -> str:
    """Damage a file in a way of its kind, ``other`` being that of another run; return the damage's name."""
    content = path.read_bytes()
    older = sorted((path.parent / "checkpoints").glob("*.h5"))
    ways = {
        "missing": lambda: None,
        "another run's": other.read_bytes,
        "bytes": lambda: damaged_bytes(chance, content),
        "bytes of its end": lambda: content[: -chance.randrange(1, 200)],
    }
    if path.suffix == ".h5":
        if chance.random() < 0.7:
            return damage(path, chance)
        ways["another round's"] = lambda: chance.choice(older).read_bytes()
    else:
        lines = content.splitlines(keepends=True)
        at = chance.randrange(len(lines))
        ways["a line less"] = lambda: b"".join(lines[:at] + lines[at + 1 :])
        ways["a line twice"] = lambda: b"".join(lines[: at + 1] + lines[at:])
        ways["lines reversed"] = lambda: b"".join(lines[:at] + lines[:-1][at:][::-1])
        ways["first lines less"] = lambda: b"".join(lines[at + 1 :])
        ways["last lines less"] = lambda: b"".join(lines[:at])
    if path.name == "metrics.jsonl":
        tree = json.loads(lines[at])
        ways["odd values"] = lambda: b"".join(
            [*lines[:at], json_text(chance, damaged_tree(chance, tree)), b"\n", *lines[at + 1 :]]
        )
    if path.name == "summary.json":
        ways["odd values"] = lambda: json_text(chance, damaged_tree(chance, json.loads(content)))
    name = chance.choice(list(ways))
    changed = ways[name]()
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    return name


def plausible(path: Path, before: bytes) -> bool:
    """Return True if a damaged record has a line of each round in order, or a settings file can be read."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.name == "run.toml":
            return True
        lines = [json.loads(line) for line in text.splitlines()]
        expected = [json.loads(line) for line in before.splitlines()]
        return [line["round"] for line in lines] == [line["round"] for line in expected]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def run(words: Sequence[str], folder: Path) -> Ended:
    """Run a command in a folder; return what it left there."""
    outcome = forked.run(words, folder, forked.Limits(60, 900))
    record, end = [], []
    if words[0] == "train" and outcome.code == 0:
        try:
            record = [facts(json.loads(line)) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
            summary = json.loads((folder / "run/summary.json").read_text())
            end = [summary.get("ended"), summary.get("best")]
        except (OSError, ValueError) as error:
            end = [f"the record stays unreadable: {error}"]
    return Ended(outcome, folder / "run/network.h5", record, end)


def findings(name: str, words: Sequence[str], ended: Ended, expected: Ended, is_plausible: bool) -> list[str]:
    """Return what is wrong with a command on a damaged file."""
    found = forked.problems(ended.outcome, False, CODES)
    if found:
        return found
    lines = (ended.outcome.out + ended.outcome.err).splitlines()
    said = any(name in line and not line.startswith("best ") for line in lines)
    trains = words[0] == "train"
    if ended.outcome.code:
        return (
            []
            if said or "another run" in ended.outcome.err or ended.outcome.out == expected.outcome.out
            else [f"the file is not named: {ended.outcome.err[-200:]!r}"]
        )
    if trains:
        found = [f"weights: {line}" for line in differences(ended.weights, expected.weights)]
        if any(line.startswith("changed since") and "optimizer.lr" in line for line in lines):
            found = []  # another setting, and a line about it
        if not (said or is_plausible) and (ended.record, ended.end) != (expected.record, expected.end):
            pairs = zip([*ended.record, *ended.end], [*expected.record, *expected.end])
            first = next((f"{one}, not {other}" for one, other in pairs if one != other), "")
            found.append(f"silent: {first[:400]}; {len(ended.record)} rounds of {len(expected.record)}")
    elif name == "best.h5" and not said and words[0] != "report" and ended.outcome.out != expected.outcome.out:
        found.append(f"silent: {ended.outcome.out[-200:]!r}")
    return found


def main(arguments: list[str]) -> int:
    """Run the cases; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.campaigns records", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="this one alone, with what it says")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER", help="for the table")
    options = parser.parse_args(arguments)
    started, counts, wrong = time.monotonic(), {name: Counter() for name in FILES}, 0
    forked.load_libraries()
    with tempfile.TemporaryDirectory(prefix="records-") as place:
        whole, other = Path(place, "whole"), Path(place, "other")
        for folder, extra in ((whole, ["--lr", "0.1"]), (other, ["--lr", "0.3"])):
            folder.mkdir()
            words = ["train", "digits", *SETTINGS, "--rounds", "5", "--out", "run", *extra]
            assert run(words, folder).outcome.code == 0
        undamaged: dict[str, Ended] = {}
        for number in range(options.cases) if options.case is None else [options.case]:
            chance = random.Random(f"records {options.seed} {number}")
            name = chance.choice(FILES)
            words = chance.choice(COMMANDS[name])
            if words[0] == "train" and "--lr" not in words and words[1] == "digits":
                words = [*words, "--lr", "0.1"]
            if str(words) not in undamaged:
                folder = Path(place, f"peace-{len(undamaged)}")
                shutil.copytree(whole, folder)
                undamaged[str(words)] = run(words, folder)
            folder = Path(place, f"case-{number}")
            shutil.copytree(whole, folder)
            path = folder / "run" / name
            before = path.read_bytes()
            what = damaged(path, other / "run" / name, chance)
            could_be = name in ("metrics.jsonl", "run.toml") and plausible(path, before)
            ended = run(words, folder)
            found = findings(name, words, ended, undamaged[str(words)], could_be)
            counts[name]["cases"] += 1
            counts[name]["refused" if ended.outcome.code else "taken"] += 1
            counts[name]["findings"] += bool(found)
            wrong += bool(found)
            if found or options.case is not None:
                shown = " ".join(word for word in words if word not in SETTINGS)
                print(f"case {number}: {name}, {what}: istmpi {shown}: {'; '.join(found[:2])}", flush=True)
            if options.case is not None:
                print(f"exit code {ended.outcome.code}\n{ended.outcome.out}{ended.outcome.err}")
            shutil.rmtree(folder)
    if options.case is None:
        counts["all"] = sum(counts.values(), Counter())
        rows = [
            {"file": name, **{kind: its[kind] for kind in ("cases", "refused", "taken", "findings")}}
            for name, its in counts.items()
        ]
        notes = (
            f"Seed {options.seed}, {time.monotonic() - started:.0f} s. Refused: one line that names the file. Taken: "
            f"the result of the file of before, or a note that names the file. {libraries()}."
        )
        report("campaign-records", "Damaged records and best checkpoints", rows, notes, folder=options.results)
    return int(wrong > 0)
