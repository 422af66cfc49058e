"""Three tables of classes from R's package mlbench, as .npz: Letter (26 classes), Satellite (6) and Shuttle (7).

    apt-get download r-cran-mlbench && pip install rdata
    python -m benchmarks.controls.mlbench r-cran-mlbench_*.deb FOLDER

The rows are split at random, in the sizes of the UCI repository: letter.npz, satellite.npz, shuttle.npz.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

TABLES = {
    "letter": ("LetterRecognition", "lettr", 16_000),
    "satellite": ("Satellite", "classes", 4_435),
    "shuttle": ("Shuttle", "Class", 43_500),
}
"""R's name of each table, its column of classes, and the number of rows to train on."""
SEED = 0
"""Of the random split."""


def write_table(folder: Path, name: str, target: Path) -> None:
    """Write one table of an unpacked package: float32 features, and classes from 0 in alphabetical order."""
    import rdata

    table, label, train = TABLES[name]
    frame = rdata.read_rda(folder / f"usr/lib/R/site-library/mlbench/data/{table}.rda")[table]
    _, classes = np.unique(frame[label].astype(str), return_inverse=True)
    features = frame.drop(columns=label).to_numpy(np.float32)
    order = np.random.default_rng(SEED).permutation(len(classes))
    np.savez(
        target / f"{name}.npz",
        x_train=features[order[:train]],
        y_train=classes[order[:train]],
        x_test=features[order[train:]],
        y_test=classes[order[train:]],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="Debian's r-cran-mlbench")
    parser.add_argument("folder", type=Path, help="where the tables go")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as unpacked:
        subprocess.run(["dpkg-deb", "-x", options.package, unpacked], check=True)
        for name in TABLES:
            write_table(Path(unpacked), name, options.folder)


if __name__ == "__main__":
    main()
