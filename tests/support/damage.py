"""What damaged files are made of and judged by: one place for the tests and for benchmarks/campaigns/corrupt.py."""

import json
import random

import h5py
import numpy as np
from batches import examples_of
from damaging import damage

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.data.hdf5 import prepared_file
from istmpi.errors import DataError
from istmpi.hdf5 import CHECKSUM, CHECKSUMS, LOCKING, all_datasets, datasets, seal


def checkpoint_contents(path):
    """Everything that a checkpoint says, every byte checked; DataError where that fails."""
    with open_checkpoint(path) as checkpoint:
        checkpoint.require_valid()
        values = {name: (dataset[...].tobytes(), dataset.dtype) for name, dataset in datasets(checkpoint.file).items()}
        return checkpoint.header, values, checkpoint.classes


def judged(path, contents, expected):
    """How the reading of a damaged file ends: refused | identical | wrong, and what was said."""
    try:
        found = contents(path)
    except DataError as error:
        said = str(error)
        fine = said.startswith(str(path)) and said.isprintable() and len(said) < 2000
        return ("refused", said) if fine else ("wrong", f"no line that names the file: {said[:300]!r}")
    # By their texts, for NaN is not equal to itself.
    return ("identical", "") if repr(found) == repr(expected) else ("wrong", "taken, with other contents")


def damaged(original, folder, contents, seed, copies):
    """Damage copies of a file: each is refused or says what it said. Returns the kinds of damage."""
    expected, generator, done = contents(original), random.Random(seed), set()
    for number in range(copies):
        path = folder / str(number) / "damaged.h5"
        path.parent.mkdir()
        path.write_bytes(original.read_bytes())
        done.add(what := damage(path, generator))
        outcome, said = judged(path, contents, expected)
        assert outcome != "wrong", f"{what}: {said}"
    return done


def flip(path, dataset, at=0):
    """Change a byte of a dataset's values, on the disk."""
    with h5py.File(path, locking=LOCKING) as file:
        place = file[dataset].id.get_offset() + at
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def reseal(file):
    """Make what was changed in an open file the file's own."""
    found = all_datasets(file)
    seal(file, {path: found[path][...] for path in found if path.startswith(CHECKSUMS)})


def data_contents(path):
    """Everything that a prepared file says to training, every byte checked; DataError where that fails."""
    with prepared_file(path) as file:
        for error in file.errors():
            raise DataError(f"{path}: {error}")
        data = file.dataset
    splits = {
        name: [part.tobytes() for part in examples_of(split, np.arange(len(split)))]
        for name, split in data.splits.items()
    }
    return splits, data.task, data.shape, data.outputs, data.classes, data.kind


def data_as_version_1(file):
    """Make an open prepared file one as the first version of the format has it."""
    del file.attrs[CHECKSUM], file["checksums"]
    file.attrs["version"] = 1


def as_version_1(file):
    """Make an open checkpoint one as the first version of the format has it."""
    del file.attrs[CHECKSUM]
    file.attrs["version"] = 1
    data = json.loads(file.attrs["data"])
    del data["features"]
    file.attrs["data"] = json.dumps(data)
