"""1,797 real handwritten digits that come with the package, for a first run and for tests.

8x8 pixels of 0 to 16, ten classes: the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49, licence CC BY 4.0. ``digits.npz``
holds x [1797, 64] and y [1797], both uint8, in the order of scikit-learn's ``load_digits``.
"""

from importlib import resources

import numpy as np

from istmpi.data.dataset import Dataset
from istmpi.data.holdout import held_out
from istmpi.data.images.split import examples_of
from istmpi.data.moments import Moments
from istmpi.tasks import CLASSIFICATION


def open_digits() -> Dataset:
    with resources.files("istmpi.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        x, y = arrays["x"], arrays["y"].astype(np.int64)
    test = held_out(len(y), y)
    moments = Moments(x.shape[1])
    moments.add(x[~test])
    shape, normalisation = (1, 8, 8), moments.normalisation(groups=1)
    parts = {"train": ~test, "test": test}
    splits = {name: examples_of("digits", shape, x[rows], y[rows], normalisation) for name, rows in parts.items()}
    classes = tuple(str(digit) for digit in range(10))
    return Dataset(splits, CLASSIFICATION, shape, len(classes), classes, "digits", "digits", *normalisation[:2])
