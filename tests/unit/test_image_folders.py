"""Folders of images as ImageNet's: any size, any mode, val/ for testing, and what is wrong with them said in a line."""

import tracemalloc

import numpy as np
import pytest
from PIL import Image

from istmpi.data.dense.predict import read_inputs
from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare
from istmpi.errors import DataError

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


# ---- channels


@pytest.mark.parametrize("first", MODES)
def test_images_of_all_modes_together_are_what_pillow_converts_to_rgb(tmp_path, first):
    """Whichever comes first; files of another format than their names say are read, too, as in ImageNet."""
    modes = [first, *(mode for mode in MODES if mode != first)]
    for number, mode in enumerate(modes):
        save(picture(9, 7, mode, number), tmp_path / "data" / "train" / "n01440764" / f"{number}.JPEG", MODES[mode])
    save(picture(9, 7), tmp_path / "data" / "val" / "n01440764" / "0.JPEG")
    stored = pixels(tmp_path / "data", tmp_path / "data.h5")
    assert stored.shape == (len(modes), 3, 7, 9)
    for number, image in enumerate(stored):
        with Image.open(tmp_path / "data" / "train" / "n01440764" / f"{number}.JPEG") as file:
            expected = np.asarray(file.convert("RGB"))
        np.testing.assert_array_equal(image.transpose(1, 2, 0), expected, modes[number])


def test_images_have_one_channel_where_all_are_grey(tmp_path):
    for number, mode in enumerate(("L", "1", "LA")):
        save(picture(9, 7, mode, number), tmp_path / "data" / "train" / "a" / f"{number}.png")
    save(picture(9, 7, "L"), tmp_path / "data" / "test" / "a" / "0.png")
    assert pixels(tmp_path / "data", tmp_path / "data.h5").shape == (3, 1, 7, 9)


def test_a_coloured_image_for_a_network_of_grey_ones_is_named(tmp_path):
    save(picture(9, 7), tmp_path / "in" / "0.png")
    with pytest.raises(DataError, match="0.png is in colour, but the training data is grey"):
        list(read_inputs(str(tmp_path / "in"), "images", (1, 7, 9)))
    save(picture(9, 7, "L"), tmp_path / "in" / "0.png")
    ((_, x, _),) = read_inputs(str(tmp_path / "in"), "images", (3, 7, 9))
    assert x.shape == (1, 3 * 7 * 9)


# ---- size


@pytest.mark.parametrize("width, height", [(40, 20), (20, 40), (41, 20), (20, 20), (3, 9), (1, 300)])
def test_a_size_is_that_of_the_largest_square_in_the_middle(tmp_path, width, height):
    """As torchvision's Resize(N) and CenterCrop(N), whose formulas these are, but for a fraction of a pixel."""
    for split in ("train", "val"):
        save(picture(width, height, seed=3), tmp_path / "data" / split / "a" / "0.png")
    (stored,) = pixels(tmp_path / "data", tmp_path / "data.h5", size=10)
    with Image.open(tmp_path / "data" / "train" / "a" / "0.png") as image:
        short, long = sorted((width, height))
        longer = int(10 * long / short)
        resized = image.resize((10, longer) if width < height else (longer, 10), Image.Resampling.BILINEAR)
    left, top = (round((side - 10) / 2) for side in resized.size)
    expected = np.asarray(resized.crop((left, top, left + 10, top + 10)), int)
    step = max(1, np.abs(np.diff(expected, axis=0)).max(), np.abs(np.diff(expected, axis=1)).max())
    assert np.abs(stored.transpose(1, 2, 0) - expected).max() <= step


def test_a_picture_for_a_network_of_oblong_ones_is_cut_to_their_ratio(tmp_path):
    wide = Image.new("L", (40, 10), 0)
    wide.paste(200, (8, 0, 32, 10))  # a filter looks two pixels beyond the edge
    save(wide, tmp_path / "in" / "0.png")
    ((_, x, _),) = read_inputs(str(tmp_path / "in"), "images", (1, 5, 10), resize=True)
    assert (x == 200).all()


# ---- splits and classes


def test_classes_are_numbered_alike_in_all_splits(tmp_path):
    """Also where one has fewer folders than the other."""
    for name in ("train/a", "train/b", "train/c", "val/c", "val/b"):
        save(picture(5, 4), tmp_path / "data" / name / "0.png")
    data = open_prepared(prepare("images", tmp_path / "data", tmp_path / "data.h5").target)
    assert data.classes == ("a", "b", "c")
    assert (data.train.labels().tolist(), data.test.labels().tolist()) == ([0, 1, 2], [1, 2])


# ---- memory


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
        for number in range(count):
            path = folder / "train" / "a" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.hardlink_to(folder / "val" / "a" / "0.png")
        peaks.append(min(peak(folder, tmp_path / f"{count}-{turn}.h5") for turn in range(2)))
    assert peaks[1] - peaks[0] < 300 * 1000, peaks
    data = open_prepared(tmp_path / "400-0.h5")
    tracemalloc.start()
    for step in range(0, 400, 40):
        data.train.features(np.arange(step, step + 40))
    assert tracemalloc.get_traced_memory()[1] < 3 * 40 * data.features * 4
    tracemalloc.stop()
