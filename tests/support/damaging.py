"""Damages drawn from a generator, done to a copy of a checkpoint or of a prepared file; what each is, in a few words.

Whatever comes of one must be refused in one line, or say the very same as before: tests/unit/test_checkpoint_damage.py
and benchmarks/campaigns/corrupt.py.
"""

import json
import os
import random
import zlib
from inspect import isfunction, signature
from pathlib import Path

import h5py
import numpy as np

from istmpi.hdf5 import CHECKSUM, CHECKSUMS, CREATION, all_datasets, datasets

ODD = (
    *(0, 1, -1, 2, 7, 2**31, 2**62, -(2**63), 2**64 - 1, 0.5, -0.0, 1e300, np.inf, -np.inf, np.nan),
    *("", "0", "null", "[]", "{}", "{", '"x"', "NaN", "[" * 30_000, "1" * 5000, "a\nb\x1b[31m", b"\xff\xfe"),
    *([], [1, 2], [[1.5]], ["a", "b"], h5py.Empty("f8"), np.bool_(True), np.complex64(1j), np.zeros(5000)),
)
"""Values of attributes that come from nowhere."""
IN_JSON = (None, True, 0, -1, 2**70, 1e308, float("nan"), "", "x", "../../x", [], [0], [1e9, "a"], {}, {"a": {}})


def damage(path: Path, generator: random.Random) -> str:
    """Do one damage to a file; its name."""
    with h5py.File(path, "r") as file:
        spans = [(d.id.get_offset(), d.id.get_storage_size()) for d in all_datasets(file).values() if d.id.get_offset()]
    if generator.random() < 0.5:
        change = generator.choice(BYTES)
        path.write_bytes(change(bytearray(path.read_bytes()), spans, generator))
        return change.__name__.replace("_", " ")
    while True:
        change = generator.choice(EDITS)
        with h5py.File(path, "r+", **CREATION) as file:
            if change(file, generator) is not False:
                return change.__name__.replace("_", " ")


def _place(content: bytearray, spans: list[tuple[int, int]], generator: random.Random, length: int = 1) -> int:
    """Anywhere; in half of the cases outside of what datasets hold, where the structure is."""
    for _ in range(100):
        at = generator.randrange(max(len(content) - length, 1))
        if generator.random() < 0.5 or not any(start <= at < start + nbytes for start, nbytes in spans):
            break
    return at


def flipped_bytes(content, spans, generator):
    for _ in range(generator.choice((1, 1, 1, 2, 8))):
        content[_place(content, spans, generator)] ^= generator.randrange(1, 256)
    return content


def zeros(content, spans, generator):
    length = generator.choice((1, 4, 8, 64, 512, 4096))
    at = _place(content, spans, generator, length)
    content[at : at + length] = bytes(len(content[at : at + length]))
    return content


def swapped_blocks(content, spans, generator):
    length = generator.choice((4, 64, 512, 4096))
    one, other = sorted(_place(content, spans, generator, 2 * length) for _ in range(2))
    if other - one >= length and other + length <= len(content):
        content[one : one + length], content[other : other + length] = (
            content[other : other + length],
            content[one : one + length],
        )
    return content


def a_block_twice(content, spans, generator):
    length = generator.choice((8, 64, 512, 4096))
    one, other = (_place(content, spans, generator, length) for _ in range(2))
    part = content[one : one + length]
    content[other : other + len(part)] = part
    return content


def truncated(content, spans, generator):
    return content[: generator.randrange(len(content))]


def grown(content, spans, generator):
    length = generator.choice((1, 100, 5000))
    return content + (bytes(length) if generator.random() < 0.5 else generator.randbytes(length))


def bytes_put_in(content, spans, generator):
    at = _place(content, spans, generator)
    return content[:at] + generator.randbytes(generator.choice((1, 8, 512))) + content[at:]


def bytes_cut_out(content, spans, generator):
    at = _place(content, spans, generator)
    return content[:at] + content[at + generator.choice((1, 8, 512)) :]


