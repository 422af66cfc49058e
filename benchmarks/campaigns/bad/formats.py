"""Small valid files of every format that istmpi reads, and the ways in which they can be wrong.

Each function returns the content of a file and whether istmpi must refuse it; most of what it draws may be taken or
refused, as long as it is done in one line.
"""

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np

from benchmarks.campaigns.bad.hostile import NAMES, NUMBERS, damaged_bytes

Content = tuple[bytes, bool]

ROWS = 20
COLUMNS = ("a", "b", "c")


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


def table(draw: random.Random, valid: bool = False) -> bytes:
    """A table of numbers as text, in one of many states."""
    rows = [[str(row + column / 4) for column in range(3)] + [str(row % 2)] for row in range(ROWS)]
    header = ["a", "b", "c", "label"]
    if valid:
        return "\n".join(",".join(row) for row in [header, *rows]).encode()
    for _ in range(draw.choice((1, 1, 3))):
        row = draw.choice(rows)
        change = draw.random()
        if change < 0.55:
            row[draw.randrange(len(row))] = draw.choice(
                (*NUMBERS, *NAMES, '"', '"a""b', "9" * 200_000, '"' + "1," * 9, "\u0661\u0662", "1_0", "infinity")
            )
        elif change < 0.65:
            row.append("1")
        elif change < 0.75:
            row[:] = row[:1]
        elif change < 0.85:
            header[draw.randrange(4)] = draw.choice(NAMES)
        elif change < 0.9:
            rows.clear()
            rows.append(["1"])
        else:
            for one in rows:
                one[-1] = draw.choice((*NUMBERS, *NAMES))
    delimiter = draw.choice(",,;\t")
    lines = [delimiter.join(row) for row in ([header] if draw.random() < 0.5 else []) + rows]
    content = draw.choice(("\n", "\n", "\r\n", "\r")).join(lines).encode("utf-8", "surrogatepass")
    odd = draw.random()
    if odd < 0.05:
        return content.decode("utf-8", "replace").encode(draw.choice(("utf-16", "utf-32", "utf-8-sig")))
    if odd < 0.15:
        return damaged_bytes(draw, content)
    return b"" if odd < 0.18 else b"\n\n" if odd < 0.2 else b"\xff\xfe" + content if odd < 0.22 else content


