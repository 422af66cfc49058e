"""Reads images in class folders, or in a layout of CIFAR (Krizhevsky 2009): binary, or as Python
pickles."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.class_list import class_list
from istmpi.data.decoder import (
    BadFileError,
    Block,
    Decoder,
    Example,
    Request,
    assign_splits,
    decode_files,
    ensure_test_examples,
    read_class_folders,
)
from istmpi.data.dense.split import build_material
from istmpi.data.holdout import describe_drawn
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
    layout = _find_layout(archive)
    if layout:
        if size is not None:
            raise ConfigError("size is for images in class folders; CIFAR's are 32x32.")
        if listed:
            raise ConfigError("classes is for images in class folders; CIFAR has its own list.")
        return _read_cifar(archive, *layout)
    examples = _find_examples(archive, decoder, listed or ())
    decode = ImageDecoder("RGB", "Resize them with --size N.")
    if size is not None:
        decode.size = (size, size)
    splits, names, bad = decoder.run(archive, examples, decode, MOST_BYTES, listed)
    groups = 3
    # All three channels of a grey image are alike.
    if decode.modes <= {*GREY}:
        groups = 1
        splits = {split: (Chosen(x.source[:, :1], x.rows), y) for split, (x, y) in splits.items()}
    return build_material(
        source=archive.source,
        task=CLASSIFICATION,
        splits=splits,
        classes=names,
        dtype=np.dtype(np.uint8),
        groups=groups,
        skipped=bad,
    )


def _find_examples(archive: Archive, decoder: Decoder, classes: tuple[str, ...]) -> list[Example]:
    examples = read_class_folders(archive, ENDINGS, decoder.notes)
    if not examples:
        raise DataError(
            f"{archive.path} has no CLASS/FILE with an image; known endings: {' '.join(ENDINGS)}."
        )
    if examples[0].split:
        return ensure_test_examples(archive, examples, decoder.notes, classes)
    decoder.split = describe_drawn(by_class=True)
    return assign_splits(examples)


def examples(path: Path, request: Request) -> Iterator[Block]:
    channels, height, width = request.shape
    decode = ImageDecoder("L" if channels == 1 else "RGB", "Give --resize.")
    decode.first = ("the training data", (width, height))
    if request.resize:
        decode.size = (width, height)
    return decode_files(path, request, ENDINGS, decode, MOST_BYTES)


class ImageDecoder:
    """A function of a file's name and content that returns pixels ``[channels, height, width]``
    uint8, of the ``mode`` L (grey) or RGB.

    Raises BadFileError for an unreadable image; DataError for colour in grey data or, ending in
    ``cure``, for another size than that of the first image.
    """

    def __init__(self, mode: str, cure: str):
        self._pillow = optional("PIL.Image", "Pillow", "images")
        self._mode = mode
        self._cure = cure
        self.size: tuple[int, int] | None = None
        """Width and height to which the largest centred part of this aspect ratio is resized; None:
        images keep their size."""
        self.first: tuple[str, tuple[int, int]] | None = None
        """The name and the size of the first image, or of what images must be like."""
        self.modes: set[str] = set()
        """The modes of the images so far."""

    def __call__(self, name: str, content: bytes) -> np.ndarray:
        with _refuse_damage():
            image = self._pillow.open(io.BytesIO(content))
            # A small file may unpack to gigabytes of pixels.
            if image.width * image.height > MOST_PIXELS:
                raise BadFileError(f"{image.width}x{image.height} pixels are too many")
            image.load()
        # 16 bits a pixel would be cut to 8 in silence.
        if image.mode not in GREY + COLOUR:
            raise BadFileError(f"pixels of mode {image.mode}, not of 8 bits a channel: convert it")
        # Whether all images are grey is known only at the end.
        self.modes.add(image.mode)
        if self._mode == "L" and image.mode not in GREY:
            other = self.first[0] if self.first else "the first image"
            raise DataError(
                f"{name} is in colour, but {other} is grey. Convert them to the same mode first."
            )
        with _refuse_damage():
            if image.mode != self._mode:
                image = image.convert(self._mode)
            if self.size:
                middle = _cut_middle(image.size, self.size)
                image = image.resize(self.size, self._pillow.Resampling.BILINEAR, middle)
        self.first = self.first or (name, image.size)
        first, (width, height) = self.first
        if image.size != (width, height):
            raise DataError(
                f"{name} is {image.width}x{image.height} but {first} is {width}x{height}; all must "
                f"have the same size. {self._cure}"
            )
        pixels = np.frombuffer(image.tobytes(), dtype=np.uint8)
        # Channels first, as torch takes images.
        return pixels.reshape(height, width, len(self._mode)).transpose(2, 0, 1)


def _cut_middle(image: tuple[int, int], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the left, top, right and bottom of the largest centred part with the aspect ratio of
    ``size``."""
    width, height = size
    scale = min(image[0] / width, image[1] / height)
    left = (image[0] - scale * width) / 2
    top = (image[1] - scale * height) / 2
    return left, top, left + scale * width, top + scale * height


