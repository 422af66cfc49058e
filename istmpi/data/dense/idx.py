"""The MNIST family in LeCun's idx format, plain or gzipped."""

import re
import struct
from math import prod

import numpy as np

from istmpi.data.dense.file import material_of
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder
from istmpi.data.labels import read_labels
from istmpi.data.writer import Material
from istmpi.errors import DataError
from istmpi.tasks import CLASSIFICATION

_FILE = re.compile(r"(?:.*[/-])?(train|t10k|test)-(images|labels)[.-]idx[13]-ubyte(?:\.gz)?")


def read(archive: Archive, decoder: Decoder) -> Material:
    """Images [1, height, width] uint8, normalised by one mean and deviation.

    Files are named as MNIST's, with t10k or test, and perhaps a name before or ".gz" behind.
    """
    files, x, raw = _find(archive), {}, {}
    for split in ("train", "test"):
        images, labels = files[split, "images"], files[split, "labels"]
        x[split], raw[split] = _array(archive, images, axes=3)[:, np.newaxis], _array(archive, labels, axes=1)
        if len(raw[split]) != len(x[split]) or len(raw[split]) == 0:
            raise DataError(
                f"{images} has {len(x[split])} images, but {labels} has {len(raw[split])} labels; the numbers "
                "must be equal, and at least 1. Download them again."
            )
    shape = x["train"].shape[1:]
    if x["test"].shape[1:] != shape:
        raise DataError(f"{archive.path}: images are {shape[1:]} in train and {x['test'].shape[2:]} in test.")
    names = (f"{' and '.join(files[split, what] for what in ('images', 'labels'))}: {split}" for split in x)
    decoder.notes.assume(f"splits from file names: {', '.join(names)}")
    _, classes, labels = read_labels(raw, CLASSIFICATION, str(archive.path))
    splits = {split: (x[split], labels[split]) for split in x}
    return material_of("idx", archive.source, CLASSIFICATION, splits, classes, np.dtype(np.uint8), 1)


def _find(archive: Archive) -> dict[tuple[str, str], str]:
    files: dict[tuple[str, str], str] = {}
    for name in archive.names:
        if match := _FILE.fullmatch(name):
            key = "train" if match[1] == "train" else "test", match[2]
            if key in files:
                raise DataError(f"{archive.path} has both {files[key]} and {name}; keep one data set per folder.")
            files[key] = name
    for split, prefix in (("train", "train"), ("test", "t10k")):
        for what, axes in (("images", 3), ("labels", 1)):
            if (split, what) not in files:
                raise DataError(
                    f"{archive.path} has no {prefix}-{what}-idx{axes}-ubyte[.gz]; idx needs all four files."
                )
    return files


def _array(archive: Archive, name: str, axes: int) -> np.ndarray:
    with archive.stream(name) as stream:
        header = stream.read(4 + 4 * axes)
        if len(header) < 4 + 4 * axes or struct.unpack(">HBB", header[:4]) != (0, 8, axes):
            raise DataError(
                f"{name} is not an idx file of unsigned bytes with {axes} axes (it starts {header[:4].hex(' ')})."
            )
        lengths = struct.unpack(f">{axes}I", header[4:])
        if 0 in lengths[1:]:
            raise DataError(
                f"{name} has images of {' x '.join(map(str, lengths[1:]))} pixels; at least one is required."
            )
        content = stream.read(prod(lengths) + 1)
    if len(content) != prod(lengths):
        few = "fewer" if len(content) < prod(lengths) else "more"
        raise DataError(f"{name} has {few} bytes than the {prod(lengths):,} that its header states. Download it again.")
    return np.frombuffer(content, np.uint8).reshape(lengths)
