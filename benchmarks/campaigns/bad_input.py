"""Files and command lines that make no sense, drawn from a seed, over all commands and readers of istmpi.

    python -m benchmarks.campaigns bad-input --cases 2000 --seed 1
    python -m benchmarks.campaigns bad-input --seed 1 --case 1234 --keep /tmp/case

Every case is a small valid file or command line with something wrong in it: a length, a type, a name, a checksum, a
depth. It must be taken or be refused in one line, within limits of time and memory, and must leave nothing behind.
Where there is a right value, of classes, counts, features or answers, what is taken must have it.
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
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before any library is loaded: a fork has but one thread
os.environ["NO_COLOR"] = "1"

from benchmarks.campaigns import forked  # noqa: E402
from benchmarks.campaigns.bad import (  # noqa: E402  # noqa: E402
    array_files,
    formats,
    graphs,
    layouts,
    networks,
    own,
    raw_data,
    records,
    rows,
    settings,
    tables,
)
from benchmarks.campaigns.bad.cases import TINY, Assets, Case, Maker  # noqa: E402
from benchmarks.campaigns.libraries import libraries  # noqa: E402
from benchmarks.reporting import HERE, report  # noqa: E402

READERS: dict[str, tuple[Maker, int]] = {
    "npz": (raw_data.npz, 12),
    "npy": (raw_data.npy, 8),
    "csv": (raw_data.csv, 10),
    "speech": (raw_data.speech, 8),
    "images": (raw_data.images, 8),
    "idx": (raw_data.idx, 6),
    "tar": (raw_data.tar, 10),
    "folder": (raw_data.folder, 6),
    "graph": (graphs.graph, 8),
    "toml": (settings.toml, 10),
    "options": (settings.options, 20),
    "cluster": (records.cluster, 8),
    "records": (records.records, 8),
    "curve": (records.curve, 8),
    "checkpoint": (records.checkpoint, 4),
    "prepared": (records.prepared, 3),
    "compare": (records.compare, 1),
    "strangers": (raw_data.strangers, 6),
    "tables": (tables.table, 14),
    "predict tables": (tables.predict, 10),
    "rows": (rows.xc, 8),
    "predict rows": (rows.predict_rows, 5),
    "arrays": (rows.arrays, 10),
    "image folders": (layouts.images, 8),
    "speech lists": (layouts.speech, 6),
    "masks": (graphs.masks, 5),
    "tokenizer": (graphs.tokenizer, 4),
    "initial": (networks.initial, 10),
    "model": (networks.model, 8),
    "counts": (networks.counts, 12),
    "special files": (networks.special, 8),
    "own data": (own.own, 20),
}
"""Every reader's cases, and how often they come."""


