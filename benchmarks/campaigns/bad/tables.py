"""Tables whose text may be read in several ways, each with its right value; and predictions from other tables."""

import csv
import io
import random
from pathlib import Path

import numpy as np

from benchmarks.campaigns.bad import formats
from benchmarks.campaigns.bad.cases import Assets, Case, one_of
from benchmarks.campaigns.bad.meanings import answers, examples

ROWS, COLUMNS = formats.ROWS, formats.COLUMNS
LABELS = (
    ("cat", "dog"),
    ("1_11", "11_1", "2_1"),
    ("[/red]", "[bold]", "[link=x]"),
    (":smile:", "a b", "{x}"),
    ("\u0661\u0661", "11", "x"),
    ("0", "1", "2"),
    ("-1", "1"),
    ("True", "False"),
    ("[/]", "\\[a]"),
)
HEADERS = ("names", "names", "none", "numbers", "twice", "empty", "markup", "digits")
NUMBERS = ("plain", "plain", "times", "near", "integers", "comma", "underscore", "scripts", "above", "hexadecimal")
ODD = ("nothing", "nothing", "sep", "trailing", "blank", "bom", "crlf", "padded", "quoted", "comment")


def table(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A table of 20 rows, three features and a label."""
    delimiter = draw.choice(",,;;\t||")
    header, numbers, odd = draw.choice(HEADERS), draw.choice(NUMBERS), draw.choice(ODD)
    names = draw.choice(LABELS)
    labels = [names[row % len(names)] for row in range(ROWS)]
    text, x, refused = _numbers(draw, numbers, delimiter)
    at = draw.choice((0, 3, 3))
    first = _header(header)
    rows = [[*row[:at], label, *row[at:]] for row, label in zip(text, labels)]
    if odd == "padded":
        for row in rows[1::2]:
            row[at] = f" {row[at]}  "
    lines = [*([[*first[:at], "label", *first[at:]] if header != "numbers" else list("0123")] * (header != "none"))]
    content = _written([*lines, *rows], delimiter, odd)
    (folder / "data.csv").write_bytes(content)
    words = ["prepare", "csv", "data.csv", "out.h5", *one_of(draw, ([], ["--json"]))]
    if at == 0:
        named = "label" if header not in ("none", "numbers") else "0"
        words += ["--label", draw.choice((named, "0"))]
    if delimiter == "|":
        words += ["--delimiter", "|"]
    if draw.random() < 0.2:
        words += ["--header", "no" if header == "none" else "yes"]
    refused = refused or odd in ("sep", "trailing", "comment") or (header == "numbers" and "--header" not in words)
    return Case(words, refused, right=examples(labels, x, numbers != "integers"), taken=not refused)


def _header(kind: str) -> list[str]:
    return {
        "twice": ["a", "a", "b"],
        "empty": ["", "b", "c"],
        "markup": ["[/red]", "[bold]", ":smile:"],
        "digits": ["1_0", "\u0661", "2_0"],
    }.get(kind, list(COLUMNS))


def _numbers(draw: random.Random, kind: str, delimiter: str) -> tuple[list[list[str]], np.ndarray, bool]:
    """Three features of each row as text and as numbers, and whether they must be refused."""
    x = np.array([[row * 3 + 2.5, draw.randrange(8000) / 8, draw.randrange(80) / 8] for row in range(ROWS)])
    place = draw.randrange(1, ROWS), draw.randrange(3)  # a first line that is no number is a header
    if kind == "times":
        x[:, 0] = 1_700_000_000 + np.arange(ROWS)
    elif kind == "near":
        x[:, 0] = 1e5 + np.arange(ROWS) / 1000
    elif kind == "integers":
        x = np.floor(x)
    text = [[str(int(value)) if value == int(value) else repr(float(value)) for value in row] for row in x]
    odd = {
        "underscore": "1_5",
        "scripts": "\u0661\u0662",
        "above": str(2**53 + 1),
        "hexadecimal": "0x10",
    }
    if kind in odd:
        text[place[0]][place[1]] = odd[kind]
    elif kind == "comma":
        text = [[f"{value:.3f}".replace(".", ",") for value in row] for row in x]
    return text, x, kind in odd or kind in ("comma", "times", "near")


def _written(rows: list[list[str]], delimiter: str, odd: str) -> bytes:
    file = io.StringIO()
    quoting = csv.QUOTE_ALL if odd == "quoted" else csv.QUOTE_MINIMAL
    csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=quoting).writerows(rows)
    lines = file.getvalue().splitlines()
    if odd == "sep":
        lines.insert(0, f"sep={delimiter}")
    elif odd == "trailing":
        lines = [line + delimiter for line in lines]
    elif odd == "blank":
        lines[5:5] = ["", "   ", ""]
    elif odd == "comment":
        lines.insert(7, "# a comment")
    content = ("\r\n" if odd == "crlf" else "\n").join(lines).encode()
    return b"\xef\xbb\xbf" + content if odd == "bom" else content


def predict(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """The examples that a network's answers are known of, in a table of another form."""
    rows = list(csv.reader(io.StringIO((assets.table / "same.csv").read_text())))
    kind = draw.choice(
        (
            "exchanged",
            "exchanged",
            "label",
            "more",
            "passed over",
            "missing",
            "headless",
            "by place",
            "renamed",
            "twice",
        )
        + ("padded", "quoted", "capitals", "comma", "underscore", "scripts", "delimiter", "other delimiter", "bom")
        + ("blank", "no lines", "only a header", "short")
    )
    options: list[str] = []
    refused = kind in (
        "more", "missing", "headless", "renamed", "twice", "capitals", "comma", "underscore", "scripts",
        "other delimiter", "no lines", "only a header", "short",
    )  # fmt: skip
    content = b""
    if kind in ("label", "more", "passed over"):
        name = "label" if kind == "label" else draw.choice(("id", "", "[/red]", "d"))
        place = draw.randrange(4)
        for number, row in enumerate(rows):
            row.insert(place, str(number) if number else name)
        options = ["--label", draw.choice((name or str(place), str(place)))] if kind == "passed over" else []
    if kind in ("exchanged", "label", "more", "quoted", "padded", "blank"):
        order = draw.sample(range(len(rows[0])), len(rows[0]))
        rows = [[row[place] for place in order] for row in rows]
    elif kind == "missing":
        place = draw.randrange(3)
        rows = [[*row[:place], *row[place + 1 :]] for row in rows]
    elif kind in ("headless", "by place"):
        rows = rows[1:]
        options = ["--header", "no"] if kind == "by place" else []
    elif kind == "only a header":
        rows = rows[:1]
    elif kind in ("renamed", "twice", "capitals"):
        rows[0] = {"renamed": ["x", "b", "c"], "twice": ["a", "a", "c"], "capitals": ["A", "B", "C"]}[kind]
    elif kind == "padded":
        rows[0] = [f" {name} " for name in rows[0]]
    elif kind in ("comma", "underscore", "scripts"):
        odd = {"comma": "1,5", "underscore": "1_5", "scripts": "\u0663"}[kind]
        rows[draw.randrange(1, len(rows))][draw.randrange(3)] = odd
    elif kind == "short":
        rows[draw.randrange(1, len(rows))].pop()
    delimiter = ";" if "delimiter" in kind else ","
    options += ["--delimiter", ";"] if kind == "delimiter" else []
    content = _written(rows, delimiter, kind if kind in ("quoted", "bom", "blank") else "")
    (folder / "data.csv").write_bytes(b"" if kind == "no lines" else content)
    words = ["predict", str(assets.table / "network.h5"), "data.csv", "--outputs", "--out", "out.csv", *options]
    return Case(words, refused, right=answers(assets.table / "answers.csv"), taken=not refused)
