"""Images: as training sees them, each time another version, and out of folders as ImageNet's."""

import tracemalloc

import images_oracle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from istmpi.data.batches import Batches
from istmpi.data.dense.predict import read_inputs
from istmpi.data.dense.split import DenseSplit
from istmpi.data.hdf5 import open_prepared
from istmpi.data.images.split import Augmentation, ImageSplit, augment, downscale, resize_images
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset, open_digits
from istmpi.errors import ConfigError, DataError
from istmpi.training.sizes import require_sides

ALL = Augmentation(crop=2, flip=True, cutout=3)


def split(count=6, shape=(3, 5, 4), how=ALL, seed=0):
    x = np.random.default_rng(seed).integers(0, 256, (count, int(np.prod(shape))), dtype=np.uint8)
    mean, std = (np.repeat(np.float32(values), np.prod(shape[1:])) for values in ([100, 120, 140], [50, 60, 70]))
    return ImageSplit(x, np.arange(count), mean, std, shape=shape, augmentation=how)


def given_to_the_network(batch):
    (x,) = batch.inputs
    return x.numpy()


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
def test_without_a_key_nothing_is_random_and_what_is_stored_stays(how):
    images, rows = split(how=how), np.array([3, 3, 0])
    plain = DenseSplit(images.x.copy(), images.y, images.mean, images.std, shape=images.shape)
    images.batch(rows, 5)
    for seen in (images.batch(rows), split(how=Augmentation()).batch(rows, 5)):
        np.testing.assert_array_equal(given_to_the_network(seen), given_to_the_network(plain.batch(rows)))
    assert images.features_checksum == plain.features_checksum


def test_never_twice_the_same_key_and_for_ever_the_same(monkeypatch):
    """A resumed run, or a rank with another NumPy, must see the very same versions."""
    noted = []
    monkeypatch.setattr(DenseSplit, "batch", lambda split, indices, key=None: noted.append(key))
    rows = DenseSplit(np.zeros((7, 2), np.float32), np.zeros(7, int))
    for seed in range(3):
        for stream in range(4):
            batches = Batches(rows, np.arange(7), 3, seed, stream)
            for step in range(300):
                batches.at(step)
    assert noted[:300] == [images_oracle.key_of(0, "batch", 0, step) for step in range(300)]
    assert None not in noted and len(set(noted)) == len(noted) == 3600
    for number in range(50):
        for place in range(batches.in_a_pass):
            batches.read_from_pass(number, place)
    assert len(set(noted[3600:])) == len(noted[3600:]) == 150


def test_what_would_leave_nothing_of_an_image_is_refused():
    for how, says in (
        (Augmentation(crop=8), r"data.crop = 8 must be below the 8 pixels of digits's images \(1 x 8 x 8\)."),
        (Augmentation(flip=True, cutout=9), "data.cutout = 9 must be below the 8 pixels"),
    ):
        with pytest.raises(ConfigError, match=says):
            augment(open_digits(), how)
    assert augment(open_digits(), Augmentation(crop=7, cutout=7)).train.augmentation


@given(height=st.integers(1, 9), width=st.integers(1, 9), side=st.integers(1, 9), seed=st.integers(0, 99))
def test_downscaling_is_that_of_the_naive_oracle(height, width, side, seed):
    """Of any side: whole pixels, parts of pixels, and where there is nothing to make smaller."""
    images = np.random.default_rng(seed).normal(size=(2, 3, height, width)).astype(np.float32)
    found = downscale(images, side)
    assert found.dtype == np.float32 and found.shape == (2, 3, side, side)
    expected = [[images_oracle.downscaled(channel, side) for channel in image] for image in images]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(downscale(images[1:], side), found[1:])


def test_a_smaller_batch_is_downscaled_before_it_is_changed():
    images, rows, key = split(shape=(3, 8, 8), how=Augmentation(4, True, 6)), np.array([3, 0, 5]), 11
    smaller = images.resize(3)
    stored = given_to_the_network(smaller.batch(rows))
    np.testing.assert_array_equal(stored, downscale(given_to_the_network(images.batch(rows)), 3))
    expected = images_oracle.augmented(stored, key, 1, True, 2)
    np.testing.assert_array_equal(given_to_the_network(smaller.batch(rows, key)), expected)
    again = given_to_the_network(smaller.resize(0).batch(rows, key))
    np.testing.assert_array_equal(again, given_to_the_network(images.batch(rows, key)))
    assert smaller.features_checksum == images.features_checksum
    assert smaller.reshape((27,)).batch(rows).inputs[0].shape == (3, 27)


def test_sides_must_be_those_of_the_images(tmp_path):
    digits = open_digits()
    require_sides(digits, [4, 8])
    small = resize_images(digits, 4)
    assert (small.shape, small.features, resize_images(digits, 0)) == ((1, 4, 4), 16, digits)
    with pytest.raises(ConfigError, match=r"ends with side 4, but the images of digits have 8 \(1 x 8 x 8\)"):
        require_sides(digits, [4])
    for shape, message in (((9, 4), "but .* examples of 4 numbers"), ((9, 1, 2, 4), "those of .* are 1 x 2 x 4")):
        np.savez(tmp_path / "a.npz", x=np.zeros(shape, np.float32), y=np.arange(9) % 2)
        with pytest.raises(ConfigError, match=message):
            require_sides(open_dataset(str(tmp_path / "a.npz")), [4])


