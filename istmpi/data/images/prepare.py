"""Images in class folders, or in one of the two layouts of CIFAR."""

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np

from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import BadFileError, Decoder, Example, with_holdout
from istmpi.data.files.layout import checked_splits, class_folders
from istmpi.data.holdout import ONE_IN_FIVE
from istmpi.data.images import cifar
from istmpi.data.writer import Material
from istmpi.errors import ConfigError, DataError
from istmpi.foreign import MEGABYTE, reason
from istmpi.optional import optional

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".pgm", ".ppm")
MOST_BYTES = 64 * MEGABYTE
MOST_PIXELS = 2**26
# Pillow documents no errors, and its readers raise whatever they meet.
_PILLOW = (OSError, SyntaxError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError)
_PILLOW += (MemoryError, struct.error, zlib.error, RuntimeError)
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "CMYK", "YCbCr")


class InColourError(DataError):
    """An image has three channels where the ones before it have one."""


def read(archive: Archive, decoder: Decoder, *, size: int | None = None) -> Material:
    """Images [channels, height, width] uint8, normalised by each channel's mean and deviation.

    The layout is SPLIT/CLASS/FILE; or CLASS/FILE, of which one in five is for testing; or that of CIFAR-10 and
    CIFAR-100. There is one channel where all images are grey, else all are RGB. All must be of one size unless ``size``
    is given: then of each the largest square in its middle is resized to size x size pixels.
    """
    if size is not None and not 1 <= size <= MOST_PIXELS**0.5:
        raise ConfigError(f"size is {size}; it must be from 1 to {int(MOST_PIXELS**0.5):,} pixels.")
    if layout := cifar.layout_of(archive):
        if size is not None:
            raise ConfigError("size is for images in class folders; CIFAR's are 32x32.")
        return cifar.read(archive, layout)
    examples = class_folders(archive, ENDINGS, decoder.notes)
    if not examples:
        raise DataError(f"{archive.path} has no CLASS/FILE with an image; known endings: {' '.join(ENDINGS)}.")
    if examples[0].split:
        examples = checked_splits(archive, examples, decoder.notes)
    else:
        decoder.split = f"{ONE_IN_FIVE} of each class"
        examples = with_holdout(examples)
    pillow = optional("PIL.Image", "Pillow", "images")
    first, mode, extent = _first(archive, decoder, examples, pillow, size)

    def decoded(mode: str) -> Material:
        decode = image_decoder(pillow, first, mode, extent, size is not None, "Give --size N to resize them.")
        shape, dtype = (len(mode), extent[1], extent[0]), np.dtype(np.uint8)
        return decoder.run("images", archive, examples, decode, shape, dtype, len(mode), MOST_BYTES)

    try:
        return decoded(mode)
    except InColourError:  # mostly one of the first, so that little is decoded twice
        return decoded("RGB")


def _first(
    archive: Archive, decoder: Decoder, examples: list[Example], pillow: ModuleType, size: int | None
) -> tuple[str, str, tuple[int, int]]:
    """Return the first readable image by name, the mode that it asks for, and its width and height."""
    names, bad = sorted(example.name for example in examples), {}
    while part := names[len(bad) : 2 * len(bad) + 1]:  # twice as many in each pass over the archive
        readable = {}
        for name, content in archive.read(part, MOST_BYTES):
            try:
                image = _open(pillow, content)
                readable[name] = image.mode, image.size
            except BadFileError as error:
                bad[name] = str(error)
        if readable:
            mode, extent = readable[first := min(readable)]
            return first, "L" if mode in GREY else "RGB", (size, size) if size else extent
        decoder.refuse(archive, bad, len(names))
    raise DataError(
        f"{archive.path}: none of the {len(names)} images can be read ({bad[names[0]]}). Copy or download it again."
    )


def image_decoder(
    pillow: ModuleType,
    first: str,
    mode: str,
    extent: tuple[int, int],
    resize: bool,
    cure: str,
) -> Callable[[str, bytes], np.ndarray]:
    """Return a function from the name and the content of a file to its pixels ``[channels, height, width]`` uint8.

    ``first`` is what a message calls the images whose ``mode`` and ``extent`` all others must have, and ``cure`` its
    last sentence.
    """

    def decode(name: str, content: bytes) -> np.ndarray:
        image = _open(pillow, content)
        if mode == "L" and image.mode not in GREY:
            raise InColourError(f"{name} is in colour but {first} is grey; all must be alike. Convert them first.")
        with _as_bad_file(pillow):
            if image.mode != mode:
                image = image.convert(mode)
            if resize:
                scale = min(image.size[0] / extent[0], image.size[1] / extent[1])
                left, top = ((whole - scale * part) / 2 for whole, part in zip(image.size, extent))
                middle = left, top, left + scale * extent[0], top + scale * extent[1]
                image = image.resize(extent, pillow.Resampling.BILINEAR, middle)
        if image.size != extent:
            raise DataError(
                f"{name} is {image.width}x{image.height} but {first} is {extent[0]}x{extent[1]}; all must be of one "
                f"size. {cure}"
            )
        pixels = np.frombuffer(image.tobytes(), dtype=np.uint8)
        return pixels.reshape(extent[1], extent[0], len(mode)).transpose(2, 0, 1)

    return decode


def _open(pillow: ModuleType, content: bytes) -> object:
    with _as_bad_file(pillow):
        image = pillow.open(io.BytesIO(content))
        if image.width * image.height > MOST_PIXELS:
            raise BadFileError(f"{image.width}x{image.height} pixels; that is too much")
        image.load()
    if image.mode not in GREY + COLOUR:
        raise BadFileError(f"pixels of mode {image.mode}, not of 8 bits a channel: convert it")
    return image


@contextmanager
def _as_bad_file(pillow: ModuleType) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it can read in spite of damage, and of sizes that we limit
        try:
            yield
        except (*_PILLOW, pillow.DecompressionBombError) as error:
            raise BadFileError(reason(error)) from error
