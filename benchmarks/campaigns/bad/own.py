"""A user's data set, network, loss, score and optimizer in a file of his own, with one thing or two that are wrong."""

import json
import random
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from benchmarks.campaigns import forked
from benchmarks.campaigns.bad.cases import Assets, Case

PROGRAM = Path(__file__).with_name("own_program.txt").read_text(encoding="utf-8")
"""A program with slots."""
CORRECT = {
    "classes": 'classes = ["a", "b", "c"]',
    "made": "pass",
    "len": "return len(self.x)",
    "item": "return x, int(y)",
    "splits": "pass",
    "returned": '{"train": train, "test": test}',
    "loss": "",
    "score": "",
    "names": "",
    "collate": "",
    "outputs": "3",
    "forward": "return outputs",
    "optimizer_class": "torch.optim.SGD",
    "optimizer": "pass",
}
ACCURACY = "(outputs.argmax(1) == batch[1]).double()"
KINDS: dict[str, tuple[dict[str, str], list[str]]] = {
    "mlp": ({}, ["--hidden", "8"]),
    "network": ({}, ["--model", "mine.py:Net"]),
    "functions": (
        {
            "loss": "def loss(outputs, batch): return functional.cross_entropy(outputs, batch[1])",
            "score": f"def score(outputs, batch): return {ACCURACY}.mean()",
            "names": "score_name, higher_is_better = 'hits', True",
        },
        ["--model", "mine.py:Net"],
    ),
    "numbers": (
        {"classes": "", "item": "return x, y.float()", "outputs": "1"},
        ["--model", "mine.py:Net"],
    ),
    "optimizer": ({}, ["--model", "mine.py:Net", "--optimizer", "mine.py:Opt"]),
}
"""Correct programs: the slots in which they differ from `CORRECT`, and their options."""

SAME, REFUSED, EITHER, ANY = "same", "refused", "either", "any"
"""What must come of a change: the score of the correct program; an error; one of these two; all but a trace."""


def changes() -> dict[str, list[tuple[str, str]]]:
    """Read the changes of each slot: what must come of one, and its text."""
    read: dict[str, list[tuple[str, str]]] = {}
    for line in Path(__file__).with_name("own_changes.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        slot, verdict, text = line.split("\t")
        read.setdefault(slot, []).append((verdict, text))
    return read


CHANGES = changes()
WHERE = {
    "classes": ("mlp", "network", "optimizer"),
    "loss": ("functions",),
    "score": ("functions",),
    "names": ("functions",),
    "forward": ("network", "functions"),
    "optimizer": ("optimizer",),
}
"""The correct programs in which a slot matters; all where it is not named."""


def own(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A correct program with one change or two of its slots."""
    kind = draw.choice(list(KINDS))
    slots = [slot for slot in CHANGES if kind in WHERE.get(slot, KINDS)]
    chosen = draw.sample(slots, draw.choice((1, 1, 1, 2)))
    changes = {slot: draw.choice(CHANGES[slot]) for slot in chosen}
    must = [verdict for verdict, _ in changes.values()]
    verdict = must[0] if len({*must}) == 1 and (len(must) == 1 or must[0] in (SAME, REFUSED)) else ANY
    if kind == "numbers":
        verdict = ANY if changes.keys() & {"item", "made", "splits"} else verdict
    words = write(folder, kind, {slot: text for slot, (_, text) in changes.items()}, draw.random() < 0.2)
    leaves = any("sys.exit" in text for _, text in changes.values())
    codes = (0, 2, 3, 74) + (1,) * leaves
    expected = score_of(kind, words[0])
    same = same_score(expected) if verdict in (SAME, EITHER) else None
    return Case(words, verdict == REFUSED, codes, right=same, taken=verdict == SAME)


def write(folder: Path, kind: str, changed: Mapping[str, str], is_simulated: bool = False) -> list[str]:
    """Write the program of a kind with changed slots; return the command that trains with it."""
    its, options = KINDS[kind]
    (folder / "mine.py").write_text(PROGRAM.format(**{**CORRECT, **its, **changed}), errors="surrogatepass")
    words = ["simulate", "--ranks", "2"] if is_simulated else ["train"]
    words += ["digits", "--data", "mine.py:splits", *options, "--rounds", "2", "--local-steps", "6", "--batch", "16"]
    return [*words, "--lr", "0.3", "--seed", "1", "--set", "train.threads=1", "--out", "run"]


@cache
def score_of(kind: str, command: str) -> float:
    """Return the score of a correct program."""
    with tempfile.TemporaryDirectory(prefix="own-") as place:
        folder = Path(place, "correct")
        folder.mkdir()
        outcome = forked.run(write(folder, kind, {}, command == "simulate"), folder, forked.Limits(60, 900))
        if outcome.code:
            raise RuntimeError(f"the correct program {kind} ends with {outcome.code}: {outcome.err}")
        return scored(folder)


def scored(folder: Path) -> float:
    return json.loads((folder / "run" / "summary.json").read_text())["last"]["score"]["score"]


def same_score(expected: float):
    """Return a check that a run has a correct program's score."""

    def check(folder: Path, _: str) -> str:
        score = scored(folder)
        return "" if abs(score - expected) < 1e-6 else f"score {score}, not {expected}"

    return check
