"""Small sets of sparse rows with labels, as prepared files, and the dense arrays that they stand for."""

import numpy as np

from istmpi.data.sparse.prepare import build_material
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import write as write_file

FEATURES, LABELS = 23, 17


def made(count, seed, features=FEATURES, labels=LABELS):
    """Rows of which some features, and some labels, are much rarer than others; a few features are there twice."""
    generator = np.random.default_rng(seed)

    def lists(width, least, most):
        odds = 1 / np.arange(1, width + 1)
        return [
            generator.choice(width, generator.integers(least, most), replace=False, p=odds / odds.sum())
            for _ in range(count)
        ]

    columns = [np.append(row, row[:1]) if n % 5 == 0 else row for n, row in enumerate(lists(features, 1, 6))]
    targets = lists(labels, 1, 5)
    values = generator.normal(size=sum(map(len, columns))).astype(np.float32)
    return tuple(
        Ragged(np.concatenate([[0], np.cumsum([len(row) for row in of])]), (np.concatenate(of), *more))
        for of, more in ((columns, (values,)), (targets, ()))
    )


def write(path, train=60, test=30, features=FEATURES, labels=LABELS):
    """A prepared file of such rows; returns its name."""
    splits = {"train": made(train, 1, features, labels), "test": made(test, 2, features, labels)}
    write_file("xc", build_material("made", features, labels, splits), path)
    return str(path)


def dense(split, indices, features=FEATURES, labels=LABELS):
    """Rows ``[b, features]`` and their labels ``[b, labels]`` as zeros and ones, float64."""
    x, y = np.zeros((len(indices), features)), np.zeros((len(indices), labels))
    for row, number in enumerate(indices):
        for of, into in ((split.rows, x), (split.targets, y)):
            places = slice(of.offsets[number], of.offsets[number + 1])
            values = of.arrays[1][places] if len(of.arrays) > 1 else 1.0
            np.add.at(into[row], of.arrays[0][places], values)
    return x, y
