"""The MNIST family in LeCun's idx format, plain or gzipped."""

import re
import struct
from collections.abc import Iterator
from math import prod
from typing import BinaryIO

import numpy as np

from istmpi.data.dense.file import material_of, rows_per_block
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder
from istmpi.data.labels import read_labels
from istmpi.data.writer import Material
from istmpi.errors import DataError
from istmpi.foreign import MEGABYTE
from istmpi.tasks import CLASSIFICATION

_FILE = re.compile(r"(?:.*[/-])?(train|t10k|test)-(images|labels)[.-]idx[13]-ubyte(?:\.gz)?")


def read(archive: Archive, decoder: Decoder) -> Material:
    """Images [1, height, width] uint8, normalised by one mean and deviation.

    Files are named as MNIST's: train-images-idx3-ubyte, train-labels-idx1-ubyte and the same with t10k (or test), with
    a name before or ".gz" behind. They are read as they are needed.
    """
    files = _find(archive)
    sizes, raw = {}, {}
    for split in ("train", "test"):
        images, labels = files[split, "images"], files[split, "labels"]
        with archive.unzipped(images) as stream:
            sizes[split] = _header(stream, images, axes=3)
        with archive.unzipped(labels) as stream:
            raw[split] = _take(stream, labels, _header(stream, labels, axes=1)[0])
            _require_end(stream, labels)
        if len(raw[split]) != sizes[split][0] or len(raw[split]) == 0:
            raise DataError(
                f"{images} has {sizes[split][0]} images but {labels} has {len(raw[split])} labels; they must be as "
                "many, and at least one. Download them again."
            )
    if sizes["train"][1:] != sizes["test"][1:]:
        raise DataError(f"{archive.path}: images are {sizes['train'][1:]} in train and {sizes['test'][1:]} in test.")
    names = (f"{' and '.join(files[split, what] for what in ('images', 'labels'))}: {split}" for split in sizes)
    decoder.notes.assume(f"splits by the names of files: {', '.join(names)}")
    decoder.notes.assume("x has bytes: all features have one mean and deviation")
    _, classes, labels = read_labels(raw, CLASSIFICATION, str(archive.path))
    shape, counts = (1, *sizes["train"][1:]), {split: size[0] for split, size in sizes.items()}

    def blocks() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        features = prod(shape)
        step = rows_per_block(features)
        for split, y in labels.items():
            name = files[split, "images"]
            with archive.unzipped(name) as stream:
                _header(stream, name, axes=3)
                for start in range(0, len(y), step):
                    part = y[start : start + step]
                    yield split, _take(stream, name, len(part) * features).reshape(len(part), features), part
                _require_end(stream, name)

    facts = "idx", archive.source, CLASSIFICATION, shape, len(classes), classes, counts
    return material_of(*facts, np.dtype(np.uint8), 1, blocks())


def _find(archive: Archive) -> dict[tuple[str, str], str]:
    """Return the file for each (split, "images" | "labels")."""
    files: dict[tuple[str, str], str] = {}
    for name in archive.names:
        if match := _FILE.fullmatch(name):
            key = "train" if match[1] == "train" else "test", match[2]
            if key in files:
                raise DataError(f"{archive.path} has both {files[key]} and {name}; keep one data set in a folder.")
            files[key] = name
    for split, prefix in (("train", "train"), ("test", "t10k")):
        for what, axes in (("images", 3), ("labels", 1)):
            if (split, what) not in files:
                raise DataError(
                    f"{archive.path} has no {prefix}-{what}-idx{axes}-ubyte[.gz]; idx needs all four files."
                )
    return files


def _header(stream: BinaryIO, name: str, axes: int) -> tuple[int, ...]:
    header = _take(stream, name, 4 + 4 * axes).tobytes()
    if struct.unpack(">HBB", header[:4]) != (0, 8, axes):
        raise DataError(f"{name} is not an idx file of bytes with {axes} axes (it starts {header[:4].hex(' ')}).")
    lengths = struct.unpack(f">{axes}I", header[4:])
    if 0 in lengths[1:]:
        raise DataError(f"{name} has images of {' x '.join(map(str, lengths[1:]))} pixels; needed is at least one.")
    return lengths


def _require_end(stream: BinaryIO, name: str) -> None:
    if stream.read(1):
        raise DataError(f"{name} has more bytes than its header says. Download it again.")


def _take(stream: BinaryIO, name: str, count: int) -> np.ndarray:
    content = bytearray()
    while len(content) < count and (piece := stream.read(min(count - len(content), MEGABYTE))):
        content += piece
    if len(content) != count:
        raise DataError(f"{name} is truncated: {count - len(content)} bytes are missing. Download it again.")
    return np.frombuffer(content, dtype=np.uint8)
