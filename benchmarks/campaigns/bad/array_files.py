"""Valid and damaged NumPy files, .npy and .npz.

Functions whose names begin with ``damaged`` return the content of a file and True if istmpi must refuse it. Most of
what they draw may be taken or refused, as long as it is done in one line.
"""

import io
import random
import struct
import warnings
import zipfile
from collections.abc import Mapping

import numpy as np

from benchmarks.campaigns.bad.formats import ROWS, Content
from benchmarks.campaigns.bad.hostile import NAMES, damaged_bytes


def npy(array: np.ndarray) -> bytes:
    """A valid .npy."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


def arrays() -> dict[str, np.ndarray]:
    """Examples that can be trained on."""
    x = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
    return {"x": x, "y": np.arange(ROWS) % 2}


_SHAPES = (
    "()", "(0,)", "(0, 3)", "(20, 0)", "(-1,)", "(20, -3)", "(1000000000000,)", "(100000, 100000)", "(21, 3)",
    "(19, 3)", "(9223372036854775807, 9223372036854775807)", "(18446744073709551616,)", "(2.5,)", "(True, 3)",
    "(None,)", "20", "[]", "((1, 2), 3)", "(" + "1, " * 40 + ")", "(" + "1, " * 100 + ")", "('20', 3)",
    "(1" + "0" * 5000 + ",)", "{}", "(20, 3, 0)",
)  # fmt: skip
_TYPES = (
    "'|O'", "'<U4'", "'|S4'", "'|V8'", "'<M8[D]'", "'<m8'", "'<f2'", "'<f8'", "'>f8'", "'<c8'", "'|b1'", "'|i1'",
    "'<u8'", "'xyz'", "''", "None", "0", "[('a', '<f4')]", "[('a', '<f4', (1000000, 1000000))]",
    "[('a', [('b', '|O')])]", "'<f16'", "'<U1000000000'", "'" + "f4," * 3000 + "'", "'<V99999999999999'",
    "('<f4', (2, 2))", "'<f4\\x00'", "[" * 30 + "]" * 30,
)  # fmt: skip


_HEADERS = (
    "{}", "[]", "{'descr': '<f4'}", "(" * 5000, "[" * 90 + "]" * 90, "-" * 9000 + "1", "1", "", "\xff", "a" * 60_000,
    "{'descr': '<f4', 'fortran_order': 2, 'shape': (20, 3)}", "__import__('os').system('true')", "{1: 2, 'a': 3}",
    "{'descr':'<f4','fortran_order':False,'shape':(1" + "0" * 9000 + ",)}", "{[]: 1}", "\x00",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (20, 3), 'more': 1}",
)  # fmt: skip


def damaged_npy(draw: random.Random, array: np.ndarray) -> Content:
    """A .npy whose header or bytes are wrong."""
    kind = draw.choice(("shape", "shape", "type", "type", "text", "version", "length", "short", "objects", "bytes"))
    shape, descr, order = repr(array.shape), repr(array.dtype.str), "False"
    text, version, content = "", (1, 0), array.tobytes()
    if kind == "shape":
        shape = draw.choice(_SHAPES)
    elif kind == "type":
        descr = draw.choice(_TYPES)
    elif kind == "objects":
        return npy(np.array([{"a": 1}, print], dtype=object)), True
    elif kind == "version":
        version = draw.choice(((0, 0), (2, 0), (3, 0), (9, 9), (1, 1)))
    elif kind == "text":
        text = draw.choice(_HEADERS)
    elif kind == "bytes":
        return damaged_bytes(draw, npy(array)), False
    text = text or f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    header = text.encode("latin1") + b"\n"
    field = "<H" if version[0] == 1 else "<I"
    length = len(header)
    if kind == "length":
        length = draw.choice((0, 1, length + 7, 65535, 65536 if field == "<I" else 30_000))
    made = b"\x93NUMPY" + bytes(version) + struct.pack(field, min(length, 65535)) + header + content
    if kind == "short":
        return made[: draw.randrange(len(made) - len(content), len(made))], True
    return made, False


def damaged_npz(draw: random.Random, members: Mapping[str, np.ndarray]) -> Content:
    """An .npz that is wrong as an archive, or in one of its members."""
    kind = draw.choice(
        ("member", "member", "member", "name", "crc", "encrypted", "method", "short", "offset", "size", "bomb", "more")
        + ("bytes", "bytes", "comment", "duplicate", "deflated", "local", "nothing", "lzma")
    )
    compression = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    contents = [(f"{name}.npy", npy(array)) for name, array in members.items()]
    place = draw.randrange(len(contents))
    name, content = contents[place]
    refused = False
    if kind == "member":
        content, refused = damaged_npy(draw, members[name.removesuffix(".npy")])
        contents[place] = name, content
    elif kind == "name":
        contents[place] = draw.choice(NAMES) + draw.choice(("", ".npy", "/")), content
    elif kind == "more":
        extra = draw.choice((b"", b"text", b"PK\x03\x04", draw.randbytes(50)))
        contents.append((draw.choice((*NAMES, "folder/")), extra))
    elif kind == "duplicate":
        contents += [(name, content[:-4])]
    elif kind == "nothing":
        contents = []
    elif kind == "short":
        compression, refused = zipfile.ZIP_STORED, True
        contents[place] = name, content[: -draw.choice((1, 8, 40))]
    elif kind == "bomb":
        compression = zipfile.ZIP_DEFLATED
        contents[place] = name, _bomb(draw.choice((300, 2000)))
    elif kind == "deflated":
        compression = zipfile.ZIP_DEFLATED
    elif kind == "lzma":
        compression = draw.choice((zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
    made = _zip(contents, compression)
    if kind in ("crc", "encrypted", "method", "offset", "size"):
        made = _with_field(draw, made, kind)
        refused = kind != "size"
    elif kind == "local":
        start = made.index(b"PK\x03\x04", draw.choice((0, 1)))
        made = (
            made[: start + 26] + struct.pack("<HH", draw.randrange(65536), draw.randrange(65536)) + made[start + 30 :]
        )
    elif kind == "comment":
        made = made[:-2] + struct.pack("<H", draw.choice((5, 65535))) + b"hello"
    elif kind in ("deflated", "lzma", "bytes"):
        made = damaged_bytes(draw, made)
    return made, refused


def _zip(contents: list[tuple[str, bytes]], compression: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two members with one name
        for name, content in contents:
            archive.writestr(zipfile.ZipInfo(name or "empty"), content, compression, 1)
    return file.getvalue()


def _bomb(megabytes: int) -> bytes:
    """A .npy whose header promises so much and that ends after a few of them."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({megabytes * 2**18 // 4}, 4), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(2**21)


def _with_field(draw: random.Random, made: bytes, kind: str) -> bytes:
    """A zip with one field of one member changed, in the central directory and in the local header."""
    central = made.index(b"PK\x01\x02", draw.choice((0, made.index(b"PK\x01\x02"))))
    local = struct.unpack_from("<I", made, central + 42)[0]
    changed = bytearray(made)
    if kind == "crc":
        changed[central + 16] ^= 0xFF
        changed[local + 14] ^= 0xFF
    elif kind == "encrypted":
        changed[central + 8] |= 1
        changed[local + 6] |= 1
    elif kind == "method":
        method = struct.pack("<H", draw.choice((1, 9, 97, 99, 65535)))
        changed[central + 10 : central + 12] = changed[local + 8 : local + 10] = method
    elif kind == "offset":
        struct.pack_into("<I", changed, central + 42, draw.choice((local + 1, len(made), 0x7FFFFFFF)))
    else:
        field = draw.choice((20, 24))
        struct.pack_into("<I", changed, central + field, draw.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF)))
    return bytes(changed)
