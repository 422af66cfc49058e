"""Small real input files of every kind that `istmpi prepare` reads."""

import gzip
import pickle
import random
import struct
import tarfile
import wave
from pathlib import Path

import numpy as np
from PIL import Image

SPEAKERS = ("ann", "bob", "eve")


def write_files(folder: Path, contents: dict[str, bytes]) -> Path:
    """Write files by their names, in folders that are made where they lack; return the folder."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read_notes(report) -> str:
    """What a preparation assumed and left out, a line each."""
    return "\n".join(map(str, [*report.assumed, *report.left_out]))


def write_wav(path: Path, samples: np.ndarray, rate: int = 8000) -> None:
    """Samples [n] or [n, channels] in -1 .. 1, as 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32000).astype("<i2").tobytes())


def make_speech(folder: Path, rate: int = 8000) -> Path:
    """Two words by three speakers, twice; eve is for testing."""
    generator = np.random.default_rng(0)
    for word, hertz in (("no", 300), ("yes", 900)):
        for speaker in SPEAKERS:
            for index in range(2):
                seconds = np.arange(int(generator.uniform(0.3, 1.2) * rate)) / rate
                tone = 0.5 * np.sin(2 * np.pi * hertz * seconds) + generator.normal(0, 0.01, len(seconds))
                write_wav(folder / word / f"{speaker}_nohash_{index}.wav", tone, rate)
    write_wav(folder / "_background_noise_" / "hum.wav", np.zeros(rate), rate)
    listed = [f"{word}/eve_nohash_{index}.wav\n" for word in ("no", "yes") for index in range(2)]
    (folder / "testing_list.txt").write_text("".join(listed))
    return folder


