"""The next identifier of Python's standard library: sparse rows of many labels, the same wherever Python is installed.

A row is a name in a module's source. Its features are the twelve names before it, each by its distance (of the last
three) or without (of the others); its label is the name. The most frequent names are labels and features; a module in
ten, by the CRC of its path, is for testing. Rows are thinned out evenly to at most `ROWS`.
"""

from __future__ import annotations

import io
import keyword
import subprocess
import sysconfig
import tempfile
import tokenize
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROWS = 160_000
CONTEXT, NEAR = 12, 3


def names_in(source: str) -> Iterator[str]:
    """Yield the identifiers of a source, keywords left out."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                yield token.string
    except (tokenize.TokenError, SyntaxError):
        return


def prepare(path: Path, labels: int) -> None:
    """Write the prepared data with so many labels, unless they are there."""
    if path.exists():
        return
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in sorted(root.rglob("*.py")) if not {"test", "tests", "site-packages"} & {*file.parts}]
    modules = {file.relative_to(root).as_posix(): [*names_in(file.read_text("utf-8", "replace"))] for file in files}
    counts = Counter(name for names in modules.values() for name in names)
    known = {name: number for number, (name, _) in enumerate(counts.most_common(labels))}
    rows: dict[str, list[str]] = {"train": [], "test": []}
    for module, names in modules.items():
        split = "train" if zlib.crc32(module.encode()) % 10 else "test"
        for place in range(CONTEXT, len(names)):
            if (label := known.get(names[place])) is not None:
                rows[split].append(f"{label} {_features(names, place, known, labels)}")
    total = sum(map(len, rows.values()))
    with tempfile.TemporaryDirectory() as folder:
        for split, lines in rows.items():
            count = min(len(lines), ROWS * len(lines) // total)
            kept = [lines[place * len(lines) // count] for place in range(count)]
            head = f"{len(kept)} {labels * (NEAR + 1)} {labels}"
            (Path(folder) / f"{split}.txt").write_text("\n".join([head, *kept]) + "\n")
        subprocess.run(["istmpi", "prepare", "xc", folder, path], check=True)


def _features(names: list[str], place: int, known: dict[str, int], labels: int) -> str:
    found = set()
    for distance in range(1, CONTEXT + 1):
        if (number := known.get(names[place - distance])) is not None:
            found.add(number + labels * (distance if distance <= NEAR else 0))
    return " ".join(f"{number}:1" for number in sorted(found))
