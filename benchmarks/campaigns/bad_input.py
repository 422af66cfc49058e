"""Files and command lines that make no sense, drawn from a seed, over all commands and readers of istmpi.

    python -m benchmarks.campaigns bad-input --cases 2000 --seed 1
    python -m benchmarks.campaigns bad-input --seed 1 --case 1234 --keep /tmp/case

Every case is a valid file or command line with something wrong in it: bytes, a name, a value, a file of another format.
It must be taken or be refused in one line, within limits of time and memory, and must leave nothing behind.
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before any library is loaded: a fork has but one thread
os.environ["NO_COLOR"] = "1"

from benchmarks.campaigns import forked, valid  # noqa: E402
from benchmarks.campaigns.damage import (  # noqa: E402
    DEEP,
    NAMES,
    NUMBERS,
    VALUES,
    damaged_bytes,
    damaged_tree,
    json_text,
)
from benchmarks.campaigns.libraries import libraries  # noqa: E402
from benchmarks.reporting import HERE, report  # noqa: E402

TINY = ["--hidden", "4", "--rounds", "1", "--local-steps", "1", "--batch", "4", "--threads", "1"]
"""Training that takes no time."""
VALUE = "VALUE"
"""What a hostile text takes the place of."""
REPORTS = ([], ["--json"], ["--csv"], ["--plot", "out.png"], ["--html", "out.html"], ["--watts", "9"])
CLIMBING = ("../../climbs", "/absolute")
"""Names that would leave a file outside the case's folder."""
HOSTILE = (
    *NUMBERS, *(name.replace("\0", "") for name in NAMES if name not in CLIMBING), "1]\n[train]\nrounds = 7",
    "[" * 5000, "[1,2", "'a", '"', "\udcff", "{}", "1979-05-27", "[[1]]", "1,,2", "$HOME", "`id`", "-", "/dev/null",
    "/nowhere/x", ".",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One command line; its files lie in the folder that it runs in. ``refused``: exit code 0 is wrong."""

    words: list[str]
    refused: bool = False
    codes: tuple[int, ...] = (0, 2, 3, 74)


Maker = Callable[[random.Random, Path, Path], Case]
"""Makes a case in a folder, of valid files in another one."""


def raw(kind: str) -> Maker:
    """A maker of raw data of a kind of ``istmpi prepare``, one file of which is damaged."""

    def make(draw: random.Random, folder: Path, assets: Path) -> Case:
        source = draw.choice(valid.RAW[kind])
        target = folder / f"data{''.join(Path(source).suffixes)}"
        shutil.copytree(assets / source, target) if (assets / source).is_dir() else shutil.copy(assets / source, target)
        files = sorted(path for path in target.rglob("*") if path.is_file()) if target.is_dir() else [target]
        victim, change = draw.choice(files), draw.random()
        if change < 0.75:
            victim.write_bytes(damaged_bytes(draw, victim.read_bytes()))
        elif change < 0.9:
            victim.write_bytes((assets / draw.choice(valid.RAW[draw.choice(sorted(valid.RAW))][-1:])).read_bytes())
        elif target.is_dir():
            with contextlib.suppress(OSError, ValueError):  # no file can have some of the names
                victim.rename(victim.with_name(draw.choice(NAMES) + victim.suffix))
        network = assets / f"run-{kind}" / "network.h5"
        if network.exists() and draw.random() < 0.3:
            return Case(["predict", str(network), target.name, "--out", "out.csv"])
        bad = draw.choice(([], [], ["--max-bad", "0.9"], ["--max-bad", draw.choice(NUMBERS)]))
        bad = bad if kind in ("speech", "images") else []
        return Case(["prepare", kind, target.name, "out.h5", *bad])

    return make


def prepared(draw: random.Random, folder: Path, assets: Path) -> Case:
    """A prepared file, or arrays in its place, with damaged bytes."""
    name = draw.choice(("speech.h5", "images.h5", "csv.h5", "arrays.npz"))
    (folder / name).write_bytes(damaged_bytes(draw, (assets / name).read_bytes()))
    network = str(assets / "run-speech" / "network.h5")
    words = (["train", "--data", name, "--dry-run"], ["costmodel", "digits", "--data", name, "--ranks", "1"])
    return Case(draw.choice((*words, ["predict", network, name, "--out", "out.csv"])))


def network(draw: random.Random, folder: Path, assets: Path) -> Case:
    """A network's file with damaged bytes, or something else under its name."""
    whole = assets / "run-digits" / "network.h5"
    other = draw.choice((b"", b"\x89HDF\r\n\x1a\n" + draw.randbytes(4000), (assets / "arrays.npz").read_bytes()))
    content = damaged_bytes(draw, whole.read_bytes()) if draw.random() < 0.8 else other
    (folder / "network.h5").write_bytes(content)
    commands = (
        "checkpoint show network.h5", "checkpoint ls .", "checkpoint verify network.h5",
        f"checkpoint diff network.h5 {whole}", "predict network.h5 digits --out out.csv",
        "export network.h5 --to npz --out out.npz", "evaluate network.h5",
    )  # fmt: skip
    words = draw.choice(commands).split()
    return Case(words, codes=(0, 1, 2, 74) if "diff" in words else (0, 2, 74))


def cluster(draw: random.Random, folder: Path, assets: Path) -> Case:
    (folder / "cluster.json").write_bytes(json_text(draw, damaged_tree(draw, valid.CLUSTER)))
    more = draw.choice(([], ["--advise", "--most-ranks", "2"], ["--json"], ["--csv"], ["--bandwidth", "1Gbit"]))
    return Case(["costmodel", "digits", "--layers", "8-4-2", "--cluster", "cluster.json", "--ranks", "2", *more])


def curve(draw: random.Random, folder: Path, assets: Path) -> Case:
    (folder / "other.json").write_bytes(json_text(random.Random(0), {**valid.CURVE, "method": "plain"}))
    tree = {**valid.CURVE, "method": draw.choice(("torch-ddp", *NAMES[:8]))}
    (folder / "curve.json").write_bytes(json_text(draw, damaged_tree(draw, tree)))
    return Case(["report", "curve.json", "other.json", *draw.choice((*REPORTS, ["--targets", "0.2,0.3"]))])


def records(draw: random.Random, folder: Path, assets: Path) -> Case:
    """A run's folder, one of whose records makes no sense."""
    run = folder / draw.choice(("run", "run", "run", "a$b", "[bold]", "two\nlines"))
    shutil.copytree(assets / "run-digits", run)
    victim = run / draw.choice(("metrics.jsonl", "metrics.jsonl", "summary.json", "failure.json", "run.toml"))
    if victim.name == "run.toml":
        victim.write_bytes(damaged_bytes(draw, victim.read_bytes()))
    elif victim.name == "metrics.jsonl":
        lines = victim.read_bytes().splitlines()
        place = draw.randrange(len(lines))
        lines[place] = json_text(draw, damaged_tree(draw, valid.parsed(lines[place])))
        victim.write_bytes(b"\n".join(lines) + b"\n")
    else:
        tree = valid.parsed(victim.read_bytes()) if victim.exists() else {"error": "it\x1b[31m failed", "exit_code": 3}
        victim.write_bytes(json_text(draw, damaged_tree(draw, tree)))
    resume = ["train", "digits", *TINY, "--out", run.name, "--resume", "auto"]
    return Case(
        draw.choice((["report", run.name, *draw.choice(REPORTS)], ["report", "."], ["job", "table", "."], resume))
    )


def run_file(draw: random.Random, folder: Path, assets: Path) -> Case:
    """A run file with values of other types, out of range, or that is no TOML."""
    import tomli_w

    from istmpi.config import Run

    tiny = {"model.hidden": [4], "train.rounds": 1, "train.batch": 4, "method.local_steps": 1}
    tree = Run.load("digits").override(tiny).tree()
    holder = draw.choice([*(section for section in tree.values() if isinstance(section, dict) and section), tree])
    key = draw.choice(sorted(holder)) if draw.random() < 0.85 else draw.choice(NAMES)
    value = draw.choice([value for value in VALUES if value not in (None, 10**400, [None], [1, "a", None])])
    if not (isinstance(value, int) and value > 4):  # many rounds would take their time
        holder[key] = value
    text = tomli_w.dumps(tree).encode("utf-8", "surrogatepass")
    tails = (
        b"\ndeep = " + b"[" * DEEP,
        b"\n[" + b"a." * 5000 + b"b]\nc = 1",
        b"\xff\xfe",
        b"\0",
        b"\n[train]\nrounds = 2",
    )
    odd = draw.random()
    if odd < 0.2:
        text += draw.choice(tails)
    elif odd < 0.3:
        text = damaged_bytes(draw, text)
    (folder / "run.toml").write_bytes(text)
    commands = ("train run.toml --dry-run", "costmodel run.toml --ranks 1,2", "job slurm run.toml --nodes 2")
    return Case(draw.choice(commands).split(), refused=odd < 0.2)


def options(draw: random.Random, folder: Path, assets: Path) -> Case:
    """A command line, one of whose values makes no sense."""
    value, line = draw.choice(HOSTILE), draw.choice(valid.command_lines(str(assets / "run-digits")))
    words = [word.replace(VALUE, value) for word in line]
    codes = (0, 1, 2, 3, 74) if words[0] == "doctor" or words[:2] == ["checkpoint", "diff"] else (0, 2, 3, 74)
    return Case(words, codes=codes)


READERS: dict[str, tuple[Maker, int]] = {
    **{kind: (raw(kind), 10) for kind in valid.RAW},
    "options": (options, 30),
    "run file": (run_file, 10),
    "records": (records, 8),
    "cluster": (cluster, 8),
    "curve": (curve, 8),
    "network": (network, 8),
    "prepared": (prepared, 8),
}
"""Every reader's cases, and how often they come."""


def main(arguments: list[str]) -> int:
    """Run the cases; 1 if anything was found."""
    given = _options(arguments)
    started = time.monotonic()
    names = given.only.split(",") if given.only else list(READERS)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    findings: dict[str, list[int]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bad-input-") as place:
        os.environ["MPLCONFIGDIR"] = f"{place}/matplotlib"
        forked.load_libraries()
        assets = valid.make(Path(place, "assets"))
        for number in range(given.cases) if given.case is None else [given.case]:
            if given.minutes and time.monotonic() - started > 60 * given.minutes:
                print(f"the time is up after {number} cases", file=sys.stderr)
                break
            name, case, folder = draw(given.seed, number, names, Path(place), assets)
            outcome = forked.run(case.words, folder, forked.Limits(given.seconds, given.megabytes))
            kind = "taken" if outcome.code == 0 else "refused" if outcome.code in case.codes else "wrong"
            counts[name].update(["cases", kind])
            for problem in forked.problems(outcome, case.refused, case.codes):
                counts[name]["findings"] += 1
                findings[f"{name}: {problem}"].append(number)
                print(f"case {number}: {name}: {problem}\n    istmpi {_shown(case.words)}", flush=True)
            if given.case is not None:
                print(f"istmpi {_shown(case.words)}\nexit code {outcome.code}\n{outcome.out}{outcome.err}", end="")
            if given.keep:
                shutil.copytree(folder, given.keep, symlinks=True)
            with contextlib.suppress(OSError):
                shutil.rmtree(os.fsencode(folder))
    columns = ("cases", "taken", "refused", "findings")
    rows = [{"reader": name, **{column: counts[name][column] for column in columns}} for name in sorted(counts)]
    if given.case is None:
        rows.append({"reader": "all", **{column: sum(row[column] for row in rows) for column in columns}})
        seconds = time.monotonic() - started
        notes = f"Seed {given.seed}, {seconds:.0f} s. Taken: exit code 0; refused: one line and its code."
        report("campaign-bad-input", "Bad input", rows, f"{notes} {libraries()}.", folder=given.results)
    for key, numbers in sorted(findings.items(), key=lambda item: -len(item[1])):
        print(f"{len(numbers):5} x {key}   (--seed {given.seed} --case {numbers[0]})")
    return int(bool(findings))


def draw(seed: int, number: int, names: Sequence[str], work: Path, assets: Path) -> tuple[str, Case, Path]:
    """A case: its reader, its command line, and the folder that its files were made in."""
    source = random.Random(f"{seed}/{number}")
    name = source.choices(names, [READERS[name][1] for name in names])[0]
    folder = work / f"case-{number}"
    folder.mkdir()
    return name, READERS[name][0](source, folder, assets), folder


def _shown(words: list[str]) -> str:
    return re.sub(r"(.{60}).{200,}?(.{20})(?= |$)", r"\1...\2", " ".join(ascii(word)[1:-1] for word in words))[:400]


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.campaigns bad-input", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="so many (2000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--only", metavar="READER,...", help=f"of {', '.join(READERS)}")
    parser.add_argument("--case", type=int, metavar="N", help="this one alone, with what it says")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="with --case: copy its files there")
    parser.add_argument("--seconds", type=float, default=40, help="for a case (40), longer on a busy machine")
    parser.add_argument("--megabytes", type=int, default=700, help="of memory for a case (700)")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER", help="for the table")
    given = parser.parse_args(arguments)
    if unknown := set((given.only or "").split(",")) - {"", *READERS}:
        parser.error(f"--only {', '.join(sorted(unknown))}: readers are {', '.join(READERS)}")
    return given
