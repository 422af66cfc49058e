"""Raw data that `istmpi prepare`, `predict` and `train` read: arrays, tables, sound, pictures, archives, folders."""

import os
import random
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.campaigns.bad import array_files, formats
from benchmarks.campaigns.bad.cases import Assets, Case, max_bad, one_of
from benchmarks.campaigns.bad.hostile import NAMES, NUMBERS, damaged_bytes


def npz(draw: random.Random, folder: Path, assets: Assets) -> Case:
    content, refused = array_files.damaged_npz(draw, array_files.arrays())
    (folder / "data.npz").write_bytes(content)
    words = draw.choice(
        (
            ["prepare", "arrays", "data.npz", "out.h5"],
            ["prepare", "arrays", "data.npz", "out.h5"],
            ["train", "--data", "data.npz", "--dry-run"],
            ["costmodel", "digits", "--data", "data.npz", "--ranks", "1,2"],
            ["predict", str(assets.arrays / "network.h5"), "data.npz", "--out", "out.csv"],
        )
    )
    return Case(words, refused and words[0] in ("prepare", "predict"))


def npy(draw: random.Random, folder: Path, assets: Assets) -> Case:
    victim = draw.choice(("x", "y"))
    refused = False
    for name, array in array_files.arrays().items():
        content = array_files.npy(array)
        if name == victim:
            content, refused = array_files.damaged_npy(draw, array)
        (folder / f"{name}.npy").write_bytes(content)
    if draw.random() < 0.5:
        return Case(["prepare", "arrays", ".", "out.h5", *one_of(draw, ([], ["--task", "regression"]))], refused)
    return Case(["predict", str(assets.arrays / "network.h5"), f"{victim}.npy"], refused)


def csv(draw: random.Random, folder: Path, assets: Assets) -> Case:
    name, content, refused = "data.csv", formats.table(draw), False
    if draw.random() < 0.4:
        name, (content, refused) = "data.csv.gz", formats.gzipped(draw, formats.table(draw, draw.random() < 0.5))
    (folder / name).write_bytes(content)
    if draw.random() < 0.6:
        more = one_of(
            draw, ([], [], ["--label", draw.choice((*NAMES, *NUMBERS)).replace("\0", "")], ["--task", "regression"])
        )
        return Case(["prepare", "csv", name, "out.h5", *more], refused)
    label = one_of(draw, ([], ["--label", "label"], ["--label", "-1"]))
    return Case(["predict", str(assets.arrays / "network.h5"), name, *label], refused)


def speech(draw: random.Random, folder: Path, assets: Assets) -> Case:
    bad = draw.choice((1, 1, 1, 9))
    files = {
        f"{word}/s{speaker}_nohash_{take}.wav": formats.wav(draw, valid=bad == 1)
        for word in ("yes", "no")
        for speaker in range(4)
        for take in range(2)
    }
    victim = draw.choice(sorted(files))
    files[victim] = formats.wav(draw)
    if draw.random() < 0.6:
        lists = "\n".join(f"{word}/s3_nohash_0.wav" for word in ("yes", "no")).encode()
        files["testing_list.txt"] = lists if draw.random() < 0.7 else damaged_bytes(draw, lists)
    source = laid_out(draw, folder, files)
    if draw.random() < 0.7:
        return Case(["prepare", "speech", source, "out.h5", *max_bad(draw)])
    return Case(["predict", str(assets.speech / "network.h5"), source, "--out", "out.csv"])


def images(draw: random.Random, folder: Path, assets: Assets) -> Case:
    files = {}
    for place in range(8):
        ending, content = formats.image(draw, valid=place > 0 or draw.random() < 0.3)
        files[f"{'cat' if place % 2 else 'dog'}/{place:02}{ending}"] = content
    source = laid_out(draw, folder, files)
    if draw.random() < 0.7:
        size = one_of(
            draw, ([], [], ["--size", "4"], ["--size", draw.choice(("0", "-1", "nan", "99999999", "9" * 30))])
        )
        return Case(["prepare", "images", source, "out.h5", *size, *max_bad(draw)])
    resize = one_of(draw, ([], ["--resize"]))
    return Case(["predict", str(assets.images / "network.h5"), source, "--out", "out.csv", *resize])


def idx(draw: random.Random, folder: Path, assets: Assets) -> Case:
    files = {
        f"{split}-{what}-idx{axes}-ubyte": axes
        for split in ("train", "t10k")
        for what, axes in (("images", 3), ("labels", 1))
    }
    victim = draw.choice(sorted(files))
    contents, refused = {}, False
    for name, axes in files.items():
        content, bad = formats.idx(draw, axes, valid=name != victim)
        refused |= bad
        if name == victim and draw.random() < 0.4:
            content, bad = formats.gzipped(draw, content)
            name, refused = f"{name}.gz", refused or bad
        contents[name] = content
    if draw.random() < 0.5:
        return Case(["prepare", "idx", laid_out(draw, folder, contents), "out.h5"])
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return Case(["prepare", "idx", ".", "out.h5"], refused)