def main(arguments: list[str]) -> int:
    """Run the cases; 1 if anything was found."""
    options = _options(arguments)
    started = time.monotonic()
    names = options.only.split(",") if options.only else list(READERS)
    numbers = range(options.cases) if options.case is None else [options.case]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    findings: dict[str, list[str]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bad-input-") as place:
        os.environ["MPLCONFIGDIR"] = f"{place}/matplotlib"
        forked.load_libraries()
        work = Path(place)
        assets = _assets(work)
        for number in numbers:
            if options.minutes and time.monotonic() - started > 60 * options.minutes:
                print(f"the time is up after {number} cases", file=sys.stderr)
                break
            name, case, folder = draw(options.seed, number, names, work, assets)
            outcome = forked.run(case.words, folder, forked.Limits(options.seconds, options.megabytes))
            counts[name]["cases"] += 1
            kind = "taken" if outcome.code == 0 else "refused" if outcome.code in case.codes else "wrong"
            counts[name][kind] += 1
            found = forked.problems(outcome, case.refused, case.codes) or case.problems(folder, outcome)
            counts[name]["findings"] += bool(found)
            for problem in found:
                key = f"{name}: {problem}"
                findings[key].append(str(number))
                if len(findings[key]) == 1:
                    print(f"case {number}: {key}\n    istmpi {_shown(case.words)}", flush=True)
            if options.case is not None:
                print(f"istmpi {_shown(case.words)}\nexit code {outcome.code}\n{outcome.out}{outcome.err}", end="")
            if options.keep:
                shutil.copytree(folder, options.keep, symlinks=True)
            _remove(folder)
    rows = [
        {"reader": name, **{kind: counts[name][kind] for kind in ("cases", "taken", "refused", "findings")}}
        for name in sorted(counts)
    ]
    total = {kind: sum(row[kind] for row in rows) for kind in ("cases", "taken", "refused", "findings")}
    if options.case is None:
        taken = time.monotonic() - started
        notes = f"Seed {options.seed}, {taken:.0f} s. Taken: exit code 0; refused: one line and its exit code. "
        rows.append({"reader": "all", **total})
        page = "campaign-own-data" if names == ["own data"] else "campaign-bad-input"
        report(page, "Bad input", rows, f"{notes}{libraries()}.", folder=options.results)
    for key, cases in sorted(findings.items(), key=lambda item: -len(item[1])):
        print(f"{len(cases):5} x {key}   (--seed {options.seed} --case {', '.join(cases[:20])})")
    return int(bool(findings))


def draw(seed: int, number: int, names: list[str], work: Path, assets: Assets) -> tuple[str, Case, Path]:
    """A case: its reader, its command line, and the folder that its files were made in."""
    source = random.Random(f"{seed}/{number}")
    name = source.choices(names, [READERS[name][1] for name in names])[0]
    folder = work / f"case-{number}"
    folder.mkdir()
    return name, READERS[name][0](source, folder, assets), folder


def _assets(work: Path) -> Assets:
    """Networks for data of several kinds, made by istmpi."""
    source, folder = random.Random(0), work / "assets"
    folder.mkdir()
    for word in ("yes", "no"):
        for speaker in range(10):
            path = folder / "words" / word / f"s{speaker}_nohash_0.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(formats.wav(source, valid=True))
    (folder / "words" / "testing_list.txt").write_text("yes/s0_nohash_0.wav\nno/s0_nohash_0.wav\n")
    for place in range(10):
        path = folder / "pictures" / ("cat" if place % 2 else "dog") / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(formats.image(source, valid=True)[1])
    for name, array in array_files.arrays().items():
        (folder / f"{name}.npy").write_bytes(array_files.npy(array))
    (folder / "arrays").mkdir()
    for name in ("x", "y"):
        (folder / f"{name}.npy").rename(folder / "arrays" / f"{name}.npy")
    table = [",".join(formats.COLUMNS), *(f"{source.gauss(0, 1)},{source.gauss(0, 1)},{row}" for row in range(20))]
    (folder / "same.csv").write_text("\n".join(table) + "\n")
    labels = ["label", *("cat" if row % 3 else "dog" for row in range(20))]
    (folder / "table.csv").write_text("\n".join(map(",".join, zip(table, labels))) + "\n")
    lines = [f"{row % 3} {row % 5 + 1}:{row / 2} 6:1 7:{row % 4 + 1}" for row in range(20)]
    (folder / "same.svm").write_text("\n".join(lines) + "\n")
    made = [["prepare", "speech", "words", "speech.h5"], ["prepare", "images", "pictures", "images.h5"]]
    made.append(["prepare", "arrays", "arrays", "arrays.h5"])
    made += [["prepare", "csv", "table.csv", "table.h5"], ["prepare", "xc", "same.svm", "rows.h5"]]
    for name in ("digits", "speech", "images", "arrays", "table", "rows"):
        settings = ["--rounds", "3", "--evaluate-every", "1", "--threads", "1"]
        settings += ["--model", "xc"] if name == "rows" else []
        data = name if name == "digits" else f"{name}.h5"
        made.append(["train", "digits", "--data", data, *TINY[:-1], f"run-{name}", *settings])
    for name, same in (("table", "same.csv"), ("rows", "same.svm")):
        outputs = ["--outputs"] * (name == "table")
        made.append(["predict", f"run-{name}/network.h5", same, *outputs, "--out", f"run-{name}/answers.csv"])
    made.append(["export", "run-digits/network.h5", "--to", "safetensors", "--out", "run-digits/network.safetensors"])
    for words in made:
        outcome = forked.run(words, folder, forked.Limits(seconds=300, megabytes=2000))
        if outcome.code:
            raise RuntimeError(f"istmpi {' '.join(words)} ended with {outcome.code}: {outcome.err}")
    for name, same in (("table", "same.csv"), ("rows", "same.svm")):
        (folder / same).rename(folder / f"run-{name}" / same)
    for path in folder.glob("run-*"):
        shutil.rmtree(path / "checkpoints", ignore_errors=True)
    return Assets(*(folder / f"run-{name}" for name in ("digits", "speech", "images", "arrays", "table", "rows")))


def _shown(words: list[str]) -> str:
    """A command line, short enough to be read."""
    return re.sub(r"(.{60}).{200,}?(.{20})(?= |$)", r"\1...\2", " ".join(ascii(word)[1:-1] for word in words))[:400]


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(os.fsencode(folder))


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
    options = parser.parse_args(arguments)
    if unknown := set((options.only or "").split(",")) - {"", *READERS}:
        parser.error(f"--only {', '.join(sorted(unknown))}: known are {', '.join(READERS)}")
    return options
