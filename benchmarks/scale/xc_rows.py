"""Made-up sparse rows of a real set's statistics, as text in the Extreme Classification Repository's format.

    python -m benchmarks.scale.xc_rows FOLDER --rows 100000 --features 135909 --labels 670091

Features and labels are drawn with odds that fall as Zipf's law has them, in an order of their own; a label brings some
features along, so that there is something to learn.
"""

import argparse
from pathlib import Path

import numpy as np

BLOCK = 5000
AMAZON_670K = {"features": 135_909, "labels": 670_091, "in_a_row": 75, "labels_in_a_row": 5}


def write(
    path: Path,
    rows: int,
    seed: int,
    features: int = AMAZON_670K["features"],
    labels: int = AMAZON_670K["labels"],
    in_a_row: int = AMAZON_670K["in_a_row"],
    labels_in_a_row: int = AMAZON_670K["labels_in_a_row"],
) -> None:
    """Write so many rows; other seeds give other rows of the same kind."""
    order = np.random.default_rng(0).permutation(features)
    generator = np.random.default_rng(seed)
    with path.open("w") as file:
        file.write(f"{rows} {features} {labels}\n")
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            own = np.maximum(generator.poisson(labels_in_a_row - 1, count) + 1, 1)
            drawn = _zipf(generator, labels, (count, own.max()))
            sizes = np.maximum(generator.poisson(in_a_row, count), 1)
            columns = order[_zipf(generator, features, (count, sizes.max()))]
            brought = (drawn[:, :3] * 2_654_435_761 + np.arange(3)) % features
            columns[:, :3] = brought[:, : min(3, columns.shape[1])]
            values = generator.uniform(0.01, 0.3, columns.shape)
            lines = []
            for row in range(count):
                mine = dict(zip(columns[row, : sizes[row]].tolist(), values[row].tolist()))
                pairs = " ".join(f"{column}:{value:.6f}" for column, value in sorted(mine.items()))
                lines.append(f"{','.join(map(str, dict.fromkeys(drawn[row, : own[row]].tolist())))} {pairs}\n")
            file.write("".join(lines))


def _zipf(generator: np.random.Generator, length: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers below a length, about as one over their rank: uniform in the logarithm of it."""
    return np.minimum(np.exp(generator.uniform(0, np.log(length + 1), shape)) - 1, length - 1).astype(np.int64)


def main() -> None:
    """Write train.txt and test.txt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000, help="for training; a tenth of it for testing (20000)")
    parser.add_argument("--features", type=int, default=AMAZON_670K["features"])
    parser.add_argument("--labels", type=int, default=AMAZON_670K["labels"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, rows, seed in ("train", options.rows, 1), ("test", max(options.rows // 10, 1), 2):
        write(options.folder / f"{name}.txt", rows, seed, options.features, options.labels)


if __name__ == "__main__":
    main()
