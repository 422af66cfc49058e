"""Types of settings: a type has the setting's values, range and a sentence of help.

msgspec checks values against it:

    rounds: Annotated[int, Meta(ge=1), "Rounds to train."] = 30

`also` adds limits that msgspec lacks: ``at_most`` beyond 64 bits, ``at_most_bytes`` of a text,
``rising`` numbers of a list, ``known`` names, with ``or`` for words on other values, and ``must``
for a message that explains a range better.
"""

import math
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from istmpi.errors import ConfigError, did_you_mean

MOST = 2**64
"""The largest magnitude of a whole number in a setting; limits of msgspec end at 64 bits."""

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
Between = Annotated[float, Meta(gt=0, lt=1)]

_ENGLISH = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a section with keys",
}

_KINDS = {int: "whole number", float: "number", dict: "section"}

convert = msgspec.convert

Field = tuple[str, Any, Any]
"""Name, type and default of a setting, as `dataclasses.make_dataclass` takes them."""


def also(**limits: Any) -> Meta:
    return Meta(extra=limits)


# Cached: every command asks for the types of 150 settings, some of them many times.
@cache
def find_types(section: type) -> dict[str, Any]:
    return get_type_hints(section, include_extras=True)


def find_help(hint: Any) -> str:
    return _bare(hint)[2]


def holds_text(hint: Any) -> bool:
    kind = _bare(hint)[0]
    return kind is str or get_origin(kind) is Literal


def holds_list(hint: Any) -> bool:
    """Return True for a list of any length."""
    kind = _bare(hint)[0]
    return get_origin(kind) is tuple and get_args(kind)[1:] == (...,)


def holds_texts(hint: Any) -> bool:
    """Return True for a list of texts."""
    kind = _bare(hint)[0]
    return get_origin(kind) is tuple and get_args(kind) == (str, ...)


def list_choices(hint: Any) -> tuple[str, ...]:
    kind, limits, _ = _bare(hint)
    if kind is bool:
        return "true", "false"
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(limits.get("known", ()))


def describe_kind(hint: Any, several: bool = False) -> str:
    """Return the kind of a setting's value in words; in the plural for ``several``."""
    kind, limits, _ = _bare(hint)
    plural = "s" if several else ""
    if get_origin(kind) is tuple:
        first, *others = get_args(kind)
        if others == [...]:
            return _or(f"list{plural} of {describe_kind(first, several=True)}", limits)
        return f"[{', '.join(map(describe_kind, (first, *others)))}]"
    if kind is bool:
        return "true or false"
    return _KINDS.get(kind, "text") + plural


def describe_range(hint: Any) -> str:
    """Return the values that a setting may have in words; empty if it may have any."""
    kind, limits, _ = _bare(hint)
    choices = list_choices(hint)
    if choices:
        return " | ".join(filter(None, [*choices, limits.get("or")]))
    if get_origin(kind) is tuple:  # the range of each item
        return describe_range(get_args(kind)[0])
    low, high = _ends(limits)
    if high == math.inf and "gt" in limits:
        return f"above {low}"
    if high < math.inf:
        begin = "(" if "gt" in limits else "["
        end = "]" if "le" in limits else ")"
        return f"in {begin}{low}, {high}{end}"
    if low > -math.inf:
        return f"at least {low}"
    return ""


def write_schema(hint: Any, default: Any = None) -> dict[str, Any]:
    """Return the JSON Schema (draft 7, as editors of TOML read it) of a setting's values."""
    # msgspec makes a schema of a later draft, which editors of TOML do not read.
    schema = {"description": find_help(hint), **_draft_7(msgspec.json.schema(hint))}
    _, limits, _ = _bare(hint)
    names = list_choices(hint)
    if names and schema.get("type") != "boolean":
        schema["examples" if "or" in limits else "enum"] = [*names]
    if "at_most" in limits:
        schema["maximum"] = limits["at_most"]
    if default is not None:
        schema["default"] = default
    return schema


