"""Valid files of every format that istmpi reads, and command lines that take a value: what a campaign damages."""

import gzip
import io
import json
import struct
import tarfile
import wave
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaigns import forked

RAW = {
    "speech": ("words", "words.tar", "words/yes/s0_nohash_0.wav"),
    "images": ("pictures", "pictures.tar", "pictures/cat/1.png"),
    "csv": ("table.csv", "table.csv.gz", "table.csv"),
    "arrays": ("arrays", "arrays.npz"),
    "idx": ("mnist", "mnist/train-labels-idx1-ubyte"),
    "text": ("texts", "texts/0.txt"),
    "xc": ("rows.svm",),
    "graph": ("graph.npz",),
}
"""Sources by the kind of ``istmpi prepare``; the last is a single file."""
TRAINED = ("digits", "speech", "images", "csv", "arrays", "xc")
"""Data of which a network is there, in ``run-NAME``."""

_LINK = {"latency": 1e-4, "seconds_per_byte": 1e-9}
CLUSTER: dict[str, Any] = {
    "format": "istmpi cluster", "version": 1, "name": "here", "source": "measured", "flops": [1e9, 1e9],
    "links": {"alltoallv": _LINK, "allreduce": _LINK}, "product_seconds": 0.0, "step_seconds": 1e-6,
    "touch_seconds_per_byte": 1e-10, "handle_seconds_per_byte": 1e-10, "average_seconds_per_byte": 0.0,
    "transfer_seconds": 0.0, "deal_seconds": 0.0, "memory": 1e9, "price": 1.0, "watts": 100.0, "measured": {},
}  # fmt: skip
CURVE: dict[str, Any] = {
    "format": "istmpi curve", "version": 1, "method": "torch-ddp", "seed": 0, "ranks": 8, "score_name": "accuracy",
    "name": "data", "phases": {"compute": 1.0}, "settings": {"model.hidden": [4]}, "problem": "", "source": "",
    "points": [{"round": n, "seconds": n / 2, "bytes": n, "examples": n * 10, "score": n / 10} for n in range(1, 5)],
}  # fmt: skip


def parsed(content: bytes) -> Any:
    """The tree of a line or a file of JSON."""
    return json.loads(content)


def command_lines(run: str) -> list[list[str]]:
    """Command lines of all commands, with VALUE in the place of a value; ``run``: a run's folder."""
    from istmpi.cli.settings import OPTIONS

    train = "train digits --hidden 4 --dry-run"
    lines = [f"{train} {option} VALUE" for option in sorted(OPTIONS)]
    lines += [f"{train} --set {name}=VALUE" for name, _ in OPTIONS.values()] + [f"{train} --set VALUE", "train VALUE"]
    cost = (
        "layers examples ranks compare cluster bandwidth latency flops memory price watts most-ranks hidden batch plot"
    )
    lines += [f"costmodel digits --{name} VALUE" for name in cost.split()] + ["costmodel VALUE"]
    lines += [f"report {run} --{name} VALUE" for name in ("targets", "watts", "html", "plot")] + ["report VALUE"]
    lines += [
        f"job slurm digits --{name} VALUE"
        for name in ["nodes", "time", "partition", "array", "modules", "restarts", "stage"]
    ]
    lines += [
        f"job ec2 digits --instances 1 --{name} VALUE" for name in ["type", "region", "key", "ssh-from", "package"]
    ]
    lines += ["job folder --ranks VALUE -- digits", "job folder -- VALUE", "job table VALUE", "runs VALUE"]
    lines += ["prepare VALUE x out.h5", "prepare csv VALUE out.h5", "prepare csv . out.h5 --label VALUE"]
    lines += [f"predict {run}/network.h5 VALUE", "predict VALUE digits", f"predict {run}/network.h5 digits --out VALUE"]
    lines += [
        f"predict {run}/network.h5 digits --split VALUE",
        f"evaluate {run}/network.h5 --data VALUE",
        "evaluate VALUE",
    ]
    lines += [
        f"export {run}/network.h5 --to VALUE",
        f"export {run}/network.h5 --to npz --out VALUE",
        "export VALUE --to npz",
    ]
    lines += [f"checkpoint {verb} VALUE" for verb in ("ls", "show", "verify")] + ["checkpoint diff VALUE VALUE"]
    lines += [f"checkpoint show {run}/network.h5 --ranks VALUE", "doctor --patience VALUE --folder /nowhere/x"]
    return [line.split(" ") for line in lines]


