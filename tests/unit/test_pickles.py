"""The reader of CIFAR's pickles: what they hold comes out, and nothing that a pickle names is called or built."""

import pickle
import struct
import warnings

import numpy as np
import pytest
from data_files import make_cifar, python2_batch

from istmpi.data.pickles import PickleError, read_pickle
from istmpi.data.prepare import prepare
from istmpi.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)


def read(content):
    return read_pickle(content)


def array(shape, dtype, content):
    """The opcodes of an array, whatever its parts are."""
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01" + shape + dtype
        + b"\x89T" + struct.pack("<I", len(content)) + content + b"tb"
    )  # fmt: skip


BYTES = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
OBJECTS = b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR"


def test_python_2_and_3_are_read_alike():
    python2 = python2_batch(PIXELS, [6, 9, 9], b"labels")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how the published pickles build their dtype
        known = pickle.loads(python2, encoding="bytes")
    found = read(python2)
    assert found.keys() == known.keys() == {b"batch_label", b"labels", b"data", b"filenames"}
    assert found[b"labels"] == known[b"labels"] == [6, 9, 9] and found[b"filenames"] == [b"image.png"] * 3
    for protocol in (2, 3, 4):
        again = read(pickle.dumps(known, protocol=protocol))
        np.testing.assert_array_equal(again.pop(b"data"), PIXELS)
        assert again == {key: value for key, value in known.items() if key != b"data"}
    np.testing.assert_array_equal(found[b"data"], known[b"data"])
    fortran = {b"data": np.asfortranarray(PIXELS)}
    np.testing.assert_array_equal(read(pickle.dumps(fortran, protocol=2))[b"data"], PIXELS)


@pytest.mark.parametrize(
    "content, message",
    [
        # An array of objects over any bytes: its first use is a jump to wherever they point.
        (b"cnumpy\nndarray\n((K\x01t" + OBJECTS + b"U\x08AAAAAAAAtR", "an array of 'O8', not of numbers"),
        (array(b"K\x01\x85", OBJECTS, b"A" * 8), "an array of 'O8', not of numbers"),
        (array(b"K\x01\x85", b"N", b"A"), "an array that does not hold numbers"),
        (array(b"M\x00\x10M\x00\x10\x86", BYTES, b"A" * 8), "cannot reshape array of size 8"),
        (array(b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", BYTES, b"A"), "that does not hold numbers"),
        (b"cnumpy\nmatrix\n", "it asks for 'numpy.matrix'"),
        (b"cnumpy.core.multiarray\nscalar\n(" + BYTES + b"U\x01AtR", "it asks for 'numpy.core.multiarray.scalar'"),
        (b"cos\nsystem\n(U\x02idtR", "it asks for 'os.system'"),
        (b"cbuiltins\ngetattr\n", "it asks for 'builtins.getattr'"),
        (b"cnumpy\ndtype\n}U\x04evilK\x01sb", "it is damaged"),
        (b"h\x00", "it is damaged"),
        (b"R", "it is damaged"),
        (b"\x93", "it is damaged"),
        (b"B\xff\xff\xff\xff", "it is damaged"),
        (b"I" + b"9" * 5000 + b"\n", "it is damaged"),
        (b"cos\n" + b"\x1b\x0b" * 500 + b"\n)R", "it asks for 'os"),
    ],
)
def test_anything_else_is_refused_in_one_short_line(content, message):
    with pytest.raises(PickleError, match=message) as refused:
        read(content + b".")
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200


def test_a_pickle_cannot_take_all_memory():
    """By a place of the memo that the unpickler in C would make room for."""
    assert read(b"K\x07r\xff\xff\xff\x7f.") == 7


@pytest.mark.parametrize(
    "content, message",
    [
        (lambda batch: {**batch, b"data": batch[b"data"].astype(np.float32)}, "pixels .* of float32 and 4 labels are"),
        (lambda batch: {**batch, b"labels": [0.5, 1, 2, 3]}, "its labels must be whole numbers from 0 to 9"),
        (lambda batch: {**batch, b"labels": [0, 1, 2, 10]}, "its labels must be whole numbers from 0 to 9"),
        (lambda batch: {**batch, b"labels": [0, 1, 2]}, r"pixels \(4, 3072\) of uint8 and 3 labels are not CIFAR's"),
        (lambda batch: {**batch, b"labels": 3}, "it has no list labels"),
        (lambda batch: [batch], "it has no ndarray data"),
    ],
)
def test_a_batch_that_is_not_cifars_is_named(tmp_path, content, message):
    folder = make_cifar(tmp_path / "python", 10, binary=False)
    batch = read((folder / "data_batch_3").read_bytes())
    (folder / "data_batch_3").write_bytes(pickle.dumps(content(batch), protocol=2))
    with pytest.raises(DataError, match=f"data_batch_3.*{message}"):
        prepare("images", folder, tmp_path / "data.h5")