MODES = {"L": "JPEG", "RGB": "JPEG", "CMYK": "JPEG", "RGBA": "PNG", "P": "PNG", "LA": "PNG", "1": "PNG"}


def picture(width, height, mode="RGB", seed=0):
    """Random colours that change slowly, so that a JPEG has something to keep."""
    corners = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    image = Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC)
    if mode in ("RGBA", "LA"):
        image.putalpha(100)
    return image.quantize(16) if mode == "P" else image.convert(mode)


def save(image, path, form=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, form)


def pixels(source, target, split="train", **options):
    """The images of a split as they are stored, ``[n, channels, height, width]``."""
    listed = {"classes": "a,n01440764"}  # some folders here have images of one of them alone
    data = open_prepared(prepare("images", source, target, force=True, **listed, **options).target)
    return data.splits[split].x.reshape(-1, *data.shape)


@pytest.mark.parametrize("first", ["L", "RGBA", "P"])
def test_images_of_all_modes_together_are_what_pillow_converts_to_rgb(tmp_path, first):
    """Whichever comes first; files of another format than their names say are read, too, as in ImageNet."""
    modes = [first, *(mode for mode in MODES if mode != first)]
    paths = [tmp_path / "data" / "train" / "n01440764" / f"{number}.JPEG" for number in range(len(modes))]
    for number, (path, mode) in enumerate(zip(paths, modes)):
        save(picture(9, 7, mode, number), path, MODES[mode])
    save(picture(9, 7), tmp_path / "data" / "val" / "n01440764" / "0.JPEG")
    stored = pixels(tmp_path / "data", tmp_path / "data.h5")
    assert stored.shape == (len(modes), 3, 7, 9)
    for path, image, mode in zip(paths, stored, modes):
        with Image.open(path) as file:
            np.testing.assert_array_equal(image.transpose(1, 2, 0), np.asarray(file.convert("RGB")), mode)


def test_a_coloured_image_for_a_network_of_grey_ones_is_named(tmp_path):
    save(picture(9, 7), tmp_path / "in" / "0.png")
    with pytest.raises(DataError, match="0.png is in colour, but the training data is grey"):
        list(read_inputs(str(tmp_path / "in"), "images", (1, 7, 9)))
    save(picture(9, 7, "L"), tmp_path / "in" / "0.png")
    ((_, x, _),) = read_inputs(str(tmp_path / "in"), "images", (3, 7, 9))
    assert x.shape == (1, 3 * 7 * 9)


@pytest.mark.parametrize("width, height", [(40, 20), (20, 41), (3, 9), (1, 300)])
def test_a_size_is_that_of_the_largest_square_in_the_middle(tmp_path, width, height):
    """As torchvision's Resize(N) and CenterCrop(N), whose formulas these are, but for a fraction of a pixel."""
    for split in ("train", "val"):
        save(picture(width, height, seed=3), tmp_path / "data" / split / "a" / "0.png")
    (stored,) = pixels(tmp_path / "data", tmp_path / "data.h5", size=10)
    with Image.open(tmp_path / "data" / "train" / "a" / "0.png") as image:
        short, long = sorted((width, height))
        longer = int(10 * long / short)
        resize_images = image.resize((10, longer) if width < height else (longer, 10), Image.Resampling.BILINEAR)
    left, top = (round((side - 10) / 2) for side in resize_images.size)
    expected = np.asarray(resize_images.crop((left, top, left + 10, top + 10)), int)
    step = max(1, np.abs(np.diff(expected, axis=0)).max(), np.abs(np.diff(expected, axis=1)).max())
    assert np.abs(stored.transpose(1, 2, 0) - expected).max() <= step


def peak(folder, target):
    """Bytes that Python allocated at once; threads that earlier tests left behind allocate, too."""
    tracemalloc.start()
    prepare("images", folder, target, classes="a,b")
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def test_memory_holds_a_block_of_images_however_many_there_are(tmp_path):
    """Of 300 more images their names, some hundred bytes each, but not their 12 KB of pixels."""
    peaks = []
    for count in (100, 400):
        folder = tmp_path / str(count)
        save(picture(64, 64), folder / "val" / "a" / "0.png")
        (folder / "train" / "a").mkdir(parents=True)
        for number in range(count):
            (folder / "train" / "a" / f"{number}.png").hardlink_to(folder / "val" / "a" / "0.png")
        peaks.append(min(peak(folder, tmp_path / f"{count}-{turn}.h5") for turn in range(2)))
    assert peaks[1] - peaks[0] < 300 * 1000, peaks
    data = open_prepared(tmp_path / "400-0.h5")
    tracemalloc.start()
    for step in range(0, 400, 40):
        data.train.features(np.arange(step, step + 40))
    assert tracemalloc.get_traced_memory()[1] < 3 * 40 * data.features * 4
    tracemalloc.stop()
