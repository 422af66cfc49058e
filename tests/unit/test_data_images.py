"""Images as training sees them: in their shape, and each time another version of them."""

from collections import Counter
from math import sqrt

import images_oracle
import numpy as np
import pytest
from data_files import make_images, make_speech
from hypothesis import given, settings
from hypothesis import strategies as st

from istmpi.config import Run
from istmpi.data.batches import Batches
from istmpi.data.dense.split import DenseSplit
from istmpi.data.hdf5 import open_prepared
from istmpi.data.images.split import Augmentation, ImageSplit, augmented, downscaled, require_sides, resized
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset, open_digits, open_for_training
from istmpi.errors import ConfigError

ALL = Augmentation(crop=2, flip=True, cutout=3)


def split(count=6, shape=(3, 5, 4), how=ALL, seed=0):
    """Random bytes as images, normalised channel by channel."""
    x = np.random.default_rng(seed).integers(0, 256, (count, int(np.prod(shape))), dtype=np.uint8)
    mean, std = (np.repeat(np.float32(values), np.prod(shape[1:])) for values in ([100, 120, 140], [50, 60, 70]))
    return ImageSplit(x, np.arange(count), mean, std, shape=shape, augmentation=how)


def given_to_the_network(batch):
    (x,) = batch.inputs
    return x.numpy()


# ---- what a version is


@settings(max_examples=60, deadline=None)
@given(
    crop=st.integers(0, 3),
    flip=st.booleans(),
    cutout=st.integers(0, 3),
    key=st.integers(0, 2**64 - 1),
    rows=st.lists(st.integers(0, 5), max_size=8),
)
def test_a_version_is_that_of_the_naive_oracle(crop, flip, cutout, key, rows):
    images = split(how=Augmentation(crop, flip, cutout))
    batch = images.batch(np.array(rows, int), key)
    stored = (images.x[rows] - images.mean) / images.std
    expected = images_oracle.augmented(stored.reshape(-1, 3, 5, 4), key, crop, flip, cutout)
    np.testing.assert_array_equal(given_to_the_network(batch), expected)
    assert batch.examples == len(rows) and batch.targets.tolist() == rows


@pytest.mark.parametrize("how", [ALL, Augmentation(flip=True)])
def test_without_a_key_nothing_is_random(how):
    images, rows = split(how=how), np.array([3, 3, 0])
    plain = DenseSplit(images.x, images.y, images.mean, images.std, shape=images.shape)
    for seen in (images.batch(rows), split(how=Augmentation()).batch(rows, 5)):
        np.testing.assert_array_equal(given_to_the_network(seen), given_to_the_network(plain.batch(rows)))
    assert images.features_checksum == plain.features_checksum


def test_a_network_that_takes_numbers_gets_the_same_version_flat_and_what_is_stored_stays():
    images, rows = split(), np.arange(6)
    flat = given_to_the_network(images.reshaped((60,)).batch(rows, 9))
    np.testing.assert_array_equal(flat.reshape(6, 3, 5, 4), given_to_the_network(images.batch(rows, 9)))
    stored = ImageSplit(np.ones((2, 48), np.float32), np.arange(2), shape=(3, 4, 4), augmentation=ALL)
    stored.batch(np.arange(2), 1)
    assert flat.shape == (6, 60) and (stored.x == 1).all()


# ---- chance


def chi_square(seen, cells):
    """How far counts are from equal ones, in standard deviations above what is expected of them."""
    counts = Counter(seen)
    assert counts.keys() <= set(cells)
    expected = len(seen) / len(cells)
    found = sum((counts[cell] - expected) ** 2 / expected for cell in cells)
    return (found - (len(cells) - 1)) / sqrt(2 * (len(cells) - 1))


def versions(how, size, keys, count):
    """The versions of one image of different pixels, for each of these keys of so many examples."""
    image = np.arange(1, size * size + 1, dtype=np.float32)
    one = ImageSplit(image[None], np.zeros(1, int), shape=(1, size, size), augmentation=how)
    batches = [given_to_the_network(one.batch(np.zeros(count, int), key)) for key in keys]
    return image.reshape(size, size), np.concatenate(batches)[:, 0]


