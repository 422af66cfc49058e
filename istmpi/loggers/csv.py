"""The records as metrics.csv in the run's folder, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from istmpi.loggers.logger import Logger
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.progress import Progress

FILE = "metrics.csv"


class CSV(Logger):
    """A row for each round; where a record has a new figure, the file is written anew with a column more."""

    name = "csv"

    def begin(self, training: Training, folder: RunFolder) -> None:
        self._folder, self._columns = folder, []
        kept = [row for row in self._rows() if int(row["round"]) <= training.rounds_done]
        self._write_anew(kept)

    def log(self, progress: Progress) -> None:
        record = progress.record()
        if set(record) <= set(self._columns):
            with (self._folder.path / FILE).open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(record)
        else:
            self._write_anew([*self._rows(), record])

    def _rows(self) -> list[dict[str, str]]:
        path = self._folder.path / FILE
        if not path.exists():
            return []
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _write_anew(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        self._folder.write(FILE, text.getvalue())
