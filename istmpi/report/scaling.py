"""The table of several finished runs: how fast each trained, on how many ranks, and how well."""

import json
from dataclasses import dataclass
from pathlib import Path

from istmpi.config import Run
from istmpi.errors import DataError
from istmpi.report.units import number, size

TABLE = "table.md"


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
    for path in sorted(folder.glob("*/summary.json")):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            last = summary["last"]
            rows.append(
                Row(
                    Run.load(str(path.with_name("run.toml"))).method.name,
                    summary["ranks"],
                    last["round"],
                    last["seconds"],
                    last["examples"],
                    last["bytes"],
                    summary["score_name"],
                    last["score"]["score"],
                )
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not the summary of a run ({error!r}).") from None
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
