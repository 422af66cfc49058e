"""Reads images in class folders, or in a layout of CIFAR (Krizhevsky 2009): binary, or as Python
pickles."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.class_list import class_list
from istmpi.data.decoder import (
    BadFileError,
    Block,
    Decoder,
    Request,
    checked_splits,
    class_folders,
    decoded,
    with_holdout,
)
from istmpi.data.dense.split import material_of
from istmpi.data.holdout import ONE_IN_FIVE
from istmpi.data.pickles import read_pickle
from istmpi.data.writer import Chosen, Material
from istmpi.errors import ConfigError, DataError
from istmpi.foreign import MEGABYTE, reading, reason
from istmpi.optional import optional
from istmpi.tasks import CLASSIFICATION

ENDINGS = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".avif",
    ".pgm",
    ".ppm",
)
MOST_BYTES = 64 * MEGABYTE
MOST_PIXELS = 2**26
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "CMYK", "YCbCr")


def read(
    archive: Archive, decoder: Decoder, *, size: int | None = None, classes: str | None = None
) -> Material:
    """Read images [channels, height, width] uint8, normalised by channel.

    ``size``: the side of resized images. ``classes``: names with commas, see `class_list`.
    """
    listed = class_list(classes)
    if size is not None and not 1 <= size <= MOST_PIXELS**0.5:
        raise ConfigError(f"size is {size}; it must be from 1 to {int(MOST_PIXELS**0.5):,} pixels.")
    if layout := _layout_of(archive):
        if size is not None:
            raise ConfigError("size is for images in class folders; CIFAR's are 32x32.")
        if listed:
            raise ConfigError("classes is for images in class folders; CIFAR has its own list.")
        return _read_cifar(archive, layout)
    examples = class_folders(archive, ENDINGS, decoder.notes)
    if not examples:
        raise DataError(
            f"{archive.path} has no CLASS/FILE with an image; known endings: {' '.join(ENDINGS)}."
        )
    if examples[0].split:
        examples = checked_splits(archive, examples, decoder.notes, listed or ())
    else:
        decoder.split = f"{ONE_IN_FIVE} of each class"
        examples = with_holdout(examples)
    modes: set[str] = set()
    decode = image_decoder("RGB", "Resize them with --size N.", modes, size and (size, size))
    splits, names, bad = decoder.run(archive, examples, decode, MOST_BYTES, listed)
    if grey := modes <= {*GREY}:  # then all three channels are alike
        splits = {split: (Chosen(x.source[:, :1], x.rows), y) for split, (x, y) in splits.items()}
    dtype, groups = np.dtype(np.uint8), 1 if grey else 3
    return material_of(archive.source, CLASSIFICATION, splits, names, dtype, groups, bad)


def examples(path: Path, request: Request) -> Iterator[Block]:
    channels, height, width = request.shape
    like, size = ("the training data", (width, height)), (width, height) if request.resize else None
    decode = image_decoder("L" if channels == 1 else "RGB", "Give --resize.", set(), size, like)
    return decoded(path, request, ENDINGS, decode, MOST_BYTES)


def image_decoder(
    mode: str,
    cure: str,
    modes: set[str],
    size: tuple[int, int] | None = None,
    like: tuple[str, tuple[int, int]] | None = None,
) -> Callable[[str, bytes], np.ndarray]:
    """Return a function of a file's name and content that returns pixels ``[channels, height,
    width]`` uint8.

    With ``size`` (width, height), the largest centred part of this aspect ratio is resized to it.
    All images must have the size in ``like`` (a name and a size) or, if None, of the first image.
    The function adds images' modes to ``modes``. Raises BadFileError for an unreadable image;
    DataError for colour in grey data or, ending in ``cure``, another size.
    """
    pillow = optional("PIL.Image", "Pillow", "images")

    def decode(name: str, content: bytes) -> np.ndarray:
        nonlocal like
        with _as_bad_file():
            image = pillow.open(io.BytesIO(content))
            if image.width * image.height > MOST_PIXELS:
                raise BadFileError(f"{image.width}x{image.height} pixels are too many")
            image.load()
        if image.mode not in GREY + COLOUR:
            raise BadFileError(f"pixels of mode {image.mode}, not of 8 bits a channel: convert it")
        modes.add(image.mode)
        if mode == "L" and image.mode not in GREY:
            raise DataError(
                f"{name} is in colour, but {like[0]} is grey. Convert them to the same mode first."
            )
        with _as_bad_file():
            if image.mode != mode:
                image = image.convert(mode)
            if size:
                scale = min(image.width / size[0], image.height / size[1])
                left, top = ((whole - scale * part) / 2 for whole, part in zip(image.size, size))
                middle = left, top, left + scale * size[0], top + scale * size[1]
                image = image.resize(size, pillow.Resampling.BILINEAR, middle)
        like = like or (name, image.size)
        first, (width, height) = like
        if image.size != (width, height):
            raise DataError(
                f"{name} is {image.width}x{image.height} but {first} is {width}x{height}; all must have the "
                f"same size. {cure}"
            )
        pixels = np.frombuffer(image.tobytes(), dtype=np.uint8)
        return pixels.reshape(height, width, len(mode)).transpose(2, 0, 1)

    return decode


@contextmanager
def _as_bad_file() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # about damage that it can repair, and large images, which are limited here
        try:
            yield
        except BadFileError:
            raise
        except (
            Exception
        ) as error:  # Pillow documents none, and its readers raise whatever they meet
            raise BadFileError(reason(error)) from error


SHAPE = (3, 32, 32)
PIXELS = 3072
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


@dataclass(frozen=True)
class Layout:
    """The files of a layout of CIFAR: ``batches``, the last for testing, and ``names``, the file of
    class names.

    A binary record begins with ``label_bytes`` labels, the last of which is the class. In a pickle,
    ``keys`` are the keys of the labels and of the class names.
    """

    batches: tuple[str, ...]
    names: str
    label_bytes: int = 0
    keys: tuple[bytes, bytes] = (b"", b"")


LAYOUTS = (
    Layout((*(f"{name}.bin" for name in BATCHES), "test_batch.bin"), "batches.meta.txt", 1),
    Layout(("train.bin", "test.bin"), "fine_label_names.txt", 2),
    Layout((*BATCHES, "test_batch"), "batches.meta", keys=(b"labels", b"label_names")),
    Layout(("train", "test"), "meta", keys=(b"fine_labels", b"fine_label_names")),
)


def _layout_of(archive: Archive) -> tuple[Layout, str] | None:
    for layout in LAYOUTS:
        names = [name for name in archive.names if name.rpartition("/")[2] == layout.names]
        folder = names[0].removesuffix(layout.names) if names else ""
        if names and {folder + name for name in layout.batches} <= {*archive.names}:
            return layout, folder
    return None


def _read_cifar(archive: Archive, place: tuple[Layout, str]) -> Material:
    layout, folder = place
    files = dict(archive.read([folder + name for name in (*layout.batches, layout.names)]))
    names = _classes(folder + layout.names, files[folder + layout.names], layout)
    *parts, test = (
        _batch(folder + name, files[folder + name], layout, len(names)) for name in layout.batches
    )
    splits = {"train": tuple(map(np.concatenate, zip(*parts))), "test": test}
    return material_of(archive.source, CLASSIFICATION, splits, names, np.dtype(np.uint8), 3)


def _classes(path: str, content: bytes, layout: Layout) -> tuple[str, ...]:
    if layout.label_bytes:
        return tuple(content.decode("utf-8", errors="replace").split())
    names = _unpickled(path, content, {layout.keys[1]: list})[layout.keys[1]]
    if not all(isinstance(name, bytes) for name in names):
        raise DataError(
            f"{path} is not one of CIFAR's pickles: a class name is not text. Download it again."
        )
    return tuple(name.decode("utf-8", errors="replace") for name in names)


def _batch(
    path: str, content: bytes, layout: Layout, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    if width := layout.label_bytes and layout.label_bytes + PIXELS:
        if len(content) % width:
            raise DataError(
                f"{path} is {len(content)} bytes, not a multiple of {width}. Download it again."
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, width)
        x, y = records[:, layout.label_bytes :], records[:, layout.label_bytes - 1].tolist()
    else:
        batch = _unpickled(path, content, {b"data": np.ndarray, layout.keys[0]: list})
        x, y = batch[b"data"], batch[layout.keys[0]]
    if len(y) == 0 or x.shape != (len(y), PIXELS) or x.dtype != np.uint8:
        raise DataError(
            f"{path}: pixels {x.shape} of {x.dtype} and {len(y)} labels are not CIFAR's. Copy it again."
        )
    labels = np.array(y)
    if labels.dtype.kind != "i" or not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(
            f"{path}: its labels must be whole numbers from 0 to {classes - 1}. Download it again."
        )
    return x.reshape(-1, *SHAPE), labels.astype(np.int64)


def _unpickled(path: str, content: bytes, kinds: dict[bytes, type]) -> dict[bytes, object]:
    with reading(f"{path} is not one of CIFAR's pickles", "Download it again.", ValueError):
        values = read_pickle(content)
        for key, kind in kinds.items():
            if not isinstance(values, dict) or not isinstance(values.get(key), kind):
                raise ValueError(f"it has no {kind.__name__} {key.decode()}")
        return values
