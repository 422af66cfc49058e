"""The table of several finished runs: how fast each trained, on how many ranks, and how well."""

from dataclasses import dataclass
from pathlib import Path

from istmpi.config import Run
from istmpi.record import SETTINGS, SUMMARY, RunFolder
from istmpi.report.units import number, size

TABLE = "table.md"
LEAST = 1e-9
"""Seconds of a run: there is no rate without."""


@dataclass(frozen=True)
class Row:
    """One finished run."""

    method: str
    ranks: int
    rounds: int
    seconds: float
    examples: int
    bytes: int
    score_name: str
    score: float

    @property
    def rate(self) -> float:
        """Examples of all ranks in a second."""
        return self.examples / self.seconds


def finished(folder: Path) -> list[Row]:
    """The runs in a folder's folders that have a summary, by method and ranks."""
    rows = []
    for path in sorted(folder.glob(f"*/{SUMMARY}")):
        summary = RunFolder(path.parent).summary()
        last = summary.inner("last")
        rows.append(
            Row(
                Run.load(str(path.with_name(SETTINGS))).method.name,
                summary.whole("ranks", 1),
                last.whole("round"),
                last.figure("seconds", LEAST),
                last.whole("examples", 1),
                last.whole("bytes"),
                summary.text("score_name"),
                last.inner("score").figure("score"),
            )
        )
    return sorted(rows, key=lambda row: (row.method, row.ranks))


def table(rows: list[Row]) -> str:
    """As Markdown; a method's speed-up is against its row with the fewest ranks."""
    score = rows[0].score_name if rows else "score"
    lines = [
        f"| method | ranks | rounds | seconds | examples/s | speed-up | sent by all ranks | {score} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    first: dict[str, Row] = {}
    for row in rows:
        base = first.setdefault(row.method, row)
        lines.append(
            f"| {row.method} | {row.ranks} | {row.rounds} | {row.seconds:.1f} | {number(row.rate)} | "
            f"{row.rate / base.rate:.2f} | {size(row.bytes)} | {row.score:.4f} |"
        )
    return "\n".join(lines) + "\n"