BYTES = (flipped_bytes, zeros, swapped_blocks, a_block_twice, truncated, grown, bytes_put_in, bytes_cut_out)


def _any_place(file, generator):
    """The root in most cases, or a dataset."""
    return file if generator.random() < 0.7 else generator.choice(list(all_datasets(file).values()))


def _any(file, generator):
    return generator.choice(list(datasets(file)))


def an_odd_attribute(file, generator):
    place = _any_place(file, generator)
    if not place.attrs:
        return False
    place.attrs[generator.choice(list(place.attrs))] = generator.choice(ODD)


def an_attribute_a_little_different(file, generator):
    name = generator.choice(list(file.attrs))
    value = file.attrs[name]
    if isinstance(value, np.integer | np.floating):
        file.attrs[name] = value + np.sign(generator.random() - 0.5).astype(type(value))
    else:
        text = str(value.decode() if isinstance(value, bytes) else value)
        digits = [place for place, character in enumerate(text) if character.isdigit()]
        if not digits:
            return False
        at = generator.choice(digits)
        file.attrs[name] = text[:at] + str((int(text[at]) + generator.randrange(1, 10)) % 10) + text[at + 1 :]


def an_edited_setting(file, generator):
    texts = [name for name in ("run", "data", "versions") if name in file.attrs]
    if not texts:
        return False
    name = generator.choice(texts)
    tree = branch = json.loads(file.attrs[name])
    while isinstance(branch, dict) and branch:
        key = generator.choice(list(branch))
        if not isinstance(branch[key], dict) or generator.random() < 0.2:
            break
        branch = branch[key]
    if generator.random() < 0.2:
        del branch[key]
    else:
        branch[key] = generator.choice(IN_JSON)
    file.attrs[name] = json.dumps(tree)


def an_attribute_less(file, generator):
    place = _any_place(file, generator)
    if not place.attrs:
        return False
    del place.attrs[generator.choice(list(place.attrs))]


def an_attribute_more(file, generator):
    _any_place(file, generator).attrs[generator.choice(("note", "Round", "share"))] = generator.choice((1, "x"))


def a_dataset_less(file, generator):
    del file[generator.choice(list(all_datasets(file)))]


def a_dataset_less_with_its_checksums(file, generator):
    path = _any(file, generator)
    del file[path], file[CHECKSUMS + path]


def a_group_less(file, generator):
    group = generator.choice(sorted({path.rpartition("/")[0] for path in datasets(file)} - {""}))
    del file[group]
    if generator.random() < 0.7:
        del file[CHECKSUMS + group]


def a_dataset_renamed_with_its_checksums(file, generator):
    path = _any(file, generator)
    for prefix in ("", CHECKSUMS):
        file.move(prefix + path, f"{prefix}{path}2")


def datasets_swapped_with_their_checksums(file, generator):
    """Of one shape where there are any, else any."""
    found = datasets(file)
    one = _any(file, generator)
    others = [path for path in found if path != one]
    alike = [path for path in others if found[path].shape == found[one].shape]
    other = generator.choice(alike or others)
    for prefix in ("", CHECKSUMS):
        file.move(prefix + one, "aside")
        file.move(prefix + other, prefix + one)
        file.move("aside", prefix + other)


def _put(file, path, values, **settings):
    """Another dataset in the place of one, with the checksum of its bytes."""
    attributes = dict(file[path].attrs) if path in file else {}
    for place in (path, CHECKSUMS + path):
        if place in file:
            del file[place]
    file.create_dataset(path, data=values, **settings).attrs.update(attributes)
    file[CHECKSUMS + path] = np.array([zlib.crc32(np.ascontiguousarray(values).tobytes())], "<u4")


def a_dataset_more_with_its_checksums(file, generator):
    group = _any(file, generator).rpartition("/")[0]
    _put(file, f"{group}/more" if group else "more", np.zeros(generator.choice((1, 10)), np.float32))


