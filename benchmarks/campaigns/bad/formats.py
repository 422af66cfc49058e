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
import zlib
from collections.abc import Mapping

import numpy as np

from benchmarks.campaigns.bad.hostile import NAMES, NUMBERS, damaged_bytes

Content = tuple[bytes, bool]

ROWS = 20
COLUMNS = ("a", "b", "c")


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
