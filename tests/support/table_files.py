"""Tables of text as files, and what `istmpi prepare csv` makes of them."""

import numpy as np

from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare


def prepared(path, **options):
    """The report, the data set and its training features as the table has them."""
    report = prepare("csv", path, path.parent / "out.h5", force=True, **options)
    data = open_prepared(report.target)
    return report, data, np.asarray(data.train.with_normalisation(None).x)


def written_to(folder):
    """A function that writes a text into a file of a folder, and returns its path."""

    def write(text, name="in.csv"):
        (folder / name).write_bytes(text.encode())
        return folder / name

    return write
