"""Images ``[channels, height, width]``; training may read a randomly changed image each time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from istmpi import rng
from istmpi.code import short
from istmpi.data.dataset import Dataset
from istmpi.data.dense.split import DenseSplit, open_rows
from istmpi.data.hdf5 import Opened, PreparedFile
from istmpi.data.moments import Normalisation
from istmpi.errors import ConfigError, did_you_mean
from istmpi.settings import shown as as_typed


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a normalised image, in this order: crop, mirror, cutout. Padded and blanked
    pixels are zero."""

    crop: int = 0
    """Pixels of padding on each side; then a random part as large as the image is taken."""
    flip: bool = False
    cutout: int = 0
    """The side of a blanked square around a random pixel."""
    transforms: tuple[str, ...] = ()
    """Transforms of torchvision, which come first, before an image is normalised."""

    def __bool__(self) -> bool:
        return self != Augmentation()

    def scale(self, factor: float) -> Augmentation:
        return replace(
            self,
            crop=_scale_length(self.crop, factor),
            cutout=_scale_length(self.cutout, factor),
        )

    def apply(self, images: np.ndarray, key: int) -> np.ndarray:
        """Return ``images`` with the random changes that ``key`` draws; may overwrite
        ``images``."""
        count, _, height, width = images.shape

        def draw(what: str, below: int) -> np.ndarray:
            return (rng.bits(rng.key(key, what), 0, count) % np.uint64(below)).astype(np.int64)

        if self.crop:
            top = draw("top", 2 * self.crop + 1)
            left = draw("left", 2 * self.crop + 1)
            margin = (self.crop, self.crop)
            # Zeros after normalisation are the mean colour, not black.
            padded = np.pad(images, [(0, 0), (0, 0), margin, margin])
            # A view of all positions: only the chosen ones are copied.
            windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
            images = windows[np.arange(count), :, top, left]
        if self.flip:
            chosen = draw("flip", 2) == 1
            images[chosen] = images[chosen, :, :, ::-1]
        if self.cutout:
            rows = _mark_near(draw("row", height), self.cutout, height)
            columns = _mark_near(draw("column", width), self.cutout, width)
            blank = rows[:, :, np.newaxis] & columns[:, np.newaxis, :]
            images = np.where(blank[:, np.newaxis], np.float32(0), images)
        return images


def _scale_length(length: int, factor: float) -> int:
    """Scale a length in pixels to at least 1; 0, which means unused, stays."""
    return length and max(int(length * factor), 1)


@cache
def make_transform(text: str) -> Callable[[Any], Any]:
    """Return the torchvision transform that ``text`` describes, such as RandomRotation(15), or
    raise ConfigError."""
    subject = f"data.transforms: {text!r}"
    try:
        v2 = import_module("torchvision.transforms.v2")
    # A torchvision that belongs to another torch raises RuntimeError.
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfigError(
            f"{subject} needs torchvision, which cannot be imported ({short(error)}). Install the "
            "one for your torch, from the index that torch came from: pip install torchvision."
        ) from error
    try:
        name, values, named = _parse_call(text)
    except (SyntaxError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{subject} must be a name with plain arguments, as RandomRotation(15)."
        ) from error
    kinds = {
        name: kind
        for name, kind in vars(v2).items()
        if isinstance(kind, type) and issubclass(kind, v2.Transform)
    }
    if name not in kinds:
        raise ConfigError(
            f"{subject} is not a transform of torchvision.transforms.v2{did_you_mean(name, kinds)}"
        )
    try:
        return kinds[name](*values, **named)
    except Exception as error:
        raise ConfigError(f"{subject} cannot be made: {short(error)}.") from error


