"""Sparse rows and arrays whose values have a right meaning."""

import random
from pathlib import Path

import numpy as np

from benchmarks.campaigns.bad.cases import Assets, Case, one_of
from benchmarks.campaigns.bad.meanings import Right, answers, differ, examples, sparse_rows

Rows = list[tuple[list[int], dict[int, float]]]


def xc(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """Rows of labels and numbered features, as files that count, or name their rows, in several ways."""
    rows: Rows = [([row % 3, *[2] * (row % 4 == 0)], {row % 5: row + 0.5, 5: 1.0, 6: 2.0}) for row in range(20)]
    first, header = draw.choice((0, 1, 1)), draw.random() < 0.5
    first = 0 if header else first
    odd = draw.choice(
        ("nothing", "nothing", "underscore", "scripts", "blank", "bom", "signs", "lists", "both", "counts", "comment")
        + ("zero", "qid", "tabs", "crlf", "asked", "bare", "repeated", "fraction", "float label")
    )
    lines = [_line(labels, values, first) for labels, values in rows]
    refused, options, counted = False, [], len(rows)
    place = draw.randrange(1, 20)
    if odd in ("underscore", "scripts", "fraction", "float label"):
        words = {"underscore": "0 1_0:1", "scripts": "0 \u0663:1", "fraction": "0 1.5:1", "float label": "0.5 1:1"}
        lines[place], refused = words[odd], True
    elif odd == "signs":
        lines = [("-1" if row % 2 else "+1") + line[line.index(" ") :] for row, line in enumerate(lines)]
        refused = True
    elif odd == "counts":
        counted, refused = draw.choice((19, 21, 0, 2**63, -1, "9" * 5000)), header
    elif odd == "blank":
        lines.insert(place, "")
        counted += draw.choice((0, 1))
    elif odd == "comment" and not header:
        lines.insert(place, "# a comment")
    elif odd == "zero" and not header:  # a feature is counted from 0 then, whatever the others say
        lines[place], first = "0 0:1 3:2", 0
        rows = [_row(line) for line in lines]
    elif odd == "asked" and not header:
        first = draw.choice((0, 1))
        lines = [_line(labels, values, first) for labels, values in rows]
        options = ["--counted-from", str(first)]
    elif odd == "qid" and not header:
        lines, refused = [line.replace(" ", " qid:3 ", 1) for line in lines], True
    elif odd == "tabs":
        lines = [line.replace(" ", "\t") for line in lines]
    elif odd == "bare":
        lines[place], rows[place] = "1", ([], {})
        rows = [row for row in rows if row[1]]
    elif odd == "repeated":
        lines[place] = lines[place].replace(" ", f",{rows[place][0][0]} ", 1)
    if header:
        lines.insert(0, f"{counted} 7 3")
    text = ("\r\n" if odd == "crlf" else "\n").join(lines).encode() + b"\n"
    (folder / "data").mkdir()
    (folder / "data" / "data.txt").write_bytes(b"\xef\xbb\xbf" * (odd == "bom") + text)
    source = "data/data.txt"
    if odd in ("lists", "both"):
        source, refused = "data", odd == "both"
        train = [*range(1, 15), *[15] * refused]
        for name, numbers in (("x_trSplit.txt", train), ("x_tstSplit.txt", range(15, 21))):
            (folder / "data" / name).write_text("\n".join(map(str, numbers)) + "\n")
    words = ["prepare", "xc", source, "out.h5", *options]
    return Case(words, refused, right=sparse_rows(rows), taken=not refused)


def _line(labels: list[int], values: dict[int, float], first: int) -> str:
    return ",".join(map(str, labels)) + "".join(f" {column + first}:{value}" for column, value in values.items())


def _row(line: str) -> tuple[list[int], dict[int, float]]:
    labels, *words = line.split()
    pairs = (word.split(":") for word in words)
    return [int(label) for label in labels.split(",")], {int(column): float(value) for column, value in pairs}


def predict_rows(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """The rows that a network's answers are known of; it was trained on rows that count from 1."""
    lines = (assets.rows / "same.svm").read_text().splitlines()
    kind = draw.choice(
        ("same", "no labels", "bom", "crlf", "header", "wide header", "zero", "far", "underscore", "blank")
    )
    if kind == "no labels":
        lines = [line[line.index(" ") :] for line in lines]
    elif "header" in kind:  # it is counted from 0 with one
        lines = [_line([0], {column - 1: value for column, value in _row(line)[1].items()}, 0) for line in lines]
        lines.insert(0, f"{len(lines)} {7 + (kind == 'wide header')} 3")
    elif kind in ("zero", "far", "underscore"):
        lines[1] = {"zero": "0 0:1 2:1", "far": "0 1:1 8:1", "underscore": "0 1:1 1_0:1"}[kind]
    elif kind == "blank":
        lines.insert(1, "")
    text = ("\r\n" if kind == "crlf" else "\n").join(lines).encode() + b"\n"
    (folder / "new.svm").write_bytes(b"\xef\xbb\xbf" * (kind == "bom") + text)
    words = ["predict", str(assets.rows / "network.h5"), "new.svm", "--out", "out.csv"]
    refused = kind in ("wide header", "zero", "far", "underscore")
    return Case(words, refused, right=answers(assets.rows / "answers.csv"), taken=not refused)


def arrays(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """An .npz of several types, shapes and names."""
    x = np.arange(60.0).reshape(20, 3) % 17 + np.arange(20)[:, None] * 20
    y, options, refused = np.arange(20) % 2, [], False
    classes = [str(label) for label in y]
    types: tuple[str, str] = ("f4", "f4")
    kind = draw.choice(
        ("types", "types", "bytes beside fractions", "labels", "bytes", "names", "one-hot", "multi-hot", "channels")
        + ("channels asked", "capitals", "close", "times", "whole floats", "objects", "mixed labels", "latin")
    )
    if kind == "types":
        types = draw.choice((("i2", "f4"), ("i8", "u1"), ("u1", "i8"), ("f8", "f4"), ("u8", "i4"), ("u2", "i8")))
    elif kind == "bytes beside fractions":
        types, refused = draw.choice((("u1", "f4"), ("f8", "u1"))), True
    elif kind in ("bytes", "names", "latin"):
        pair = draw.choice((("cat", "dog"), ("[/red]", "[bold]"), ("1_1", "11"), ("cat ", "dog"), ("\u0661", "1")))
        classes = [pair[label].strip() for label in y]
        y = np.array([pair[label] for label in y])
        if kind != "names":
            y = np.char.encode(y, "utf-8")
        if kind == "latin":
            y, refused = np.array([b"caf\xe9", b"dog"] * 10), True
    elif kind == "one-hot":
        y = np.eye(2, dtype=draw.choice(("i4", "f4", "?", "u1")))[y]
    elif kind in ("channels", "channels asked"):
        x = np.arange(20 * 192.0).reshape(20, 8, 8, 3)
        refused = kind == "channels"
        options = [] if refused else ["--channels", "last"]
    elif kind == "close":
        x[:, 0], types, refused = 1e5 + np.arange(20) / 1000, ("f8", "f8"), True
    elif kind == "times":
        x[:, 0], types, refused = 1_700_000_000 + np.arange(20), ("i8", "i8"), True
    elif kind == "whole floats":
        y, options = y.astype("f4"), ["--task", "classification"]
    elif kind == "objects":
        y, refused = np.array([1, "a"] * 10, object), True
    elif kind == "mixed labels":
        y = y.astype("i8")
    expected = np.moveaxis(x, 3, 1) if kind == "channels asked" else x
    right: Right = examples(classes, expected)
    if kind == "multi-hot":
        y = np.stack([np.arange(20) % 2, np.arange(20) % 3 == 0, np.ones(20)], axis=1).astype(draw.choice(("i4", "u1")))
        right = _several_labels
    members = {}
    for split, part, type_ in (("train", slice(15), types[0]), ("test", slice(15, 20), types[1])):
        values = x[part] % 256 if "u1" in types else x[part]
        members |= {f"x_{split}": values.astype(type_), f"y_{split}": y[part]}
    if "u1" in types and not refused:
        right = examples(classes, x % 256)
    if kind == "labels":
        members["y_test"] = members["y_test"].astype(draw.choice(("u8", "u1", "?", "i2")))
    elif kind == "mixed labels":
        members["y_test"] = np.array(["cat"] * 5)
        refused = True
    if kind == "capitals":
        members = {draw.choice((name.upper(), name.capitalize())): array for name, array in members.items()}
    np.savez(folder / "data.npz", **members)
    words = ["prepare", "arrays", "data.npz", "out.h5", *options, *one_of(draw, ([], ["--json"]))]
    return Case(words, refused, right=right, taken=not refused)


def _several_labels(folder: Path, out: str) -> str:
    from istmpi.data.sources import open_dataset

    data = open_dataset(str(folder / "out.h5"))
    return differ((data.task, data.outputs), ("dense-multi-label", 3), "task")
