"""Values that programs choke on, and the changes to bytes and trees that put them into otherwise valid files."""

import json
import random
from collections.abc import Callable
from typing import Any

NAMES = (
    "plain",
    "a\x1b[31mred\x1b[0m",
    "two\nlines",
    "$x_",
    "$\\frac{$",
    "ends with $",
    "[bold]markup[/]",
    "[/]",
    "\u202eright to left",
    "\x85\x9b31m",
    "wide \U0001f9ea",
    "a\rb",
    "a\x00b",
    "x" * 5000,
    "../../climbs",
    "/absolute",
    "..",
    "",
    " ",
)
"""Texts where a name is due."""

NUMBERS = (
    "0",
    "-1",
    "1e999",
    "-1e999",
    "nan",
    "inf",
    "-inf",
    "1e-320",
    "1e300",
    "9" * 5000,
    "18446744073709551616",
    "9223372036854775808",
    "2147483648",
    "0x10",
    "1_000",
    "\u0663",
    "1.5.2",
    "",
    "true",
    "--1",
    "1,",
    "1e3",
)
"""Texts where a number is due."""

VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    2**31,
    2**63,
    2**64,
    10**400,
    "",
    "text",
    "nan",
    [],
    {},
    [[]],
    [None],
    [1, "a", None],
    {"a": {"b": [1]}},
    *NAMES[1:7],
)
"""What may stand in JSON where something else is due."""

DEEP = 100_000


def damaged_bytes(draw: random.Random, content: bytes) -> bytes:
    """Content with some of its bytes changed, cut, repeated or moved."""
    change = draw.choice(("flip", "flip", "flip", "cut", "insert", "zeros", "ones", "repeat", "empty", "tail", "noise"))
    if change == "empty" or not content:
        return b""
    place = draw.randrange(len(content))
    if draw.random() < 0.5:
        place %= min(len(content), 512)  # headers are at the front
    if change == "flip":
        changed = bytearray(content)
        for _ in range(draw.choice((1, 1, 2, 8, 64))):
            changed[(place + draw.randrange(64)) % len(content)] = draw.choice((0, 0xFF, 0x7F, draw.randrange(256)))
        return bytes(changed)
    length = draw.choice((1, 4, 16, 512))
    pieces = {
        "cut": b"",
        "insert": content[place:] and draw.randbytes(length) + content[place:],
        "zeros": bytes(length) + content[place + length :],
        "ones": b"\xff" * length + content[place + length :],
        "repeat": content[place : place + length] * 3 + content[place:],
        "tail": content[place:] + draw.randbytes(length),
        "noise": draw.randbytes(min(len(content) - place, 4096)),
    }
    return content[:place] + pieces[change]


def damaged_tree(draw: random.Random, tree: Any) -> Any:
    """A tree of JSON's with one to three of its values, keys or lists replaced."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            break
        holder, key = draw.choice(places)
        change = draw.random()
        if change < 0.7:
            holder[key] = draw.choice(VALUES)
        elif change < 0.85:
            del holder[key]
        elif isinstance(holder, dict):
            holder[draw.choice(NAMES)] = draw.choice(VALUES)
        else:
            holder.append(draw.choice(VALUES))
    return tree if draw.random() < 0.95 else draw.choice(VALUES)


def _places(tree: Any) -> Any:
    """Every holder in a tree with every key or index of it."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def json_text(draw: random.Random, tree: Any) -> bytes:
    """A tree as JSON, now and then written as no program would."""
    text = json.dumps(tree)
    change = draw.random()
    if change < 0.75:
        return text.encode()
    odd: dict[str, Callable[[], bytes]] = {
        "deep lists": lambda: b"[" * DEEP,
        "deep objects": lambda: b'{"a":' * DEEP,
        "a whole deep value": lambda: text.encode()[:-1] + b', "deep": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        "many digits": lambda: text.encode()[:-1] + b', "digits": ' + b"9" * 6000 + b"}",
        "lone surrogate": lambda: text.encode()[:-1] + rb', "name": "\ud800"}',
        "not UTF-8": lambda: text.encode()[:-1] + b', "name": "\xff\xfe"}',
        "UTF-16": lambda: text.encode("utf-16"),
        "byte order mark": lambda: b"\xef\xbb\xbf" + text.encode(),
        "NUL": lambda: b"\0" + text.encode(),
        "damaged": lambda: damaged_bytes(draw, text.encode()),
    }
    return odd[draw.choice(sorted(odd))]()