@pytest.mark.parametrize("keys, count", [(range(1), 9000), (range(3000), 3)], ids=["in a batch", "over batches"])
def test_every_part_is_equally_likely_mirrored_or_not(keys, count):
    image, seen = versions(Augmentation(crop=1, flip=True), 4, keys, count)
    padded, known = np.pad(image, 1), {}
    for top in range(3):
        for left in range(3):
            part = padded[top : top + 4, left : left + 4]
            known |= {part.tobytes(): (top, left, False), part[:, ::-1].tobytes(): (top, left, True)}
    assert len(known) == 18
    assert abs(chi_square([known[one.tobytes()] for one in seen], known.values())) < 4


@pytest.mark.parametrize("keys, count", [(range(1), 9000), (range(3000), 3)], ids=["in a batch", "over batches"])
def test_a_square_is_cut_out_around_any_pixel(keys, count):
    _, seen = versions(Augmentation(cutout=1), 4, keys, count)
    assert ((seen == 0).sum(axis=(1, 2)) == 1).all()
    centres = [int(np.flatnonzero(one == 0)[0]) for one in seen]
    assert abs(chi_square(centres, range(16))) < 4


class Keys(DenseSplit):
    """A split that notes its keys."""

    def batch(self, indices, key=None):
        self.noted.append(key)
        return super().batch(indices, key)


def test_never_twice_the_same_key():
    rows = Keys(np.zeros((7, 2), np.float32), np.zeros(7, int))
    rows.noted = []
    for seed in range(3):
        for stream in range(4):
            batches = Batches(rows, np.arange(7), 3, seed, stream)
            for step in range(300):
                batches.at(step)
    assert None not in rows.noted and len(set(rows.noted)) == len(rows.noted) == 3600
    rows.noted, batches = [], Batches(rows, np.arange(7), 3, 0, 0)
    for number in range(50):
        for place in range(batches.in_a_pass):
            batches.of_pass(number, place)
    assert len(set(rows.noted)) == len(rows.noted) == 150


def test_versions_are_fixed_for_ever():
    """A resumed run, or a rank with another NumPy, must see these very images."""
    batches = Batches(split(), np.arange(6), 4, seed=7, stream=2)
    seen = given_to_the_network(batches.at(20))
    stored = given_to_the_network(split().batch(batches.indices(20)))
    expected = images_oracle.augmented(stored, images_oracle.key_of(7, "batch", 2, 20), 2, True, 3)
    np.testing.assert_array_equal(seen, expected)


# ---- what a run may ask for


def test_training_images_alone_have_versions():
    run = Run().override({"data.crop": 2, "data.flip": True, "data.cutout": 3})
    data, rows = open_for_training(run.data), np.arange(50)
    assert data.train.augmentation == ALL and not data.test.augmentation
    assert not np.array_equal(*(given_to_the_network(data.train.batch(rows, key)) for key in (1, 2)))
    assert np.array_equal(*(given_to_the_network(data.test.batch(rows, key)) for key in (1, 2)))
    assert open_for_training(Run().data).train.augmentation == Augmentation()


def test_prepared_images_reach_a_network_in_their_shape(tmp_path):
    data = open_prepared(prepare("images", make_images(tmp_path / "input"), tmp_path / "data.h5").target)
    assert data.shape == (3, 4, 6) and data.train.x.dtype == np.uint8
    assert given_to_the_network(data.train.batch(np.arange(5))).shape == (5, 3, 4, 6)
    assert given_to_the_network(data.reshaped((72,)).train.batch(np.arange(5))).shape == (5, 72)
    stored = data.train.x.reshape(-1, 3, 4, 6).astype(np.float64)
    expected = (stored - stored.mean((0, 2, 3), keepdims=True)) / stored.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(given_to_the_network(data.train.batch(np.arange(10))), expected, rtol=1e-4, atol=1e-5)


def test_what_would_leave_nothing_of_an_image_is_refused():
    for how, says in (
        (Augmentation(crop=8), r"data.crop = 8 must be below the 8 pixels of digits's images \(1 x 8 x 8\)."),
        (Augmentation(flip=True, cutout=9), "data.cutout = 9 must be below the 8 pixels"),
    ):
        with pytest.raises(ConfigError, match=says):
            augmented(open_digits(), how)
    assert augmented(open_digits(), Augmentation(crop=7, cutout=7)).train.augmentation
    for setting in ("data.crop", "data.cutout"):
        for value, says in ((-1, "must be at least 0"), (1.5, "must be a whole number")):
            with pytest.raises(ConfigError, match=f"{setting} = {value} {says}"):
                Run().override({setting: value})


