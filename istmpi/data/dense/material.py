"""What every kind of input is turned into before it is written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from istmpi.data.hdf5 import Header, Writer

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, often."""

Block = tuple[str, np.ndarray, np.ndarray]
"""A split, x [b, features] of numbers, and y [b] int64 or [b, outputs] float32."""

BLOCK = 2**20
"""How many features of how many examples are in memory at a time, about."""


@dataclass(frozen=True)
class Material:
    """A data set on its way into a file: what is known beforehand, and its examples once, in blocks.

    ``shape`` is that of one example, channels first; ``groups`` is how many means and deviations normalise it (see
    ``Moments.normalisation``); ``counts`` are the examples per split that ``blocks`` will give; ``skipped`` the names
    of files that could not be read.
    """

    task: str
    shape: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...] | None
    dtype: np.dtype
    groups: int
    counts: dict[str, int]
    blocks: Iterator[Block]
    skipped: list[str] = field(default_factory=list)
    output_names: tuple[str, ...] | None = None
    """Of numbers to predict, where the source has some."""

    @property
    def features(self) -> int:
        return int(np.prod(self.shape))

    def writer(self, kind: str, source: str, target: Path, force: bool) -> Writer:
        """What takes the blocks, into a file that says this of itself."""
        header = Header(
            kind=kind,
            source=source,
            task=self.task,
            shape=self.shape,
            outputs=self.outputs,
            classes=self.classes,
            counts=self.counts,
            dtype=self.dtype,
            groups=self.groups,
            skipped=len(self.skipped),
            output_names=self.output_names,
        )
        return Writer(target, header, force)


def rows_per_block(features: int) -> int:
    return max(1, BLOCK // features)


def slices(arrays: dict[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[Block]:
    """Whole arrays per split, x [n, ...] and y, as blocks; maps are read as they are needed."""
    for split, (x, y) in arrays.items():
        features = int(np.prod(x.shape[1:]))
        step = rows_per_block(features)
        for start in range(0, len(x), step):
            yield split, np.asarray(x[start : start + step]).reshape(-1, features), y[start : start + step]
