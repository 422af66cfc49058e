"""Images: examples that are ``[channels, height, width]``; training may see another version of them each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from istmpi import rng
from istmpi.data.dataset import Dataset
from istmpi.data.dense.split import DenseSplit
from istmpi.errors import ConfigError


@dataclass(frozen=True)
class Augmentation:
    """What becomes of a normalised image by chance: cropped first, then mirrored, then cut out.

    All that it leaves without a value becomes zero, the mean of what images are normalised with. Images of a batch are
    drawn each by itself, and all numbers are equally likely.
    """

    crop: int = 0
    """Pixels of padding on each side, of which as large a part as the image is taken."""
    flip: bool = False
    """Left to right, or not."""
    cutout: int = 0
    """Side of a square that is blanked; its centre is any pixel, so that some of it may lie outside of the image."""

    def __bool__(self) -> bool:
        return self != Augmentation()

    def scaled(self, factor: float) -> Augmentation:
        """The same of images whose sides are by a factor below 1 as long; at least a pixel where there is anything."""
        crop, cutout = (length and max(int(length * factor), 1) for length in (self.crop, self.cutout))
        return Augmentation(crop, self.flip, cutout)

    def applied(self, images: np.ndarray, key: int) -> np.ndarray:
        """The version that a key stands for of images ``[b, channels, height, width]``, which may be overwritten."""
        count, _, height, width = images.shape
        if self.crop:
            top, left = (_drawn(key, side, count, 2 * self.crop + 1) for side in ("top", "left"))
            images = _cropped(images, self.crop, top, left)
        if self.flip:
            chosen = _drawn(key, "flip", count, 2) == 1
            images[chosen] = images[chosen, :, :, ::-1]
        if self.cutout:
            rows = _near(_drawn(key, "row", count, height), self.cutout, height)
            columns = _near(_drawn(key, "column", count, width), self.cutout, width)
            blank = rows[:, :, np.newaxis] & columns[:, np.newaxis, :]
            images = np.where(blank[:, np.newaxis], np.float32(0), images)
        return images


def _drawn(key: int, what: str, count: int, below: int) -> np.ndarray:
    return (rng.bits(rng.key(key, what), 0, count) % np.uint64(below)).astype(np.int64)


def _cropped(images: np.ndarray, padding: int, top: np.ndarray, left: np.ndarray) -> np.ndarray:
    height, width = images.shape[2:]
    padded = np.pad(images, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    return windows[np.arange(len(images)), :, top, left]


def _near(centre: np.ndarray, side: int, length: int) -> np.ndarray:
    first = centre[:, np.newaxis] - side // 2
    positions = np.arange(length)
    return (positions >= first) & (positions < first + side)


def downscaled(images: np.ndarray, side: int) -> np.ndarray:
    """Images ``[b, channels, height, width]`` float32 as ``[b, channels, side, side]``: means over areas.

    A pixel that lies in two areas counts in each by its share. Each image by itself: the same whatever the others are.
    """
    for axis in (2, 3):
        length = images.shape[axis]
        area = np.arange(side) * length  # where it begins, in parts of a pixel of which each has ``side``
        pixel, total = area // side, np.float32(0)
        for _ in range(-(-length // side) + 1):
            overlap = np.minimum((pixel + 1) * side, area + length) - np.maximum(pixel * side, area)
            weight = np.maximum(overlap, 0) / np.float32(length)
            values = images.take(np.minimum(pixel, length - 1), axis=axis)
            total = total + values * weight.astype(np.float32).reshape([-1 if at == axis else 1 for at in range(4)])
            pixel = pixel + 1
        images = total
    return images


@dataclass(eq=False)
class ImageSplit(DenseSplit):
    """Images; their ``shape`` is ``[channels, height, width]``, whatever shape the network takes."""

    augmentation: Augmentation = Augmentation()
    """Of batches that have a key; told for images of their own size."""
    side: int = 0
    """That batches have them downscaled to; 0 leaves them as they are."""

    @property
    def read_shape(self) -> tuple[int, ...]:
        return (self.shape[0], self.side, self.side) if self.side else self.shape

    def resized(self, side: int) -> ImageSplit:
        return replace(self, side=side, input_shape=())

    def _features_for(self, indices: np.ndarray, key: int | None) -> np.ndarray:
        x = self.features(indices)
        augmentation = Augmentation() if key is None else self.augmentation
        if not self.side and not augmentation:
            return x
        images = x.reshape(len(x), *self.shape)
        if self.side:
            images, augmentation = downscaled(images, self.side), augmentation.scaled(self.side / self.shape[1])
        return augmentation.applied(images, key) if augmentation else images


def augmented(data: Dataset, augmentation: Augmentation) -> Dataset:
    """The same data with other versions of the training images; ConfigError where they are no images, or too small."""
    if not augmentation:
        return data
    name = next(name for name in ("crop", "flip", "cutout") if getattr(augmentation, name))
    shown, train = " x ".join(map(str, data.shape)), data.train
    if not isinstance(train, ImageSplit):
        raise ConfigError(
            f"data.{name} = {getattr(augmentation, name)} is for images [channels, height, width], but "
            f"{data.source} is of kind {data.kind}, with examples of {shown} numbers. Leave it out."
        )
    side = min(train.shape[1:])
    for name in ("crop", "cutout"):
        if getattr(augmentation, name) >= side:
            raise ConfigError(
                f"data.{name} = {getattr(augmentation, name)} must be below the {side} pixels of {data.source}'s "
                f"images ({shown})."
            )
    return replace(data, splits={**data.splits, "train": replace(train, augmentation=augmentation)})


def resized(data: Dataset, side: int) -> Dataset:
    """The same images downscaled to a side; 0 leaves them as they are."""
    if not side:
        return data
    shape = data.shape[0], side, side
    splits = {name: split.resized(side) for name, split in data.splits.items()}
    return replace(data, splits=splits, shape=shape)


def require_sides(data: Dataset, sides: Sequence[int]) -> None:
    """Refuse, with a ConfigError, sides that these data cannot be downscaled to: the last one must be their own."""
    shown = " x ".join(map(str, data.shape))
    if not isinstance(data.train, ImageSplit):
        raise ConfigError(
            f"train.resolution is for images [channels, height, width], but {data.source} is of kind {data.kind}, with "
            f"examples of {shown} numbers. Leave it out."
        )
    if data.shape[1] != data.shape[2]:
        raise ConfigError(f"train.resolution is for images as high as wide; those of {data.source} are {shown}.")
    if sides[-1] != data.shape[2]:
        raise ConfigError(
            f"train.resolution ends with side {sides[-1]}, but the images of {data.source} have {data.shape[2]} "
            f"({shown}). End with that."
        )