def _draft_7(node: Any) -> Any:
    """Convert a schema of msgspec to draft 7.

    Drop null, which TOML lacks, and rename the items of tuples.
    """
    if isinstance(node, list):
        return [_draft_7(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _draft_7(value) for key, value in node.items()}
    if "prefixItems" in node:
        node |= {"items": node.pop("prefixItems"), "additionalItems": False}
    if "anyOf" in node:
        kinds = [item for item in node.pop("anyOf") if item != {"type": "null"}]
        if len(kinds) == 1:
            return {**kinds[0], **node}
        return {"anyOf": kinds, **node}
    return node


def check_value(value: Any, hint: Any, name: str, source: str) -> Any:
    """Return a setting's value as its type ``hint``.

    A whole number may stand for a float, and a list for a tuple. Raises ConfigError for another
    value, with ``source``, the setting's ``name`` and what it must be.
    """
    where = f"{source}: {name} = {shown(value)}"
    parts = value if isinstance(value, list | tuple) else (value,)
    # Limits of msgspec end at 64 bits.
    if any(isinstance(part, int) and abs(part) > MOST for part in parts):
        raise ConfigError(f"{where} must lie between -2^64 and 2^64.")
    if any(isinstance(part, str) and not part.isprintable() for part in parts):
        raise ConfigError(f"{where} must be printable text.")
    try:
        converted = msgspec.convert(value, hint)
    except msgspec.ValidationError:
        raise ConfigError(f"{where} {_demand(value, hint)}") from None
    # NaN and infinity pass limits in msgspec.
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers_in(value)):
        interval = describe_range(hint)
        # Only an interval with two ends, "in [LOW, HIGH]", tells that infinity is outside.
        constraint = f"lie {interval}" if interval.startswith("in ") else "be finite"
        raise ConfigError(f"{where} must {constraint}.")
    _require_own_limits(converted, hint, where)
    return converted


def _require_own_limits(value: Any, hint: Any, where: str) -> None:
    """Raise ConfigError for a value beyond a limit of `also`, which msgspec does not know."""
    _, limits, _ = _bare(hint)
    if value is None:
        return
    if "at_most" in limits and value > limits["at_most"]:
        raise ConfigError(f"{where} must be at most {limits['at_most']}.")
    if "at_most_bytes" in limits and len(value.encode()) > limits["at_most_bytes"]:
        raise ConfigError(f"{where} must {limits['must']}.")
    if "rising" in limits and any(first >= second for first, second in zip(value, value[1:])):
        raise ConfigError(f"{where} must {limits['must']}.")


def convert_value(value: Any, hint: Any, name: str) -> Any:
    """Convert a file's value to type ``hint``.

    Raises a one-line ConfigError, also for NaN if ``hint`` has limits.
    """
    try:
        value = msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from None
    # NaN is neither above nor below a limit, so msgspec lets it pass.
    if isinstance(value, float) and math.isnan(value) and get_origin(hint) is Annotated:
        raise ConfigError(f"{name} is not a number")
    return value


def shown(value: Any) -> str:
    """Return a value as in a run file.

    Huge integers are in hexadecimal, since Python refuses to write them in decimals.
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > MOST:
        return hex(value)
    return repr(value)


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict):
        yield from numbers_in([*value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from numbers_in(item)


def _demand(value: Any, hint: Any) -> str:
    """Return the end of the message for a value that msgspec refuses."""
    kind, limits, _ = _bare(hint)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            return f"must be {_or('a list', limits)}."
        item_kind, _, _ = _bare(get_args(kind)[0])
        if item_kind in _ENGLISH and not all(_fits(item, item_kind) for item in value):
            return f"must be {_ENGLISH[item_kind]}, each."
    elif get_origin(kind) is Literal:
        if not isinstance(value, str):
            return "must be text."
        return f"is not known{did_you_mean(value, get_args(kind))}"
    elif not _fits(value, kind):
        return f"must be {_ENGLISH[kind]}."
    if "must" in limits:
        return f"must {limits['must']}."
    interval = describe_range(hint)
    # A whole number is told the end that it lies beyond, not the whole interval.
    if kind is int:
        low, high = _ends(limits)
        interval = f"at least {low}" if value < low else f"at most {high}"
    verb = "lie" if interval.startswith("in ") else "be"
    return f"must {verb} {interval}."


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


# Cached: each change of a run asks for the limits of 80 settings.
@cache
def _bare(hint: Any) -> tuple[Any, Mapping[str, Any], str]:
    """Split a type into the bare type without None, its limits (also of `also`), and its help."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        kind, limits, help = _bare(inner)
        for note in notes:
            if isinstance(note, str):
                help = note
            else:
                limits = {**limits, **_find_limits(note)}
        return kind, limits, help
    # TYPE | None: None stands for a setting that is not given.
    if get_origin(hint) in (Union, types.UnionType):
        return _bare(get_args(hint)[0])
    return hint, {}, ""


def _find_limits(note: Meta) -> dict[str, Any]:
    limits = {"gt": note.gt, "ge": note.ge, "lt": note.lt, "le": note.le, **(note.extra or {})}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _ends(limits: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of the interval of a number."""
    low = limits.get("gt", limits.get("ge", -math.inf))
    high = limits.get("lt", limits.get("le", math.inf))
    return low, high


def _or(words: str, limits: Mapping[str, Any]) -> str:
    if "or" not in limits:
        return words
    return f"{words}, {limits['or']}"
