"""Measures how long a host takes for the file of a save."""

import tempfile
import time
from pathlib import Path

import numpy as np

from istmpi.checkpoint.format import Header, Piece
from istmpi.checkpoint.saver import commit
from istmpi.comm import Communicator
from istmpi.errors import OutputError
from istmpi.training.loop import Training

REPEATS = 5


def time_file(folder: Path, training: Training, communicator: Communicator) -> float:
    """Return the seconds in which rank 0 makes, writes, syncs and names the file of a training on
    the disk of a ``folder``; 0 if it cannot. Collective."""
    header, pieces, _ = training.collect_state()
    seconds = 0.0
    # Messages of a save are counted apart, so rank 0 writes its rows alone.
    with communicator.among([0]) as alone:
        if alone:
            seconds = _time_commits(folder, header, pieces, alone)
    return communicator.broadcast_from_root(seconds)


def _time_commits(folder: Path, header: Header, pieces: list[Piece], alone: Communicator) -> float:
    """Return the median over `REPEATS` files."""
    try:
        with tempfile.TemporaryDirectory(dir=_find_existing(folder), prefix=".istmpi-") as place:
            times = []
            for number in range(REPEATS):
                start = time.perf_counter()
                commit(Path(place, f"{number}.h5"), header, pieces, "direct", alone)
                times.append(time.perf_counter() - start)
            return float(np.median(times))
    # The folder may be read-only, or full.
    except (OSError, OutputError):
        return 0.0


def _find_existing(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists."""
    place = folder.absolute()
    while not place.is_dir():
        place = place.parent
    return place