@contextmanager
def _refuse_damage() -> Iterator[None]:
    """Turn whatever Pillow raises into a BadFileError."""
    with warnings.catch_warnings():
        # Pillow warns of damage that it can repair, and of large images, which are limited here.
        warnings.simplefilter("ignore")
        try:
            yield
        except BadFileError:
            raise
        # Pillow documents no error, and its readers raise whatever they meet.
        except Exception as error:
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
    Layout(
        batches=(*(f"{name}.bin" for name in BATCHES), "test_batch.bin"),
        names="batches.meta.txt",
        label_bytes=1,
    ),
    Layout(batches=("train.bin", "test.bin"), names="fine_label_names.txt", label_bytes=2),
    Layout(
        batches=(*BATCHES, "test_batch"),
        names="batches.meta",
        keys=(b"labels", b"label_names"),
    ),
    Layout(batches=("train", "test"), names="meta", keys=(b"fine_labels", b"fine_label_names")),
)


def _find_layout(archive: Archive) -> tuple[Layout, str] | None:
    """Return the layout of an archive, and the folder of its files; None for no layout of CIFAR."""
    for layout in LAYOUTS:
        names = [name for name in archive.names if name.rpartition("/")[2] == layout.names]
        if not names:
            continue
        folder = names[0].removesuffix(layout.names)
        if {folder + name for name in layout.batches} <= {*archive.names}:
            return layout, folder
    return None


def _read_cifar(archive: Archive, layout: Layout, folder: str) -> Material:
    files = dict(archive.read([folder + name for name in (*layout.batches, layout.names)]))
    names = _read_class_names(folder + layout.names, files[folder + layout.names], layout)
    batches = []
    for name in layout.batches:
        path = folder + name
        batches.append(_read_batch(path, files[path], layout, len(names)))
    *training, test = batches
    x = np.concatenate([pixels for pixels, _ in training])
    y = np.concatenate([labels for _, labels in training])
    splits = {"train": (x, y), "test": test}
    return build_material(archive.source, CLASSIFICATION, splits, names, np.dtype(np.uint8), 3)


def _read_class_names(path: str, content: bytes, layout: Layout) -> tuple[str, ...]:
    if layout.label_bytes:
        return tuple(content.decode("utf-8", errors="replace").split())
    _, key = layout.keys
    names = _take_entry(path, _read_pickle(path, content), key, list)
    if not all(isinstance(name, bytes) for name in names):
        raise DataError(
            f"{path} is not one of CIFAR's pickles: a class name is not text. Download it again."
        )
    return tuple(name.decode("utf-8", errors="replace") for name in names)


def _read_batch(
    path: str, content: bytes, layout: Layout, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels ``[n, 3, 32, 32]`` uint8 and classes ``[n]`` int64 of one file."""
    if layout.label_bytes:
        width = layout.label_bytes + PIXELS
        if len(content) % width:
            raise DataError(
                f"{path} is {len(content)} bytes, not a multiple of {width}. Download it again."
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, width)
        x = records[:, layout.label_bytes :]
        y = records[:, layout.label_bytes - 1].tolist()
    else:
        values = _read_pickle(path, content)
        key, _ = layout.keys
        x = _take_entry(path, values, b"data", np.ndarray)
        y = _take_entry(path, values, key, list)
    if len(y) == 0 or x.shape != (len(y), PIXELS) or x.dtype != np.uint8:
        raise DataError(
            f"{path}: pixels {x.shape} of {x.dtype} and {len(y)} labels are not CIFAR's. Copy it "
            "again."
        )
    # A list of whole numbers beyond int64 becomes floats or objects, and is refused.
    labels = np.array(y)
    if labels.dtype.kind != "i" or not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(
            f"{path}: its labels must be whole numbers from 0 to {classes - 1}. Download it again."
        )
    return x.reshape(-1, *SHAPE), labels.astype(np.int64)


Entry = TypeVar("Entry")


def _read_pickle(path: str, content: bytes) -> object:
    with reading(f"{path} is not one of CIFAR's pickles", "Download it again.", ValueError):
        return read_pickle(content, object)


def _take_entry(path: str, values: object, key: bytes, kind: type[Entry]) -> Entry:
    """Return an entry of a pickled dictionary. Raises DataError if it is missing or of another
    ``kind``."""
    with reading(f"{path} is not one of CIFAR's pickles", "Download it again.", ValueError):
        value = values.get(key) if isinstance(values, dict) else None
        if not isinstance(value, kind):
            raise ValueError(f"it has no {kind.__name__} {key.decode()}")
        return value