def gzipped(draw: random.Random, content: bytes) -> Content:
    """Content as a .gz, which may be none, or damaged, or far larger than it looks."""
    kind = draw.choice(
        ("valid", "valid", "none", "cut", "bytes", "crc", "tail", "bomb", "empty", "twice", "bz2", "header")
    )
    made = gzip.compress(content, 1)
    if kind == "bomb":
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        piece = draw.choice((b"1", b"0,", b"\0")) * 2**19
        return b"".join([*(packer.compress(piece) for _ in range(300)), packer.flush()]), False
    odd = {
        "valid": made,
        "none": content,
        "cut": made[: len(made) // 2],
        "bytes": damaged_bytes(draw, made),
        "crc": made[:-8] + b"\0" * 4 + made[-4:],
        "tail": made + b"trailing",
        "empty": b"",
        "twice": gzip.compress(made, 1),
        "bz2": bz2.compress(content),
        "header": b"\x1f\x8b\x08\xff" + made[4:],
    }
    return odd[kind], kind in ("cut", "crc", "empty")


def wav(draw: random.Random, valid: bool = False) -> bytes:
    """A second of sound at 8 kHz, or something that says it were sound."""
    rate, channels, bits, form, samples = 8000, 1, 16, 1, 800
    if not valid:
        rate = draw.choice((8000, 8000, 0, 1, 2, 7, 50, 2_000_000_000, 4_294_967_295, 400_000))
        channels = draw.choice((1, 1, 1, 0, 2, 1024, 65535))
        bits = draw.choice((16, 16, 16, 0, 1, 8, 24, 32, 64, 65535))
        form = draw.choice((1, 1, 1, 3, 2, 6, 17, 49, 85, 0xFFFE, 0))
        samples = draw.choice((800, 800, 0, 1, 3))
    wave = (np.sin(np.arange(samples) / 5) * 9000).astype("<i2").tobytes()
    if form == 3 and draw.random() < 0.7:
        bits, wave = 32, np.array([np.nan, np.inf, 1e38, -1e38] * 50, "<f4").tobytes()
    width = channels * bits // 8
    fmt = struct.pack("<HHIIHH", form, channels, rate, rate * width % 2**32, width % 2**16, bits)
    length = len(wave)
    if not valid and draw.random() < 0.3:
        length = draw.choice((0, 0xFFFFFFFF, 0x7FFFFFFF, length + 2, length - 1 if length else 0))
    body = b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", length) + wave
    made = b"RIFF" + struct.pack("<I", len(body)) + body
    if valid:
        return made
    odd = draw.random()
    if odd < 0.2:
        return damaged_bytes(draw, made)
    if odd < 0.25:
        return draw.choice((b"RIFX", b"RF64", b"FORM", b"fLaC", b"OggS", b"ID3\x03")) + made[4:]
    return made


def idx(draw: random.Random, axes: int, valid: bool = False) -> Content:
    """Images or labels as MNIST's, or nearly."""
    shape = [ROWS, 4, 4][:axes]
    content = bytes(place % (2 if axes == 1 else 256) for place in range(int(np.prod(shape))))
    kind, magic = 8, 0
    refused = False
    if not valid:
        change = draw.choice(("axis", "axis", "kind", "bytes", "short", "many"))
        if change == "axis":
            shape[draw.randrange(axes)] = draw.choice((0, 1, 19, 21, 2**31, 2**32 - 1, 50_000_000))
        elif change == "many":
            shape = [2**32 - 1] * axes
            refused = True
        elif change == "kind":
            kind, magic = draw.choice(((13, 0), (9, 0), (0, 0), (8, 1))) if draw.random() < 0.8 else (255, 65535)
            refused = True
        elif change == "short":
            content, refused = content[:-1], True
    made = struct.pack(f">HBB{axes}I", magic, kind, axes, *shape) + content
    if not valid and change == "bytes":
        made = damaged_bytes(draw, made)
    return made, refused


def image(draw: random.Random, valid: bool = False) -> tuple[str, bytes]:
    """A small picture and the ending of its name."""
    from PIL import Image

    form = "png" if valid else draw.choice(("png", "png", "bmp", "gif", "ppm", "tiff", "webp", "jpeg"))
    mode = "RGB" if valid else draw.choice(("RGB", "L", "RGB", "P", "1", "RGBA", "I;16", "I", "F", "CMYK"))
    pixels = Image.frombytes("RGB", (4, 4), bytes(range(48)))
    file = io.BytesIO()
    try:
        pixels.convert("L" if mode == "I;16" else mode).save(file, form)
    except (OSError, ValueError):
        file = io.BytesIO()
        pixels.save(file, form)
    made = file.getvalue()
    if valid:
        return ".png", made
    ending = {"jpeg": ".jpg", "tiff": ".tif"}.get(form, f".{form}")
    odd = draw.random()
    if odd < 0.25 and form == "png":
        extent = draw.choice(((60000, 60000), (0, 0), (1, 2**31 - 1), (2**32 - 1, 1), (30000, 30000), (13000, 13000)))
        header = b"IHDR" + struct.pack(">II", *extent) + made[24:29]
        return ending, made[:12] + header + struct.pack(">I", zlib.crc32(header)) + made[33:]
    if odd < 0.35:
        text = draw.choice(
            (
                b"P6\n" + b"9" * 5000 + b" 4\n255\n",
                b"P6\n-4 4\n255\n",
                b"P6\n4 4\n0\n",
                b"P5 99999 99999 255\n",
                b"P3\n4 4\n255\nx",
                b"Pf\n4 4\nnan\n",
                b"P7\n",
            )
        )
        return ".ppm", text + bytes(48)
    if odd < 0.4:
        return ending, wav(draw, True)
    return ending, damaged_bytes(draw, made) if odd < 0.85 else made


def tar(draw: random.Random, members: Mapping[str, bytes]) -> Content:
    """An archive with the given members whose headers, names or compression may be wrong; or as it should be."""
    kind = draw.choice(
        ("valid", "valid", "name", "size", "sparse", "pax", "type", "bytes", "bytes", "cut", "number", "header")
    )
    form = draw.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT))
    file = io.BytesIO()
    victim = draw.choice(sorted(members))
    refused = False
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            if name == victim:
                if kind == "name":
                    folder, _, base = name.rpartition("/")
                    evil = draw.choice((*NAMES, "\udcff\udcfe")).replace("\0", "")
                    entry.name = f"{folder}/{evil}{base}" if draw.random() < 0.5 else f"{evil}/{base}"
                    if form == tarfile.USTAR_FORMAT and len(entry.name) > 90:
                        entry.name = entry.name[-90:]
                elif kind == "pax" and form == tarfile.PAX_FORMAT:
                    keys = (
                        "size",
                        "mtime",
                        "GNU.sparse.map",
                        "GNU.sparse.major",
                        "GNU.sparse.size",
                        "path",
                        "hdrcharset",
                    )
                    values = (
                        "99999999999999999999",
                        "-5",
                        "nan",
                        "x",
                        "",
                        "1,2,3",
                        "a/b\udcff",
                        "BINARY",
                        "0,1,2,x",
                        "9" * 5000,
                    )
                    entry.pax_headers = {draw.choice(keys): draw.choice(values) for _ in range(draw.choice((1, 2)))}
                elif kind == "type":
                    entry.type = draw.choice(
                        (b"1", b"2", b"3", b"5", b"6", b"7", b"S", b"x", b"g", b"L", b"K", b"Z", b"\0")
                    )
            archive.addfile(entry, io.BytesIO(content))
    made = bytearray(file.getvalue())
    start = 0
    if kind in ("size", "sparse", "number", "header"):
        if kind == "size":
            length = draw.choice(
                (
                    b"77777777777\0",
                    b"-0000000001\0",
                    b"\x80" + b"\0" * 4 + b"\x7f" + b"\xff" * 6,
                    b"\xff" * 12,
                    b"abcdefghijk\0",
                    b"17777777777\0",
                )
            )
            made[start + 124 : start + 136] = length
        elif kind == "number":
            field = draw.choice(((100, 8), (108, 8), (116, 8), (136, 12), (329, 8)))
            made[start + field[0] : start + sum(field)] = (
                draw.choice((b"99999999", b"\xff" * 8, b"x\0\0\0\0\0\0\0", b"\x80" + b"\xff" * 7)) * 2
            )[: field[1]]
        elif kind == "sparse":
            made[start + 156] = ord("S")
            made[start + 257 : start + 265] = b"ustar  \0"
            made[start + 386 : start + 483] = (
                draw.choice((b"xxxxxxxxxxxx", b"77777777777\0", b"\xff" * 12, b"00000000000\0")) * 9
            )[:97]
            made[start + 483 : start + 495] = draw.choice((b"77777777777\0", b"x" * 12, b"00000000010\0"))
            made[start + 482] = draw.choice((0, 1))
        else:
            made[start + draw.randrange(512)] = draw.randrange(256)
        made[start + 148 : start + 156] = b" " * 8
        made[start + 148 : start + 156] = b"%06o\0 " % sum(made[start : start + 512])
    content = bytes(made)
    if kind == "bytes":
        content = damaged_bytes(draw, content)
    elif kind == "cut":
        content = content[: draw.randrange(512, len(content))]
    packed = draw.choice(("none", "none", "gz", "gz", "cut gz", "bytes gz", "xz", "bz2"))
    if packed.endswith("gz"):
        content = gzip.compress(content, 1)
        if packed == "cut gz":
            content = content[: draw.randrange(10, len(content))]
        elif packed == "bytes gz":
            content = damaged_bytes(draw, content)
    elif packed == "xz":
        content = lzma.compress(content, preset=0)
    elif packed == "bz2":
        content = bz2.compress(content)
    return content, refused