def _parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Read NAME or NAME(...) with literals as arguments; return the name, the values without names
    and those with. Raises SyntaxError, ValueError or TypeError for any other text."""
    body = ast.parse(text, mode="eval").body
    values: list[Any] = []
    named: dict[str, Any] = {}
    if isinstance(body, ast.Call):
        values = [ast.literal_eval(value) for value in body.args]
        for keyword in body.keywords:
            if keyword.arg is None:
                raise ValueError("** has no name")
            named[keyword.arg] = ast.literal_eval(keyword.value)
        body = body.func
    if not isinstance(body, ast.Name):
        raise ValueError("it has no plain name")
    return body.id, values, named


def transform_images(names: Sequence[str], images: np.ndarray, key: int) -> np.ndarray:
    """Transform raw images ``[b, channels, height, width]``, seeded by ``key``. ConfigError if a
    transform fails."""
    import torch

    from istmpi.data.callable.split import control_random_numbers

    steps = [make_transform(name) for name in names]
    changed = np.empty_like(images)
    with control_random_numbers() as seed:
        # One by one: a transform draws once for a whole batch.
        for number, image in enumerate(images):
            seed(rng.key(key, "transforms", number))
            before = after = torch.from_numpy(image)
            try:
                for step in steps:
                    after = step(after)
                # The network's input and the normalisation are those of the raw images.
                if (after.shape, after.dtype) != (before.shape, before.dtype):
                    raise ValueError(
                        f"{[*before.shape]} {before.dtype} becomes {[*after.shape]} {after.dtype}"
                    )
            except Exception as error:
                raise ConfigError(
                    f"data.transforms = {[*names]} fail on an image: {short(error)}."
                ) from error
            changed[number] = after.numpy()
    return changed


def _mark_near(centre: np.ndarray, side: int, length: int) -> np.ndarray:
    first = centre[:, np.newaxis] - side // 2
    positions = np.arange(length)
    return (positions >= first) & (positions < first + side)


def downscale(images: np.ndarray, side: int) -> np.ndarray:
    """Downscale to ``[b, channels, side, side]`` float32: means over areas, where pixels on a
    border count in part."""
    for axis in (2, 3):
        length = images.shape[axis]
        # Whole numbers: an area starts at a multiple of 1 / side of a source pixel.
        area = np.arange(side) * length
        pixel = area // side
        total = np.float32(0)
        weights_shape = [1, 1, 1, 1]
        weights_shape[axis] = side
        for _ in range(-(-length // side) + 1):
            overlap = np.minimum((pixel + 1) * side, area + length) - np.maximum(pixel * side, area)
            weight = np.maximum(overlap, 0) / np.float32(length)
            values = images.take(np.minimum(pixel, length - 1), axis=axis)
            total = total + values * weight.astype(np.float32).reshape(weights_shape)
            pixel = pixel + 1
        images = total
    return images


@dataclass(eq=False)
class ImageSplit(DenseSplit):
    augmentation: Augmentation = Augmentation()
    side: int = 0
    """The side to which batches downscale images; 0 for no downscaling."""

    @property
    def read_shape(self) -> tuple[int, ...]:
        if not self.side:
            return self.shape
        return (self.shape[0], self.side, self.side)

    def resize(self, side: int) -> ImageSplit:
        return replace(self, side=side, input_shape=())

    def _read(self, indices: np.ndarray, key: int | None) -> np.ndarray:
        if key is None or not self.augmentation:
            x = self.features(indices)
            if not self.side:
                return x
            return downscale(x.reshape(len(x), *self.shape), self.side)
        augmentation = self.augmentation
        if augmentation.transforms:
            # torchvision's transforms take pixels from 0 to 255.
            x = self._transform(indices, key)
        else:
            x = self.features(indices)
        images = x.reshape(len(x), *self.shape)
        if self.side:
            images = downscale(images, self.side)
            # A crop of 4 of 32 pixels is a crop of 2 of 16.
            augmentation = augmentation.scale(self.side / self.shape[1])
        return augmentation.apply(images, key)

    def _transform(self, indices: np.ndarray, key: int) -> np.ndarray:
        raw = self._take(indices).reshape(len(indices), *self.shape)
        images = transform_images(self.augmentation.transforms, raw, key)
        return self._normalise(images.reshape(len(indices), -1))


def make_examples(
    shape: tuple[int, ...], x: np.ndarray, y: np.ndarray, normalisation: Normalisation | None = None
) -> DenseSplit:
    """Return an `ImageSplit` if the examples have three axes, otherwise a `DenseSplit`; ``x`` is
    without the offset."""
    mean, std, offset = normalisation or (None, None, None)
    return _choose_split(shape)(x, y, mean=mean, std=std, shape=shape, offset=offset)


def open_examples(file: PreparedFile) -> Opened:
    return open_rows(file, _choose_split(file.shape))


def _choose_split(shape: tuple[int, ...]) -> type[DenseSplit]:
    return ImageSplit if len(shape) == 3 else DenseSplit


def augment(data: Dataset, augmentation: Augmentation) -> Dataset:
    if not augmentation:
        return data
    setting, value = next((name, value) for name, value in vars(augmentation).items() if value)
    train = require_images(data, f"data.{setting} = {as_typed(value)}")
    side = min(train.shape[1:])
    for name in ("crop", "cutout"):
        pixels = getattr(augmentation, name)
        if pixels >= side:
            raise ConfigError(
                f"data.{name} = {pixels} must be below the {side} pixels of {data.source}'s images "
                f"({' x '.join(map(str, data.shape))})."
            )
    train = replace(train, augmentation=augmentation)
    # A first batch refuses transforms that cannot be made or do not fit.
    if augmentation.transforms:
        train.batch(np.arange(1), 0)
    return replace(data, splits={**data.splits, "train": train})


def resize_images(data: Dataset, side: int) -> Dataset:
    if not side:
        return data
    splits = {name: split.resize(side) for name, split in data.splits.items()}
    return replace(data, splits=splits, shape=(data.shape[0], side, side))


def require_images(data: Dataset, setting: str) -> ImageSplit:
    """Return the training images. Raises ConfigError if the examples are no images."""
    if not isinstance(data.train, ImageSplit):
        raise ConfigError(
            f"{setting} is for images [channels, height, width], but {data.source} is of kind "
            f"{data.kind}, with examples of {' x '.join(map(str, data.shape))} numbers. Leave it "
            "out."
        )
    return data.train
