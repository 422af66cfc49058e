"""Images in class folders, or in one of the two layouts of CIFAR."""

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import intern
from types import ModuleType

import numpy as np

from istmpi.data.holdout import ONE_IN_FIVE
from istmpi.data.prepare import cifar
from istmpi.data.prepare.archive import Archive
from istmpi.data.prepare.files import BadFileError, Decoder, Example, with_holdout
from istmpi.data.prepare.material import Material
from istmpi.errors import ConfigError, DataError
from istmpi.foreign import MEGABYTE, reason
from istmpi.optional import optional

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
SPLITS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}
MOST_BYTES = 64 * MEGABYTE
MOST_PIXELS = 2**26
"""Of a file, and of the picture in it."""
_PILLOW = (
    OSError,
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    MemoryError,
)
_PILLOW += (struct.error, zlib.error, RuntimeError)
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "CMYK", "YCbCr")


class InColourError(DataError):
    """An image has three channels where the ones before it have one."""


def read(archive: Archive, decoder: Decoder, *, size: int | None = None) -> Material:
    """Images [channels, height, width] uint8, normalised by each channel's mean and deviation.

    The layout is train/CLASS/FILE and test/CLASS/FILE, perhaps with validation/CLASS/FILE, which is for testing where
    there is no test/; or CLASS/FILE, of which one in five is for testing; or that of CIFAR-10 and CIFAR-100, binary or
    Python. There is one channel where all images are grey, else all are RGB. All must be of one size unless ``size`` is
    given: then of each the largest square in its middle is resized to size x size pixels.
    """
    if size is not None and not 1 <= size <= MOST_PIXELS**0.5:
        raise ConfigError(f"size is {size}; it must be from 1 to {int(MOST_PIXELS**0.5):,} pixels.")
    if cifar.recognised(archive):
        if size is not None:
            raise ConfigError("size is for images in class folders; CIFAR's are 32x32.")
        return cifar.read(archive)
    examples = find_examples(archive)
    if not any(example.split for example in examples):
        decoder.split = f"{ONE_IN_FIVE} of each class"
        examples = with_holdout(examples)
    pillow = optional("PIL.Image", "Pillow", "images")
    first, mode, extent = _first(archive, examples, pillow, size)

    def decoded(mode: str) -> Material:
        decode = image_decoder(pillow, first, mode, extent, size is not None, "Give --size N to resize them.")
        shape = len(mode), extent[1], extent[0]
        return decoder.run(archive, examples, decode, shape, np.dtype(np.uint8), len(mode), MOST_BYTES)

    try:
        return decoded(mode)
    except InColourError:  # mostly one of the first, so that little is decoded twice
        return decoded("RGB")


def find_examples(archive: Archive) -> list[Example]:
    """The images of an archive by the names of their folders; DataError where these are none of the layouts.

    Their splits are empty texts where the archive has none.
    """
    examples = []
    for name in archive.names:
        *above, label, file = ("", "", *name.split("/"))[-3:]
        if label and file.lower().endswith(ENDINGS):
            examples.append(Example(name, intern(label), SPLITS.get(above[0], "")))
    if not examples:
        raise DataError(f"{archive.path} has no CLASS/FILE with an image; known endings: {' '.join(ENDINGS)}.")
    of_none = next((example for example in examples if not example.split), None)
    if of_none is None:
        return _in_splits(archive, examples)
    if any(example.split for example in examples) or SPLITS.keys() >= {example.label for example in examples}:
        if of_none.label in SPLITS:
            raise DataError(
                f"{archive.path}: {of_none.name} is in no class folder; it must be {of_none.label}/CLASS/FILE."
            )
        raise DataError(
            f"{archive.path} has train/ or test/ but {of_none.name} is in neither. Move it there, or take it away."
        )
    return examples


def _in_splits(archive: Archive, examples: list[Example]) -> list[Example]:
    """The same examples, those for validation as test examples where there are none."""
    if all(example.split != "test" for example in examples):
        examples = [Example(e.name, e.label, "test" if e.split == "validation" else e.split) for e in examples]
    trained = {example.label for example in examples if example.split == "train"}
    unknown = next((example for example in examples if example.label not in trained), None)
    if trained and unknown:
        raise DataError(
            f"{archive.path}: {unknown.name} is of class {unknown.label}, of which train/ has no image. Correct the "
            "name of its folder, or take it away."
        )
    return examples


def _first(
    archive: Archive, examples: list[Example], pillow: ModuleType, size: int | None
) -> tuple[str, str, tuple[int, int]]:
    """The first image by name that can be read, the mode it asks for, "L" or "RGB", and its width and height."""
    for name in sorted(example.name for example in examples):
        try:
            for _, content in archive.read([name], MOST_BYTES):
                image = _open(pillow, name, content)
        except BadFileError:
            continue
        return name, "L" if image.mode in GREY else "RGB", (size, size) if size else image.size
    raise DataError(f"{archive.path}: none of the {len(examples)} images can be read. Copy or download it again.")


def image_decoder(
    pillow: ModuleType, first: str, mode: str, extent: tuple[int, int], resize: bool, cure: str
) -> Callable[[str, bytes], np.ndarray]:
    """From the name and the content of a file to its pixels ``[channels, height, width]`` uint8.

    ``first`` is what a message calls the image, or the images, whose ``mode`` and ``extent`` all others must have.
    ``cure`` is what it says of another extent, where they are not to be resized.
    """

    def decode(name: str, content: bytes) -> np.ndarray:
        image = _open(pillow, name, content)
        if mode == "L" and image.mode not in GREY:
            raise InColourError(f"{name} is in colour but {first} is grey; all must be alike. Convert them first.")
        with _as_bad_file(pillow):
            if image.mode != mode:
                image = image.convert(mode)
            if resize:
                image = image.resize(extent, pillow.Resampling.BILINEAR, _middle(image.size, extent))
        if image.size != extent:
            raise DataError(
                f"{name} is {image.width}x{image.height} but {first} is {extent[0]}x{extent[1]}; all must be of one "
                f"size. {cure}"
            )
        pixels = np.frombuffer(image.tobytes(), dtype=np.uint8)
        return pixels.reshape(extent[1], extent[0], len(mode)).transpose(2, 0, 1)

    return decode


def _middle(size: tuple[int, int], extent: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest part in the middle of an image that has the sides' ratio of ``extent``: left, top, right, bottom."""
    scale = min(size[0] / extent[0], size[1] / extent[1])
    left, top = ((of - scale * part) / 2 for of, part in zip(size, extent))
    return left, top, left + scale * extent[0], top + scale * extent[1]


def _open(pillow: ModuleType, name: str, content: bytes) -> object:
    """A decoded image; BadFileError where it cannot be, DataError where 8 bits a channel cannot hold it."""
    with _as_bad_file(pillow):
        image = pillow.open(io.BytesIO(content))
        if image.width * image.height > MOST_PIXELS:
            raise BadFileError(f"{image.width}x{image.height} pixels; that is too much")
        image.load()
    if image.mode not in GREY + COLOUR:
        raise DataError(f"{name} has pixels of mode {image.mode}; 8 bits a channel are needed. Convert it first.")
    return image


@contextmanager
def _as_bad_file(pillow: ModuleType) -> Iterator[None]:
    """A context in which Pillow meets an image; it documents no errors, and its readers raise whatever they meet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it can read in spite of damage, and of sizes that we limit
        try:
            yield
        except (*_PILLOW, pillow.DecompressionBombError) as error:
            raise BadFileError(reason(error)) from error