def make(folder: Path) -> Path:
    """Write the files, and train a network on each of `TRAINED`."""
    folder.mkdir()
    for name, content in _contents().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for name in ("words", "pictures"):
        with tarfile.open(folder / f"{name}.tar", "w") as archive:
            archive.add(folder / name, name)
    for kind in TRAINED[1:]:
        _istmpi(folder, "prepare", kind, RAW[kind][0], f"{kind}.h5")
    tiny = [
        "--hidden",
        "4",
        "--rounds",
        "3",
        "--local-steps",
        "1",
        "--batch",
        "4",
        "--threads",
        "1",
        "--evaluate-every",
        "1",
    ]
    for name in TRAINED:
        data = name if name == "digits" else f"{name}.h5"
        model = ["--model", "xc"] if name == "xc" else []
        _istmpi(folder, "train", "digits", "--data", data, *tiny, *model, "--out", f"run-{name}")
    return folder


def _istmpi(folder: Path, *words: str) -> None:
    outcome = forked.run(words, folder, forked.Limits(seconds=300, megabytes=2000))
    if outcome.code:
        raise RuntimeError(f"istmpi {' '.join(words)} ended with {outcome.code}: {outcome.err}")


def _contents() -> dict[str, bytes]:
    """Files by their names."""
    found = {}
    for place in range(20):
        word, picture = ("yes", "no")[place % 2], ("dog", "cat")[place % 2]
        found[f"words/{word}/s{place // 2}_nohash_0.wav"] = _wav(place)
        found[f"pictures/{picture}/{place}.png"] = _png(place)
        found[f"texts/{place}.txt"] = b"the cat sat on the mat. " * (place + 5)
    x, y = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20) % 2
    arrays = {"x": x, "y": y}
    table = "\n".join(["a,b,c,label", *(f"{a},{b},{c},{'dog' if n % 3 else 'cat'}" for n, (a, b, c) in enumerate(x))])
    found |= {f"arrays/{name}.npy": _npy(array) for name, array in arrays.items()}
    found |= {"table.csv": table.encode(), "table.csv.gz": gzip.compress(table.encode()), "arrays.npz": _npz(arrays)}
    found["rows.svm"] = "\n".join(f"{n % 3} {n % 5 + 1}:{n / 2} 6:1 7:{n % 4 + 1}" for n in range(20)).encode()
    for split in ("train", "t10k"):
        found[f"mnist/{split}-images-idx3-ubyte"] = struct.pack(">4i", 2051, 20, 4, 4) + bytes(range(160)) * 2
        found[f"mnist/{split}-labels-idx1-ubyte"] = struct.pack(">2i", 2049, 20) + bytes(n % 2 for n in range(20))
    masks = {f"{name}_mask": np.arange(6) % 3 == number for number, name in enumerate(("train", "val", "test"))}
    edges = np.array([[0, 1, 2, 1, 4, 0], [1, 2, 3, 2, 4, 3]])
    found["graph.npz"] = _npz({"edge_index": edges, "x": np.eye(6, dtype=np.float32), "y": np.arange(6) % 2, **masks})
    return found


def _wav(number: int) -> bytes:
    """A second of sound at 8 kHz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes((np.sin(np.arange(8000) / (number + 5)) * 9000).astype("<i2").tobytes())
    return file.getvalue()


def _png(number: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.frombytes("RGB", (4, 4), bytes((number + n) % 256 for n in range(48))).save(file, "png")
    return file.getvalue()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