def make_images(folder: Path, splits: tuple[str, ...] = ("train", "test"), mode: str = "RGB") -> Path:
    """Five 6x4 images for each of two classes and each split; none of the splits for CLASS/FILE alone."""
    generator = np.random.default_rng(1)
    for split in splits or ("",):
        for label in ("cat", "dog"):
            (folder / split / label).mkdir(parents=True)
            for number in range(5):
                pixels = generator.integers(0, 256, (4, 6, 3) if mode == "RGB" else (4, 6), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{number}.png")
    (folder / "README.txt").write_text("not an image")
    return folder


def make_idx(folder: Path, zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(2)
    for split, count in (("train", 20), ("t10k", 6)):
        images = generator.integers(0, 256, (count, 5, 4), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 3
        write_idx(folder / f"{split}-images-idx3-ubyte", images, zipped)
        write_idx(folder / f"{split}-labels-idx1-ubyte", labels, zipped)
    return folder


def write_idx(path: Path, array: np.ndarray, zipped: bool = False) -> None:
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    if zipped:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def example_arrays() -> dict[str, np.ndarray]:
    x = np.random.default_rng(3).normal(3, 2, (25, 4)).astype(np.float32)
    y = np.arange(25) % 3
    return {"x_train": x[:20], "y_train": y[:20], "x_test": x[20:], "y_test": y[20:]}


def make_arrays(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", **example_arrays())
    return folder


def make_csv(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        arrays = example_arrays()
        lines = ["a,b,c,d,kind"]
        for row, label in zip(arrays[f"x_{split}"], arrays[f"y_{split}"]):
            lines.append(",".join(map(repr, row.tolist())) + f",kind{label}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return folder


def make_cifar(folder: Path, classes: int, binary: bool) -> Path:
    """CIFAR-10 or CIFAR-100 with four images a file."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(4)
    names = [f"class{number:02d}" for number in range(classes)]
    train = [f"data_batch_{number}" for number in range(1, 6)] if classes == 10 else ["train"]
    prefix = "" if classes == 10 else "fine_"
    for name in [*train, "test_batch" if classes == 10 else "test"]:
        x = generator.integers(0, 256, (4, 3072), dtype=np.uint8)
        y = generator.integers(0, classes, 4, dtype=np.uint8)
        if binary:
            before = y[:, None] if classes == 10 else np.stack([y // 5, y], axis=1)
            (folder / f"{name}.bin").write_bytes(np.hstack([before, x]).tobytes())
        else:
            (folder / name).write_bytes(python2_batch(x, y.tolist(), f"{prefix}labels".encode()))
    if binary:
        meta = "batches.meta.txt" if classes == 10 else "fine_label_names.txt"
        (folder / meta).write_text("\n".join(names) + "\n\n")
    else:
        key = f"{prefix}label_names".encode()
        meta = folder / ("batches.meta" if classes == 10 else "meta")
        meta.write_bytes(pickle.dumps({key: [name.encode() for name in names]}, protocol=2))
    return folder


def python2_batch(x: np.ndarray, labels: list[int], key: bytes) -> bytes:
    """A batch as Python 2 pickled it in 2009: texts without an encoding, the old name of the module."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    count = b"M" + struct.pack("<H", len(x))
    return b"".join(
        [
            b"\x80\x02}q\x01(" + short(b"batch_label") + b"q\x02" + short(b"training batch 1 of 5") + b"q\x03",
            short(key) + b"q\x04]q\x05(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e",
            short(b"data") + b"q\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85",
            short(b"b") + b"\x87Rq\t(K\x01" + count + b"M\x00\x0c\x86cnumpy\ndtype\nq\n" + short(b"u1") + b"K\x00K\x01",
            b"\x87Rq\x0b(K\x03" + short(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + struct.pack("<I", x.size) + x.tobytes() + b"tb",
            short(b"filenames") + b"q\x0c]q\r(" + b"".join(short(b"image.png") for _ in labels) + b"eu.",
        ]
    )


TEXTS = {
    "train/a.txt": "Ünit one holds units 0 to 3.\n".encode(),
    "train/deep/b.md": b"# Two\r\n\r\nof four",
    "train/c.jsonl": b'{"text": "a line", "id": 1}\n\n{"text": "another\\nline"}\n',
    "train/empty.py": b"",
    "test/d.rst": b"Three\n=====\n" * 30,
    "val/e.txt.gz": gzip.compress(b"packed words", mtime=0),
}


def make_text(folder: Path) -> Path:
    return write_files(folder, TEXTS)


ROWS = {"train.txt": b"3 5 4\n0,2 1:0.5 4:-1e-3\n3 0:1\n1,0 2:2.5 3:3.4e38\n", "test.txt": b"1 5 4\n2 0:1 1:1\n"}


def make_rows(folder: Path) -> Path:
    return write_files(folder, ROWS)


def make_graph(folder: Path) -> Path:
    """Tables as OGB has them: six nodes, an edge twice, one from a node to itself."""
    tables = {
        "raw/edge.csv.gz": "0,1\n1,2\n2,3\n1,2\n4,4\n0,3\n",
        "raw/node-feat.csv.gz": "".join(f"{n}.5,{n * n}\n" for n in range(6)),
        "raw/node-label.csv.gz": "0\n1\n0\n1\n0\n1\n",
        "split/time/train.csv.gz": "0\n1\n",
        "split/time/valid.csv.gz": "5\n",
        "split/time/test.csv.gz": "2\n4\n",
    }
    return write_files(folder, {name: gzip.compress(text.encode(), mtime=0) for name, text in tables.items()})


MAKERS = {
    "speech": make_speech,
    "images": make_images,
    "idx": make_idx,
    "arrays": make_arrays,
    "csv": make_csv,
    "text": make_text,
    "xc": make_rows,
    "graph": make_graph,
}


def pack(folder: Path, target: Path) -> Path:
    """The folder as a tar file, compressed as the ending says, its members in no order."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    random.Random(5).shuffle(paths)
    with tarfile.open(target, "w:gz" if target.suffix == ".gz" else "w") as tar:
        for path in paths:
            tar.add(path, f"./{folder.name}/{path.relative_to(folder).as_posix()}")
    return target
