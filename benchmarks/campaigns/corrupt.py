"""Damaged checkpoints and prepared files: each must be refused in one line, or say the very same as before.

    python -m benchmarks.campaigns corrupt --cases 2000 --seed 1
    python -m benchmarks.campaigns corrupt --seed 1 --case 1234 --keep FOLDER

The files are real: of several kinds of runs on three ranks, and prepared from arrays, images and a table. A case is
drawn from the seed and its number: a file, a damage (tests/support/damaging.py), and a command to try beside the
reading of every byte. It runs in a process of its own, within limits of time and memory.
"""

import argparse
import contextlib
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np

from benchmarks.campaigns import forked
from benchmarks.campaigns.libraries import libraries
from benchmarks.reporting import HERE, report

sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from checkpoint_files import make_checkpoints  # noqa: E402
from damage import checkpoint_contents, data_contents, judged  # noqa: E402
from damaging import damage  # noqa: E402
from data_files import make_csv, make_images  # noqa: E402

from istmpi.data.prepare import prepare  # noqa: E402

SECONDS, BYTES = 60, 3 * 2**30
"""That a case may take."""
CHECKPOINT_COMMANDS = ("verify {}", "ls --json {folder}", "show {}")
OUTCOMES = ("refused", "identical", "wrong")


def main(arguments: list[str]) -> int:
    """Run the cases; 1 when one of them ended otherwise than it must."""
    parser = argparse.ArgumentParser(
        "corrupt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, help="so many (2000; with --minutes as many as there is time)")
    parser.add_argument("--minutes", type=float, help="after which no further one begins")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="This one alone.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="Leave the damaged files of wrong cases there.")
    parser.add_argument(
        "--launcher", default=f"{os.environ.get('MPIRUN', 'mpirun')} -n 3", help="Of the runs that save."
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", help="Where the figures go.")
    options = parser.parse_args(arguments)
    counts: dict[str, Counter[str]] = {}
    started, wrong = time.monotonic(), 0
    forked.load_libraries()
    with tempfile.TemporaryDirectory() as place:
        files = real_files(Path(place), options.launcher.split())
        expected = {path: contents_of(path)(path) for path in files}
        cases = options.cases or (10**7 if options.minutes else 2000)
        for number in range(cases) if options.case is None else [options.case]:
            if options.minutes and time.monotonic() - started > 60 * options.minutes:
                break
            name, problem, outcome = run_training(
                number, options.seed, files, expected, Path(place) / "case", options.keep
            )
            counts.setdefault(name, Counter())[outcome] += 1
            if problem:
                wrong += 1
                print(f"case {number}: {name}: {problem}", file=sys.stderr, flush=True)
    counts = {**dict(sorted(counts.items())), "all": sum(counts.values(), Counter())}
    rows = [{"damage": name, **{outcome: found[outcome] for outcome in OUTCOMES}} for name, found in counts.items()]
    if options.case is None:
        seconds = time.monotonic() - started
        notes = (
            f"Seed {options.seed}, {seconds:.0f} s. Refused: in one line that names the file. Identical: "
            "header and all contents are those of the file before, as when padding was hit. Wrong: anything else. "
            f"{libraries()}."
        )
        title = f"{sum(counts['all'].values())} damaged checkpoints and prepared files"
        report("campaign-corrupt", title, rows, notes, folder=options.results)
    return int(wrong > 0)


def real_files(folder: Path, launcher: list[str]) -> list[Path]:
    """Checkpoints and prepared files; see checkpoint_files.py and data_files.py of the tests."""
    checkpoints, data = folder / "checkpoints", folder / "data"
    checkpoints.mkdir()
    data.mkdir()
    make_checkpoints(checkpoints, launcher)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(90, 1500)).astype(np.float32), generator.normal(size=(90, 2))
    np.savez(folder / "wide.npz", x_train=x[:70], y_train=y[:70], x_test=x[70:], y_test=y[70:])
    prepare("arrays", folder / "wide.npz", data / "wide.h5")
    prepare("images", make_images(folder / "images"), data / "images.h5")
    prepare("csv", make_csv(folder / "table"), data / "table.h5")
    return sorted(checkpoints.glob("*.h5")) + sorted(data.glob("*.h5"))


def contents_of(path: Path) -> Callable[[Path], object]:
    return data_contents if path.parent.name == "data" else checkpoint_contents


def run_training(
    number: int, seed: int, files: list[Path], expected: dict[Path, object], folder: Path, keep: Path | None
) -> tuple[str, str, str]:
    """One case: the name of the damage, what is wrong with the outcome if anything is, and the outcome."""
    generator = random.Random(f"{seed} {number}")
    original = generator.choice(files)
    folder.mkdir()
    path = folder / original.name
    shutil.copy(original, path)
    name = damage(path, generator)
    of_data = original.parent.name == "data"
    words = "data verify {}" if of_data else f"checkpoint {generator.choice(CHECKPOINT_COMMANDS)}"
    words = [word.format(path, folder=folder) for word in words.split()]
    outcome, said = in_a_fork(lambda: judged(path, contents_of(original), expected[original]))
    problem = said if outcome == "wrong" else ""
    if not problem:
        problem = problems_of_command(words, folder, outcome == "identical")
    if problem and keep:
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, keep / f"{seed}-{number}-{path.name}")
    shutil.rmtree(folder)
    return name, problem and f"{original.name}: {problem}", "wrong" if problem else outcome


def problems_of_command(words: list[str], folder: Path, whole: bool) -> str:
    """What is wrong with how a command ends; ``whole`` says whether its file is what it was."""
    outcome = forked.run(words, folder, forked.Limits(SECONDS, BYTES // 2**20))
    verified = 0 if whole else 2
    codes = {"verify": (verified,), "ls": (0,), "show": (0, verified)}
    found = forked.problems(outcome, False, codes[words[1]])
    return f"istmpi {' '.join(words)}: {'; '.join(found)}" * bool(found)


def in_a_fork(work: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """What ``work`` returns, done in a process of its own; a crash, an exception or a hang is wrong."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_child(work, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        in_time = bool(select.select([pipe], [], [], SECONDS)[0])
        if not in_time:
            os.kill(child, signal.SIGKILL)
        outcome, _, said = pipe.read().decode(errors="replace").partition("\n")
    _, status = os.waitpid(child, 0)
    if not in_time:
        return "wrong", f"not over after {SECONDS} s"
    if status:
        return "wrong", f"ended by {os.waitstatus_to_exitcode(status)}"
    return outcome, said


def _be_the_child(work: Callable[[], tuple[str, str]], writing: int) -> NoReturn:
    code = 1
    with contextlib.suppress(BaseException):
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        try:
            outcome, said = work()
        except BaseException:
            outcome, said = "wrong", traceback.format_exc()[-600:]
        os.write(writing, f"{outcome}\n{said}".encode(errors="replace")[:4000])
        code = 0
    os._exit(code)