def tar(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """Headers that lie; what the members hold is valid."""
    kind = draw.choice(("speech", "images", "csv", "arrays", "idx"))
    files: dict[str, bytes] = {}
    if kind == "speech":
        files = {f"{word}/s{n}_nohash_0.wav": formats.wav(draw, True) for word in ("yes", "no") for n in range(6)}
    elif kind == "images":
        files = {f"{'cat' if n % 2 else 'dog'}/{n}.png": formats.image(draw, True)[1] for n in range(8)}
    elif kind == "csv":
        files = {"data.csv": formats.table(draw, True)}
    elif kind == "arrays":
        files = {f"{name}.npy": array_files.npy(array) for name, array in array_files.arrays().items()}
    else:
        for split in ("train", "t10k"):
            for what, axes in (("images", 3), ("labels", 1)):
                files[f"{split}-{what}-idx{axes}-ubyte"] = formats.idx(draw, axes, True)[0]
    name = draw.choice(("data.tar", "data.tar.gz", "data.tgz", "data.bin"))
    if draw.random() < 0.1:
        _hollow_tar(folder / name, draw.choice(sorted(files)), 2**31 if kind in ("speech", "images") else 2**27)
    else:
        (folder / name).write_bytes(formats.tar(draw, files)[0])
    if draw.random() < 0.2 and kind in ("speech", "images"):
        network = assets.speech if kind == "speech" else assets.images
        return Case(
            [
                "predict",
                str(network / "network.h5"),
                name,
                "--out",
                "out.csv",
                *one_of(draw, ([], ["--format", "jsonl"])),
            ]
        )
    return Case(["prepare", kind, name, "out.h5", *max_bad(draw)])


def _hollow_tar(path: Path, name: str, size: int) -> None:
    """An archive with a large member that takes no room on the disk."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    with path.open("wb") as file:
        file.write(entry.tobuf())
        file.truncate(512 + size + 1024)


def folder(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """Class folders with names that no one would give them."""
    source = folder / "data"
    for place in range(8):
        label = draw.choice(
            (
                b"cat",
                b"dog",
                b"\xff\xfe",
                b"two\nlines",
                b"\x1b[31m",
                b"$x",
                "\u202e".encode(),
                b"[bold]",
                b"a\rb",
                b" ",
            )
        )
        parent = os.path.join(os.fsencode(source), one_of(draw, (b"", b"", b"train", b"test", b"a/b")), label)
        os.makedirs(parent, exist_ok=True)
        base = draw.choice(
            (
                b"%d" % place,
                b"\xff%d" % place,
                b"new\nline%d" % place,
                b"x" * 200 + b"%d" % place,
                b"\x1b]0;t\x07%d" % place,
            )
        )
        kind = draw.choice((".png", ".png", ".png", ".wav", ".csv"))
        content = formats.wav(draw, True) if kind == ".wav" else formats.image(draw, draw.random() < 0.7)[1]
        path = os.path.join(parent, base + kind.encode())
        odd = draw.random()
        if odd < 0.04:
            os.symlink(draw.choice((b"/nowhere", b".", b"/dev/zero", b"/proc/self/mem")), path)
        elif odd < 0.08:
            os.makedirs(path, exist_ok=True)
        else:
            with open(path, "wb") as file:
                file.write(content)
    kind = draw.choice(("images", "images", "speech", "csv", "arrays", "idx"))
    words = ["prepare", kind, "data", "out.h5", *max_bad(draw)]
    if draw.random() < 0.25:
        network = one_of(draw, (assets.images, assets.speech))
        words = ["predict", str(network / "network.h5"), "data", *one_of(draw, ([], ["--format", "jsonl"]))]
    return Case(words)


def strangers(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A file of one format under the name of another."""
    contents = (
        b"", b"\0" * 600, draw.randbytes(700), array_files.npy(np.zeros((4, 3))),
        array_files.damaged_npz(draw, array_files.arrays())[0], formats.table(draw), formats.wav(draw),
        formats.image(draw)[1], b"\x1f\x8b" + draw.randbytes(30), b"BZh9" + draw.randbytes(30),
        b"\xfd7zXZ\0" + draw.randbytes(30), b"SIMPLE  =", struct.pack(">I", 2051), b"<html>", b"{}",
        b"PK\x05\x06" + bytes(18),
    )  # fmt: skip
    name = draw.choice(
        (
            "data.npz",
            "data.npy",
            "data.csv",
            "data.csv.gz",
            "data.tar",
            "data.tar.gz",
            "data.h5",
            "data.wav",
            "data.png",
            "data.toml",
            "data.json",
            "data",
        )
    )
    (folder / name).write_bytes(draw.choice(contents))
    kind = draw.choice(("speech", "images", "idx", "arrays", "csv"))
    words = draw.choice(
        (
            ["prepare", kind, name, "out.h5", *max_bad(draw)],
            ["prepare", kind, name, "out.h5", *max_bad(draw)],
            ["train", "--data", name, "--dry-run"],
            ["train", name, "--dry-run"],
            ["report", name],
            ["costmodel", "digits", "--cluster", name],
            ["predict", str(one_of(draw, (assets.digits, assets.speech, assets.images)) / "network.h5"), name],
        )
    )
    return Case(words)


def laid_out(draw: random.Random, folder: Path, files: Mapping[str, bytes]) -> str:
    """The files in a folder, or in a tar file whose headers may lie."""
    if draw.random() < 0.25:
        (folder / "data.tar").write_bytes(formats.tar(draw, files)[0])
        return "data.tar"
    for name, content in files.items():
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return "data"
