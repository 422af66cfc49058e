"""The naive oracle of augmented images: pixel by pixel, with random numbers that are worked out by hand."""

import hashlib

import numpy as np


def key_of(*purpose):
    """64 bits of BLAKE2b of what something is for."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in purpose)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def bits(key, place):
    """SplitMix64 of a position in the stream of a key."""
    z = (place * 0x9E3779B97F4A7C15 + key) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def drawn(key, what, place, below):
    return bits(key_of(key, what), place) % below


def augmented(images, key, crop=0, flip=False, cutout=0):
    """What a key makes of images ``[b][channels][height][width]``: zero where it leaves nothing."""
    images = np.asarray(images)
    count, channels, height, width = images.shape
    versions = np.zeros_like(images)
    for number in range(count):
        top, left = (drawn(key, side, number, 2 * crop + 1) if crop else 0 for side in ("top", "left"))
        mirrored = flip and drawn(key, "flip", number, 2) == 1
        row, column = (
            drawn(key, name, number, length) if cutout else 0 for name, length in (("row", height), ("column", width))
        )
        for y in range(height):
            for x in range(width):
                if row - cutout // 2 <= y < row - cutout // 2 + cutout:
                    if column - cutout // 2 <= x < column - cutout // 2 + cutout:
                        continue
                from_y = y + top - crop
                from_x = (width - 1 - x if mirrored else x) + left - crop
                if 0 <= from_y < height and 0 <= from_x < width:
                    for channel in range(channels):
                        versions[number, channel, y, x] = images[number, channel, from_y, from_x]
    return versions


def downscaled(image, side):
    """One channel ``[height][width]`` as means of side x side areas: pixels are cut into side x side grains each."""
    height, width = len(image), len(image[0])
    sums, counts = np.zeros((side, side)), np.zeros((side, side))
    for y in range(height * side):
        for x in range(width * side):
            place = y // height, x // width
            sums[place] += image[y // side][x // side]
            counts[place] += 1
    return sums / counts
