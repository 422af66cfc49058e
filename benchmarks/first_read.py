"""The first pass over prepared data, which compares checksums, against one that does not.

    python benchmarks/first_read.py --folder FOLDER

Each pass opens the file anew and reads every example once in random order, 128 at a time, as training on one rank
does. Passes take turns; a ratio is of two neighbours in time. Disk: the file's pages are dropped from the cache before.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from reporting import report

from istmpi.data.batches import Batches
from istmpi.data.dense.file import Writer, material_of
from istmpi.data.hdf5 import open_prepared

BATCH = 128


def prepared(path: Path, features: int, dtype: np.dtype, rows: int) -> Path:
    """A file of so many training rows, and a few to test on."""
    generator = np.random.default_rng(0)
    header = material_of(
        "arrays", "", "classification", (features,), 10, tuple("0123456789"), {"train": rows, "test": 10}, dtype, 1
    )
    with Writer(path, header) as writer:
        for split, count in header.counts.items():
            for start in range(0, count, 4096):
                part = min(4096, count - start)
                x = generator.integers(0, 256, (part, features), dtype=np.uint8)
                writer.append(split, x.astype(dtype), generator.integers(0, 10, part))
    return path


def a_pass(path: Path, compare: bool, cached: bool) -> np.ndarray:
    """Seconds by the wall clock and of the processor, and the longest batch's by the wall clock."""
    if not cached:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    split = open_prepared(path).train
    if not compare:
        split.guard = None
    batches = Batches(split, np.arange(len(split)), BATCH, seed=0, stream=0)
    batches.indices(0)
    ends = [time.perf_counter()]
    processor = time.process_time()
    for step in range(batches.in_a_pass):
        batches.at(step)
        ends.append(time.perf_counter())
    return np.array([ends[-1] - ends[0], time.process_time() - processor, np.diff(ends).max()])


def measure(path: Path, cached: bool, turns: int) -> dict[str, str | int | float]:
    """One row of the table but for what it is of."""
    a_pass(path, True, True)
    times = np.array([[a_pass(path, compare, cached) for compare in (True, False)] for _ in range(turns)])
    ratios = np.quantile(times[:, 0, 0] / times[:, 1, 0], (0.25, 0.5, 0.75))
    compared, plain = np.median(times, axis=0)
    return {
        "from": "page cache" if cached else "disk",
        "MB": path.stat().st_size / 1e6,
        "compared s": compared[0],
        "not compared s": plain[0],
        "ratio": float(ratios[1]),
        "quartiles": f"{ratios[0]:.2f} .. {ratios[2]:.2f}",
        "more processor s per GB": float((compared[1] - plain[1]) / path.stat().st_size * 1e9),
        "longest batch ms": f"{1e3 * compared[2]:.0f} ({1e3 * plain[2]:.0f})",
        "turns": turns,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="Of a real disk, with 1 GB free.")
    parser.add_argument("--mb", type=int, default=800, help="Of each file.")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for features, dtype in ((4096, np.dtype(np.float32)), (3072, np.dtype(np.uint8)), (64, np.dtype(np.uint8))):
            count = options.mb * 10**6 // (features * dtype.itemsize) // (10 if features == 64 else 1)
            path = prepared(Path(folder) / f"{features}.h5", features, dtype, count)
            for cached in (True, False):
                rows.append({"row": f"{features} {dtype}", **measure(path, cached, options.turns)})
            path.unlink()
    report(
        "first_read",
        f"The first pass over prepared data, in batches of {BATCH} rows in random order",
        rows,
        "Compared: every block of 64 KiB has its checksum compared when a row of it is first read. Medians over turns; "
        "in brackets, the longest batch where nothing is compared. Later passes compare nothing.",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
