"""Which class reads a kind of data: the one place that knows them all."""

from collections.abc import Callable

import numpy as np

from istmpi.data.dataset import Split
from istmpi.data.dense.split import DenseSplit
from istmpi.data.images.split import ImageSplit
from istmpi.data.moments import Normalisation


def split_of(
    kind: str,
    shape: tuple[int, ...],
    x: np.ndarray,
    y: np.ndarray,
    normalisation: Normalisation | None = None,
    guard: Callable[[np.ndarray], None] | None = None,
) -> Split:
    """The examples ``x`` with the labels ``y`` as their kind reads them.

    ``kind`` is that of `istmpi prepare`, ``shape`` that of one example, channels first; the rest is as in `DenseSplit`.
    The offset of ``normalisation`` is subtracted from ``x`` already.
    """
    # The spectra of speech have three axes, too, but are no picture of which a part, or a mirror image, sounds alike.
    of_images = len(shape) == 3 and kind != "speech"
    read = ImageSplit if of_images else DenseSplit
    mean, std, offset = normalisation or (None, None, None)
    return read(x, y, mean, std, guard, shape, offset=offset)
