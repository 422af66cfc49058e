"""The table of several finished runs: how fast each trained, on how many ranks, and how well."""

from pathlib import Path

from istmpi.config import Run
from istmpi.record import SETTINGS, SUMMARY, RunFolder
from istmpi.report.units import number, size

TABLE = "table.md"
LEAST = 1e-9
"""The shortest time of a run: there is no rate without one."""


def table(folder: Path) -> str:
    """The finished runs in a folder's folders as Markdown, by method and ranks; empty if there are none.

    A method's speed-up is against its run with the fewest ranks.
    """
    runs = []
    for path in sorted(folder.glob(f"*/{SUMMARY}")):
        summary, method = RunFolder(path.parent).summary(), Run.load(str(path.with_name(SETTINGS))).method.name
        runs.append((method, summary.whole("ranks", 1), summary.inner("last"), summary.text("score_name")))
    runs.sort(key=lambda run: run[:2])
    rows, first = [], {}
    for method, ranks, last, _ in runs:
        seconds = last.figure("seconds", LEAST)
        rate = last.whole("examples", 1) / seconds
        cells = method, ranks, last.whole("round"), f"{seconds:.1f}", number(rate)
        cells += f"{rate / first.setdefault(method, rate):.2f}", size(last.whole("bytes"))
        rows.append((*cells, f"{last.inner('score').figure('score'):.4f}"))
    if rows:
        titles = "method", "ranks", "rounds", "seconds", "examples/s", "speed-up", "sent by all ranks", runs[0][-1]
        rows = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)
