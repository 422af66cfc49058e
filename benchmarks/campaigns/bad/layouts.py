"""Folders of images and recordings that are laid out in several ways, each with its right counts."""

import io
import os
import random
import struct
from pathlib import Path

import numpy as np

from benchmarks.campaigns.bad import formats
from benchmarks.campaigns.bad.cases import Assets, Case
from benchmarks.campaigns.bad.meanings import Right, counts, differ

NAMED = ("[red]", "[bold]", "turn on", ":smile:", "{x}", "1_1", "\u0661")


def images(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """24 images of two classes."""
    kind = draw.choice(
        ("plain", "nested", "nested in splits", "caps", "synonyms", "synonyms", "links", "loop", "endings", "named")
        + ("16 bits", "hidden", "split inside", "test class", "other files", "around", "case", "broken link")
    )
    classes, data, refused = ["cat", "dog"], folder / "data", False
    right: Right | None = None
    train, test = "", ""
    if kind == "caps":
        train, test = "Train/", "TEST/"
    elif kind in ("nested in splits", "test class"):
        train, test = "train/", "test/"
    elif kind == "synonyms":
        train = draw.choice(("training/", "trn/", "train/"))
        test = draw.choice(("testing/", "tst/", "test/", "val/", "dev/", "valid/", "validation/", "Val/"))
    elif kind == "named":
        classes = ["cat", draw.choice(NAMED)]
    around = "a/b/" if kind == "around" else ""
    for number in range(24):
        part = (train if number < 12 else test) if test else ""
        below = draw.choice(("2019/", "2020/", "x/y/")) if kind.startswith("nested") else ""
        ending, content = formats.image(draw, valid=True)
        if kind == "endings" and number % 3 == 0:
            ending, content = _other(draw)
        path = data / f"{around}{part}{classes[number % 2]}/{below}{number:02}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    split, left_out = ({"train": 12, "test": 12} if test else {"train": 19, "test": 5}), 0
    first = data / "cat" / "00.png"
    if kind == "links":
        (data / "dog").rename(folder / "elsewhere")
        os.symlink(folder / "elsewhere", data / "dog")
    elif kind == "loop":
        os.symlink(draw.choice((data, Path("."), data / "cat")), data / "cat" / "loop")
        left_out = 1
    elif kind == "broken link":
        os.symlink(draw.choice(("/nowhere", "/dev/zero")), data / "cat" / "x.png")
        left_out = 1
    elif kind == "16 bits":
        first.write_bytes(_deep())
        refused = True  # one of 24 is more than --max-bad
    elif kind == "hidden":
        (data / "cat" / ".x.png").write_bytes(first.read_bytes())
        left_out = 1
    elif kind == "other files":
        (data / "cat" / draw.choice(("notes.txt", "x.npy", "a.mov"))).write_bytes(b"x")
        left_out = 1
    elif kind == "split inside":
        (data / "cat" / "test").mkdir()
        first.rename(data / "cat" / "test" / "00.png")
        refused = True
    elif kind == "test class":
        (data / "test" / "cat").rename(data / "test" / "bird")
        refused = True
    elif kind == "case":
        classes, split = ["Cat", "cat", "dog"], None
        (data / "Cat").mkdir()
        first.rename(data / "Cat" / "00.png")
        (data / "cat" / "02.png").rename(data / "Cat" / "02.png")
    if kind == "endings":  # those that Pillow of this machine cannot read are refused, or counted
        right = _all_are_told(24)
    elif split:
        right = counts(split, classes, left_out)
    words = ["prepare", "images", "data", "out.h5", "--json"]
    return Case(words, refused, right=right, taken=not refused and kind not in ("endings",))


def _other(draw: random.Random) -> tuple[str, bytes]:
    """A picture in a format that is not met every day, or something with its ending."""
    from PIL import Image

    ending = draw.choice((".avif", ".jfif", ".webp", ".tga", ".jp2", ".pcx", ".ico", ".heic", ".svg", ".PNG", ".JPG"))
    file = io.BytesIO()
    form = {".jfif": "jpeg", ".jpg": "jpeg", ".jp2": "jpeg2000"}.get(ending.lower(), ending[1:])
    try:
        Image.frombytes("RGB", (4, 4), bytes(range(48))).save(file, form)
    except (KeyError, OSError, ValueError):
        file.write(b"<svg/>")
    return ending, file.getvalue()


def _deep() -> bytes:
    """A picture of 16 bits."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000).save(file, "png")
    return file.getvalue()


def _all_are_told(files: int) -> Right:
    """Of so many files each is in the data, or among those that are skipped or left out."""

    def right(folder: Path, out: str) -> str:
        import json

        report = json.loads(out)
        told = sum(int(note["text"].split(" ")[0]) for note in report["left_out"] if "not read" in note["text"])
        return differ(sum(report["counts"].values()) + len(report["skipped"]) + told, files, "files")

    return right


def speech(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """24 recordings of two words, six of them in the list for testing."""
    kind = draw.choice(
        ("spaces", "spaces", "dots", "missing", "missing", "both", "none", "backslashes", "bom", "named", "prefix")
        + ("offset", "offset", "phase", "stereo", "flac", "folders", "comments")
    )
    words = ["turn on" if kind == "spaces" else draw.choice(NAMED) if kind == "named" else "yes", "no"]
    data, refused, left_out = folder / "data", False, 0
    listed = []
    for number in range(24):
        word, name = words[number % 2], f"s{number // 2:02}_nohash_0.wav"
        if number < 6:
            listed.append(f"{word}/{name}")
        path = data / ("test" if kind == "folders" and number < 6 else "train" if kind == "folders" else "") / word
        path.mkdir(parents=True, exist_ok=True)
        wave = _wave(number // 2)  # the two words have the same sounds
        channels = 1
        if kind == "offset" and number % 2:
            wave = wave + draw.choice((-0.3, 0.02, 0.3))
        elif kind in ("phase", "stereo"):
            channels, wave = 2, np.stack([wave, wave * (-1 if kind == "phase" else 1)], axis=1)
        ending = ".flac" if kind == "flac" else ".wav"
        (path / name.replace(".wav", ending)).write_bytes(_recording(wave, channels, ending))
    if kind == "flac":
        listed = [line.replace(".wav", ".flac") for line in listed]
    elif kind == "dots":
        listed[:2] = [f"./{line}" for line in listed[:2]]
    elif kind == "prefix":
        listed, refused = [f"speech_commands/{line}" for line in listed], True
    elif kind == "backslashes":
        listed, refused = [line.replace("/", "\\") for line in listed], True
    elif kind == "missing":
        listed += ["yes/nobody_nohash_0.wav", "maybe/s00_nohash_0.wav"]
        left_out = 2
    elif kind == "none":
        listed, refused = ["yes/nobody_nohash_0.wav"], True
    elif kind == "both":
        (data / "validation_list.txt").write_text(listed[0] + "\n")
        refused = True
    refused = refused or kind == "phase"
    if kind != "folders":
        text = "\ufeff" * (kind == "bom") + "\n".join([*listed, ""])
        (data / "testing_list.txt").write_text(text, encoding="utf-8")
    right: Right = counts({"train": 18, "test": 6}, words, left_out)
    if kind in ("offset", "stereo"):
        right = _alike
    return Case(["prepare", "speech", "data", "out.h5", "--json"], refused, right=right, taken=not refused)


def _wave(seed: int) -> np.ndarray:
    """A second at 8 kHz of noise that is louder somewhere."""
    noise = np.random.default_rng(seed).normal(size=8000)
    return 0.1 * noise * np.exp(-(((np.arange(8000) - 2000 - 300 * seed) / 1500) ** 2))


def _recording(wave: np.ndarray, channels: int, ending: str) -> bytes:
    if ending == ".flac":
        import soundfile

        file = io.BytesIO()
        soundfile.write(file, wave, 8000, format="FLAC")
        return file.getvalue()
    samples = (wave * 32767).astype("<i2").tobytes()
    fmt = struct.pack("<HHIIHH", 1, channels, 8000, 16000 * channels, 2 * channels, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _alike(folder: Path, out: str) -> str:
    """The features of both words, which have the same sounds, are nearly the same."""
    from istmpi.data.sources import open_dataset

    for split in open_dataset(str(folder / "out.h5")).splits.values():
        x, y = split.batch(np.arange(len(split))).inputs[0].numpy().reshape(len(split), -1), split.labels()
        for one, other in zip(x[y == 0], x[y == 1]):
            if not (alike := np.corrcoef(one, other)[0, 1]) > 0.98:
                return f"features correlate by {alike:.3f}"
    return ""
