"""Graphs and tokenizers that `istmpi prepare` reads: of arrays, tables and vocabularies one makes no sense."""

import json
import random
from pathlib import Path

import numpy as np

from benchmarks.campaigns.bad import array_files
from benchmarks.campaigns.bad.cases import Assets, Case, one_of
from benchmarks.campaigns.bad.hostile import NUMBERS, damaged_bytes
from benchmarks.campaigns.bad.meanings import counts, differ

NODES = 6
_PAIRS = np.array([[0, 1, 2, 1, 4, 0], [1, 2, 3, 2, 4, 3]])
_OPTIONS = ([], [], [], ["--clusters", "2"], ["--normalise", "rows"], ["--normalise", "columns"], ["--directed"])
_TABLES = {"edge_index": "edge", "x": "node-feat", "y": "node-label", "train_mask": "train", "test_mask": "test"}


def graph(draw: random.Random, folder: Path, assets: Assets) -> Case:
    options = one_of(draw, (*_OPTIONS, ["--clusters", draw.choice(NUMBERS)]))
    arrays = _rows() if draw.random() < 0.5 else _pairs()
    kind = draw.choice(("array", "array", "array", "archive", "tables"))
    if kind == "tables":
        return Case(["prepare", "graph", _tables(draw, folder), "out.h5", *options])
    if kind == "archive":
        content, refused = array_files.damaged_npz(draw, arrays)
        (folder / "graph.npz").write_bytes(content)
        return Case(["prepare", "graph", "graph.npz", "out.h5", *options], refused)
    name = draw.choice(sorted(arrays))
    arrays[name] = _strange(draw, arrays[name])
    np.savez(folder / "graph.npz", **arrays)
    return Case(["prepare", "graph", "graph.npz", "out.h5", *options])


def masks(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """Masks [nodes, splits], which are refused; or masks and lists that overlap, or leave nodes out."""
    arrays, kind = _pairs(), draw.choice(("several", "several", "one", "overlap", "lists", "numbers", "mixed"))
    number, refused = draw.randrange(10), False
    expected = {"train": 2, "test": 2, "validation": 2}
    if kind in ("several", "mixed"):
        for split in ("train", "test", "val"):
            chosen = np.zeros((NODES, 10), bool)
            chosen[:, number] = arrays[f"{split}_mask"]
            if kind == "several" or split == "train":
                arrays[f"{split}_mask"] = chosen
        refused = True
    elif kind == "overlap":
        arrays["test_mask"], refused = arrays["test_mask"] | arrays["train_mask"], True
    elif kind == "lists":
        arrays = {
            name.replace("_mask", "_idx"): np.flatnonzero(a) if "_mask" in name else a for name, a in arrays.items()
        }
    else:
        arrays = {
            name: a.astype(draw.choice(("i8", "u1", "f4"))) if "_mask" in name else a for name, a in arrays.items()
        }
    np.savez(folder / "graph.npz", **arrays)
    words = ["prepare", "graph", "graph.npz", "out.h5", "--json"]
    return Case(words, refused, right=counts(expected), taken=not refused and kind != "numbers")


def tokenizer(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A tokenizer whose words have numbers that a network has outputs for, or not."""
    words = ["the", "cat", "sat", "[/red]", "</s>"]
    vocabulary: dict[str, object] = {word: number for number, word in enumerate(words)}
    kind = draw.choice(
        ("nothing", "nothing", "gap", "large", "largest", "negative", "twice", "text", "fraction", "deep")
    )
    odd = {"gap": 9, "large": 2**31, "largest": 2**32 - 1, "negative": -1, "twice": 0, "text": "x", "fraction": 1.5}
    if kind in odd:
        vocabulary["cat"] = odd[kind]
    made = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "the"},
    }  # fmt: skip
    text = json.dumps(made).encode() if kind != "deep" else b'{"model":' * 50_000
    (folder / "tokenizer.json").write_bytes(text)
    (folder / "text.txt").write_text("the cat sat the cat " * 40)
    refused = kind in ("large", "largest", "negative", "text", "fraction", "deep")

    def right(folder: Path, out: str) -> str:
        report = json.loads(out)
        return differ(sum(report["counts"].values()), 201, "tokens")

    return Case(
        ["prepare", "text", "text.txt", "out.h5", "--tokenizer", "tokenizer.json", "--json"], refused, right=right,
        taken=not refused and kind in ("nothing", "gap"),
    )  # fmt: skip


def _pairs() -> dict[str, np.ndarray]:
    """A graph by pairs of nodes."""
    return {"edge_index": _PAIRS, "x": np.arange(2.0 * NODES).reshape(NODES, 2), **_labels()}


def _rows() -> dict[str, np.ndarray]:
    """The same as two matrices of compressed sparse rows."""
    edges, features = np.zeros((NODES, NODES)), np.arange(2.0 * NODES).reshape(NODES, 2) + 1
    edges[_PAIRS[1], _PAIRS[0]] = 1
    arrays = _labels()
    for name, dense in (("adj", edges), ("attr", features)):
        rows, columns = dense.nonzero()
        arrays |= {
            f"{name}_indptr": np.searchsorted(rows, np.arange(NODES + 1)),
            f"{name}_indices": columns,
            f"{name}_data": dense[rows, columns],
            f"{name}_shape": np.array(dense.shape),
        }
    return arrays


def _labels() -> dict[str, np.ndarray]:
    masks = {f"{split}_mask": np.arange(NODES) // 2 == place for place, split in enumerate(("train", "test", "val"))}
    return {"y": np.arange(NODES) % 2, **masks}


def _strange(draw: random.Random, array: np.ndarray) -> np.ndarray:
    """An array of another shape, kind or range."""
    made = (
        lambda: np.array(array.flat[0]),
        lambda: array[..., None],
        lambda: array.reshape(-1)[:-1],
        lambda: np.concatenate([array.reshape(-1), array.reshape(-1)]),
        lambda: array[:0],
        lambda: np.zeros((len(array), 0)),
        lambda: array.astype(str),
        lambda: array.astype(complex),
        lambda: array.astype(np.uint64) + np.uint64(2**63),
        lambda: array.astype("datetime64[s]"),
        lambda: np.full(array.shape, np.nan),
        lambda: np.full(array.shape, draw.choice((1e300, -1.0, 0.5, np.inf))),
        lambda: -array.astype(np.int64),
        lambda: np.full(array.shape, draw.choice((2**31, 2**62, 10**9))),
        lambda: array.astype(np.float16),
        lambda: np.array([(1, 2.0)] * len(array), dtype=[("a", "<i4"), ("b", "<f8")]),
    )
    return draw.choice(made)()


def _tables(draw: random.Random, folder: Path) -> str:
    """Tables of numbers as OGB has them; the folder's name."""
    (folder / "raw").mkdir()
    victim = draw.choice(sorted(_TABLES))
    for name, array in _pairs().items():
        if name in _TABLES:
            rows = np.flatnonzero(array) if name.endswith("_mask") else array.T if name == "edge_index" else array
            text = "\n".join(",".join(map(str, np.atleast_1d(row))) for row in rows).encode()
            if name == victim:
                text = draw.choice(
                    (b"", b"\n\n", b"a,b\n", b"1,2\n3\n", text.replace(b"1", b"1e300"), damaged_bytes(draw, text))
                )
            (folder / "raw" / f"{_TABLES[name]}.csv").write_bytes(text)
    return "raw"
