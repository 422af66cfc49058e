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

    def scaled(self, factor: float) -> Augmentation:
        crop, cutout = (
            length and max(int(length * factor), 1) for length in (self.crop, self.cutout)
        )
        return replace(self, crop=crop, cutout=cutout)

    def applied(self, images: np.ndarray, key: int) -> np.ndarray:
        """Return ``images`` with the random changes that ``key`` draws; may overwrite
        ``images``."""
        count, _, height, width = images.shape

        def drawn(what: str, below: int) -> np.ndarray:
            return (rng.bits(rng.key(key, what), 0, count) % np.uint64(below)).astype(np.int64)

        if self.crop:
            top, left = (drawn(side, 2 * self.crop + 1) for side in ("top", "left"))
            padded = np.pad(
                images, [(0, 0), (0, 0), (self.crop, self.crop), (self.crop, self.crop)]
            )
            windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
            images = windows[np.arange(count), :, top, left]
        if self.flip:
            chosen = drawn("flip", 2) == 1
            images[chosen] = images[chosen, :, :, ::-1]
        if self.cutout:
            rows = _near(drawn("row", height), self.cutout, height)
            columns = _near(drawn("column", width), self.cutout, width)
            blank = rows[:, :, np.newaxis] & columns[:, np.newaxis, :]
            images = np.where(blank[:, np.newaxis], np.float32(0), images)
        return images


@cache
def transform(text: str) -> Callable[[Any], Any]:
    """Return the torchvision transform that ``text`` describes, such as RandomRotation(15), or
    raise ConfigError."""
    subject = f"data.transforms: {text!r}"
    try:
        v2 = import_module("torchvision.transforms.v2")
    except (
        ImportError,
        RuntimeError,
        OSError,
    ) as error:  # RuntimeError: it belongs to another torch
        raise ConfigError(
            f"{subject} needs torchvision, which cannot be imported ({short(error)}). Install the one for your torch, "
            f"from the index that torch came from: pip install torchvision."
        ) from error
    try:
        call = ast.parse(text, mode="eval").body
        name, given, named = (
            (call.func, call.args, call.keywords) if isinstance(call, ast.Call) else (call, [], [])
        )
        values = [*map(ast.literal_eval, given)]
        by_name, name = {each.arg: ast.literal_eval(each.value) for each in named}, name.id
    except (SyntaxError, ValueError, AttributeError, TypeError) as error:
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
        return kinds[name](*values, **by_name)
    except Exception as error:
        raise ConfigError(f"{subject} cannot be made: {short(error)}.") from error


def transformed(names: Sequence[str], images: np.ndarray, key: int) -> np.ndarray:
    """Transform raw images ``[b, channels, height, width]``, seeded by ``key``. ConfigError if a
    transform fails."""
    import torch

    from istmpi.data.callable.split import drawing

    steps, changed = [transform(name) for name in names], np.empty_like(images)
    with drawing() as seed:
        for number, image in enumerate(images):
            seed(rng.key(key, "transforms", number))
            before = after = torch.from_numpy(image)
            try:
                for step in steps:
                    after = step(after)
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


def _near(centre: np.ndarray, side: int, length: int) -> np.ndarray:
    first = centre[:, np.newaxis] - side // 2
    positions = np.arange(length)
    return (positions >= first) & (positions < first + side)


def downscaled(images: np.ndarray, side: int) -> np.ndarray:
    """Downscale to ``[b, channels, side, side]`` float32: means over areas, where pixels on a
    border count in part."""
    for axis in (2, 3):
        length = images.shape[axis]
        area = np.arange(side) * length  # its start, in units of 1 / side of a source pixel
        pixel, total = area // side, np.float32(0)
        for _ in range(-(-length // side) + 1):
            overlap = np.minimum((pixel + 1) * side, area + length) - np.maximum(pixel * side, area)
            weight = np.maximum(overlap, 0) / np.float32(length)
            values = images.take(np.minimum(pixel, length - 1), axis=axis)
            total = total + values * weight.astype(np.float32).reshape(
                [-1 if at == axis else 1 for at in range(4)]
            )
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
        return (self.shape[0], self.side, self.side) if self.side else self.shape

    def resized(self, side: int) -> ImageSplit:
        return replace(self, side=side, input_shape=())

    def _features_for(self, indices: np.ndarray, key: int | None) -> np.ndarray:
        augmentation = Augmentation() if key is None else self.augmentation
        x = self._transformed(indices, key) if augmentation.transforms else self.features(indices)
        if not self.side and not augmentation:
            return x
        images = x.reshape(len(x), *self.shape)
        if self.side:
            images, augmentation = (
                downscaled(images, self.side),
                augmentation.scaled(self.side / self.shape[1]),
            )
        return augmentation.applied(images, key) if augmentation else images

    def _transformed(self, indices: np.ndarray, key: int) -> np.ndarray:
        images = self._taken(indices).reshape(len(indices), *self.shape)
        return self._normalised(
            transformed(self.augmentation.transforms, images, key).reshape(len(indices), -1)
        )


def examples_of(
    shape: tuple[int, ...], x: np.ndarray, y: np.ndarray, normalisation: Normalisation | None = None
) -> DenseSplit:
    """Return an `ImageSplit` if the examples have three axes, otherwise a `DenseSplit`; ``x`` is
    without the offset."""
    mean, std, offset = normalisation or (None, None, None)
    return _type_of(shape)(x, y, mean, std, None, shape, offset=offset)


def open_examples(file: PreparedFile) -> Opened:
    return open_rows(file, _type_of(file.shape))


def _type_of(shape: tuple[int, ...]) -> type[DenseSplit]:
    return ImageSplit if len(shape) == 3 else DenseSplit


def augmented(data: Dataset, augmentation: Augmentation) -> Dataset:
    if not augmentation:
        return data
    name, value = next((name, value) for name, value in vars(augmentation).items() if value)
    train = _require_images(data, f"data.{name} = {as_typed(value)}")
    side = min(train.shape[1:])
    for name in ("crop", "cutout"):
        if (value := getattr(augmentation, name)) >= side:
            raise ConfigError(
                f"data.{name} = {value} must be below the {side} pixels of {data.source}'s images "
                f"({' x '.join(map(str, data.shape))})."
            )
    train = replace(train, augmentation=augmentation)
    if augmentation.transforms:
        train.batch(np.arange(1), 0)  # refuses transforms that cannot be made or do not fit
    return replace(data, splits={**data.splits, "train": train})


def resized(data: Dataset, side: int) -> Dataset:
    if not side:
        return data
    splits = {name: split.resized(side) for name, split in data.splits.items()}
    return replace(data, splits=splits, shape=(data.shape[0], side, side))


def require_sides(data: Dataset, sides: Sequence[int]) -> None:
    _require_images(data, "train.resolution")
    shown = " x ".join(map(str, data.shape))
    if data.shape[1] != data.shape[2]:
        raise ConfigError(
            f"train.resolution needs square images; those of {data.source} are {shown}."
        )
    if sides[-1] != data.shape[2]:
        raise ConfigError(
            f"train.resolution ends with side {sides[-1]}, but the images of {data.source} have "
            f"{data.shape[2]} ({shown}). End with that side."
        )


def _require_images(data: Dataset, setting: str) -> ImageSplit:
    if not isinstance(data.train, ImageSplit):
        raise ConfigError(
            f"{setting} is for images [channels, height, width], but {data.source} is of kind {data.kind}, with "
            f"examples of {' x '.join(map(str, data.shape))} numbers. Leave it out."
        )
    return data.train
