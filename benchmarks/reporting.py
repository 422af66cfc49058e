"""How every benchmark records its figures: ``results/NAME.json`` for programs, ``results/NAME.md`` for people."""

import gzip
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = Path(os.environ.get("ISTMPI_RESULTS", HERE / "results"))
"""Where reports go."""

Row = Mapping[str, str | int | float]


def report(
    name: str,
    title: str,
    rows: Sequence[Row],
    notes: str,
    launcher: str = "",
    folder: Path = RESULTS,
    facts: Mapping[str, object] | None = None,
    lines: str = "",
) -> None:
    """Print the rows as a table and write them with what is needed to repeat them; for one rank only.

    All rows have the same keys, which are the headings. ``launcher``: what stood before ``python`` on the command line.
    ``facts``: what else belongs into the file for programs. ``lines``: between the ranks of earlier jobs, of which a
    report is put together; without it the network is that of this process.
    """
    command = " ".join([*launcher.split(), "python", "-m", _module(Path(sys.argv[0])), *map(shlex.quote, sys.argv[1:])])
    record = {
        "title": title,
        "command": command,
        "commit": _COMMIT,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "host": host(),
        "network": lines or network(),
    }
    text = f"{table(rows)}\n\n{notes}"
    print(f"\n{title}\n\n{text}", flush=True)
    about = "\n".join(f"* {key}: {value}" for key, value in record.items() if key not in ("title", "command"))
    folder.mkdir(exist_ok=True)
    text = f"# {title}\n\n```\n{command}\n```\n\n{text}\n\n{about}\n"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    tree = json.dumps({**record, "notes": notes, "rows": list(rows), **(facts or {})}, indent=1) + "\n"
    (folder / f"{name}.json").write_text(tree, encoding="utf-8")


def _module(script: Path) -> str:
    inside = script.resolve().relative_to(ROOT) if script.resolve().is_relative_to(ROOT) else script
    return ".".join(inside.with_suffix("").parts).removesuffix(".__main__")


def commit() -> str:
    """The commit of the code that is measured, and whether it was changed since; $ISTMPI_COMMIT where git is not."""
    if given := os.environ.get("ISTMPI_COMMIT"):
        return given

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", "istmpi", "benchmarks/*.py", "benchmarks/cluster"
    )
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def keep_cell(path: Path, name: str, began: float, record: Mapping[str, object]) -> None:
    """Write what a cell found once all of it is there, with where it ran and how long it took since ``began``."""
    about = {
        "cell": name,
        "commit": commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "host": host(),
        "load": os.getloadavg()[0],
        "took": time.perf_counter() - began,
    }
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps({**about, **record}, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def store_cells(name: str, cells: Iterable[Path], folder: Path = RESULTS) -> None:
    """Keep what cells found, a line each, in ``NAME-cells.jsonl.gz`` beside the report, for `restore_cells`."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"file": cell.name, **json.loads(cell.read_text(encoding="utf-8"))}) for cell in sorted(cells)]
    text = "".join(f"{line}\n" for line in lines)
    # Without a time, equal cells are equal files.
    (folder / f"{name}-cells.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def restore_cells(name: str, cells: Path, folder: Path = RESULTS) -> None:
    """Put the cells of an earlier campaign, on whatever machine, into the folder of this one; what is there stays."""
    stored = folder / f"{name}-cells.jsonl.gz"
    if not stored.exists():
        return
    for line in gzip.decompress(stored.read_bytes()).decode().splitlines():
        record = json.loads(line)
        path = cells / record.pop("file")
        if not path.exists():
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def host() -> str:
    """The machine in a few words, without its name."""
    model = "unknown CPU"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def network() -> str:
    """What lies between the ranks: as benchmarks/cluster says, else whatever MPI takes on one host."""
    return os.environ.get("ISTMPI_NETWORK", "shared memory of one host")


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, aligned to be read as they stand."""
    headings = list(rows[0])
    cells = [headings, *[[_text(row[heading]) for heading in headings] for row in rows]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headings))]
    lines = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|", *lines[1:]])


def _text(value: str | int | float) -> str:
    return (
        f"{value:.4g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )


_COMMIT = commit()
"""Of the code as it was when the run began."""