def other_values_with_their_checksums(file, generator):
    path = _any(file, generator)
    values = file[path][...]
    flat = values.reshape(-1).view(np.uint8)
    flat[generator.randrange(len(flat))] ^= generator.randrange(1, 256)
    _put(file, path, values)


def another_type(file, generator):
    path = _any(file, generator)
    values = file[path][...]
    if values.dtype.kind == "S":
        return False
    with np.errstate(all="ignore"):
        _put(file, path, values.astype(generator.choice((">f4", "<f8", "<f2", "<i4", ">i8", "u1", "S3"))))


def another_shape(file, generator):
    path = _any(file, generator)
    values = file[path][...]
    shape = generator.choice((values.T, values[:-1], values.reshape(-1), values[None], np.concatenate([values] * 2)))
    _put(file, path, shape)


def another_layout(file, generator):
    path = _any(file, generator)
    values = file[path][...]
    _put(file, path, values, **generator.choice(({"chunks": True}, {"compression": "gzip"}, {"fletcher32": True})))


def a_huge_dataset(file, generator):
    path = generator.choice(list(all_datasets(file)))
    dtype = file[path].dtype
    del file[path]
    file.create_dataset(path, (generator.choice((2**33, 2**45)),), dtype, chunks=(1024,))


def a_link(file, generator):
    path = generator.choice(list(all_datasets(file)))
    folder = Path(file.filename).parent
    kind = generator.randrange(5)
    if kind == 0:
        file.copy(path, "aside")
    elif kind == 1 and not (folder / "pipe.h5").exists():
        os.mkfifo(folder / "pipe.h5")
    elif kind == 2:
        with h5py.File(folder / "other.h5", "w") as other:
            other["x"] = file[path][...]
    elif kind == 4:
        file.move(path, "aside")
    else:
        del file[path]
    if path in file:
        del file[path]
    file[path] = (
        h5py.SoftLink("/aside"),
        h5py.ExternalLink("pipe.h5", "/x"),
        h5py.ExternalLink("other.h5", "/x"),
        h5py.SoftLink("/nowhere"),
        h5py.SoftLink("/aside"),
    )[kind]


def a_hard_link(file, generator):
    one, other = generator.choice(list(all_datasets(file))), generator.choice(list(all_datasets(file)))
    if one == other:
        return False
    del file[one]
    file[one] = file[other]


def values_elsewhere(file, generator):
    """External or virtual storage of the same values."""
    path = _any(file, generator)
    values, attributes = file[path][...], dict(file[path].attrs)
    del file[path]
    if generator.random() < 0.5:
        raw = Path(file.filename).with_name("raw.bin")
        raw.write_bytes(values.tobytes())
        dataset = file.create_dataset(path, values.shape, values.dtype, external=[(str(raw), 0, values.nbytes)])
    else:
        file["aside"] = values
        layout = h5py.VirtualLayout(values.shape, values.dtype)
        layout[...] = h5py.VirtualSource(file["aside"])
        dataset = file.create_virtual_dataset(path, layout)
    dataset.attrs.update(attributes)


def a_group_for_a_dataset(file, generator):
    path = generator.choice(list(all_datasets(file)))
    del file[path]
    file.create_group(path)


def a_dataset_for_a_group(file, generator):
    group = generator.choice(sorted({path.partition("/")[0] for path in all_datasets(file) if "/" in path}))
    del file[group]
    file[group] = np.zeros(3)


def another_version(file, generator):
    file.attrs["version"] = generator.choice((0, 1, 3, 99))


def no_checksums(file, generator):
    if generator.random() < 0.5:
        del file.attrs[CHECKSUM]
    else:
        del file["checksums"]


EDITS = [
    function
    for name, function in list(globals().items())
    if isfunction(function) and name[0] != "_" and [*signature(function).parameters] == ["file", "generator"]
]
"""All of them, in this order."""
