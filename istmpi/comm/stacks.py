"""What the threads of a rank do, in Python's words, and the files that it is kept in when a stuck job ends."""

import faulthandler
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

FOLDER = "stacks"
"""In a run's folder: what the threads of each rank did when the job ended because one was stuck."""

_TO_WRITE = 3.0
"""Seconds that writing may take: the disk may be what the job hangs on."""


def stacks() -> str:
    """What all threads of this process do now."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def keep(by_rank: Mapping[int, str], run_folder: Path) -> str:
    """Write ranks' stacks where the run is, unless the disk hangs; where they are, in words."""
    folder = run_folder / FOLDER
    failed = ["it does not answer"]

    def write() -> None:
        try:
            folder.mkdir(exist_ok=True)
            for rank, text in by_rank.items():
                (folder / f"rank{rank}.txt").write_text(text, encoding="utf-8")
            failed.clear()
        except OSError as error:
            failed[:] = [error.strerror or str(error)]

    writes = threading.Thread(target=write, name="stacks", daemon=True)
    writes.start()
    writes.join(_TO_WRITE)
    if failed:
        return f"Stacks cannot be written to {folder} ({failed[0]})."
    ranks = ", ".join(map(str, sorted(by_rank)))
    return f"What rank{'s' * (len(by_rank) > 1)} {ranks} did stands in {folder}."