@pytest.mark.parametrize("setting, value", [("crop", "4"), ("flip", "true"), ("cutout", "2")])
def test_data_that_are_no_images_are_refused_in_one_line(tmp_path, istmpi_command, setting, value):
    file = tmp_path / "data.npz"
    np.savez(file, x=np.zeros((20, 6), np.float32), y=np.arange(20) % 2)
    for command in (["train", "--out", tmp_path / "run"], ["train", "--dry-run"], ["costmodel"]):
        code, _, err = istmpi_command(*command, "--data", file, "--set", f"data.{setting}={value}")
        assert code == 2
        assert err == (
            f"istmpi: data.{setting} = {value} is for images [channels, height, width], but {file} is of kind arrays, "
            "with examples of 6 numbers. Leave it out.\n"
        )
    spectra = prepare("speech", make_speech(tmp_path / "input"), tmp_path / "data.h5").target
    with pytest.raises(ConfigError, match="of kind speech, with examples of 1 x 128 x 32 numbers"):
        augmented(open_dataset(str(spectra)), Augmentation(flip=True))


# ---- smaller images


@settings(max_examples=25, deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 9), side=st.integers(1, 9), seed=st.integers(0, 99))
def test_downscaling_is_that_of_the_naive_oracle(height, width, side, seed):
    """Of any side: whole pixels, parts of pixels, and where there is nothing to make smaller."""
    images = np.random.default_rng(seed).normal(size=(2, 3, height, width)).astype(np.float32)
    found = downscaled(images, side)
    assert found.dtype == np.float32 and found.shape == (2, 3, side, side)
    expected = [[images_oracle.downscaled(channel, side) for channel in image] for image in images]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(downscaled(images[1:], side), found[1:])


def test_a_smaller_batch_is_downscaled_before_it_is_changed():
    images, rows, key = split(shape=(3, 8, 8), how=Augmentation(4, True, 6)), np.array([3, 0, 5]), 11
    smaller = images.resized(3)
    stored = given_to_the_network(smaller.batch(rows))
    large = given_to_the_network(images.batch(rows))
    expected = [[images_oracle.downscaled(channel, 3) for channel in image] for image in large]
    np.testing.assert_allclose(stored, expected, atol=1e-5)
    expected = images_oracle.augmented(stored, key, 1, True, 2)
    np.testing.assert_array_equal(given_to_the_network(smaller.batch(rows, key)), expected)
    again = given_to_the_network(smaller.resized(0).batch(rows, key))
    np.testing.assert_array_equal(again, given_to_the_network(images.batch(rows, key)))
    assert smaller.features_checksum == images.features_checksum
    assert smaller.reshaped((27,)).batch(rows).inputs[0].shape == (3, 27)
    assert Augmentation(1, False, 1).scaled(0.1) == Augmentation(1, False, 1) and not Augmentation().scaled(0.5)


def test_sides_must_be_those_of_the_images(tmp_path):
    digits = open_digits()
    require_sides(digits, [4, 8])
    small = resized(digits, 4)
    assert (small.shape, small.features, resized(digits, 0)) == ((1, 4, 4), 16, digits)
    with pytest.raises(ConfigError, match=r"ends with side 4, but the images of digits have 8 \(1 x 8 x 8\)"):
        require_sides(digits, [4])
    np.savez(tmp_path / "flat.npz", x=np.zeros((9, 4), np.float32), y=np.arange(9) % 2)
    with pytest.raises(ConfigError, match="is for images .channels, height, width., but .* examples of 4 numbers"):
        require_sides(open_dataset(str(tmp_path / "flat.npz")), [2])
    np.savez(tmp_path / "wide.npz", x=np.zeros((9, 1, 2, 4), np.float32), y=np.arange(9) % 2)
    with pytest.raises(ConfigError, match="square images; those of .* are 1 x 2 x 4"):
        require_sides(open_dataset(str(tmp_path / "wide.npz")), [4])
