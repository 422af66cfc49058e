"""A setting's type says all about it: values, range, a sentence of help. msgspec checks values against it.

    rounds: Annotated[int, Meta(ge=1, description="Rounds to train.")] = 30

What msgspec cannot say stands in ``extra``: ``at_most`` for bounds beyond 64 bits, ``at_most_bytes`` of a text,
``rising`` for a list in which each number is above the one before it, ``known`` for the names that a text may be, with
``or`` for what else it may be, and ``must`` for words that say a range better.
"""

import dataclasses
import math
import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from istmpi.errors import ConfigError, did_you_mean

__all__ = [
    "Meta",
    "checked",
    "choices_of",
    "help_of",
    "holds_text",
    "kind_of_value",
    "own",
    "range_of",
    "schema_of",
    "shown",
    "types_of",
]

MOST = 2**64
"""No number that is given for a setting is larger."""

_ENGLISH = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}

Field = tuple[str, Any, Any]
"""Name, type and default of a setting, as `dataclasses.make_dataclass` takes them."""


def own(name: str, kind: Any, default: Any, help: str, **limits: Any) -> Field:
    """A setting that its owner describes: ``own("epochs", int, 1, "Passes of a rank.", ge=1)``."""
    limited = Annotated[kind, Meta(**limits)] if limits else kind
    return name, Annotated[limited, Meta(description=help)], dataclasses.field(default=default)


@cache
def types_of(section: type) -> dict[str, Any]:
    """The types of a section's settings, by name."""
    return get_type_hints(section, include_extras=True)


def help_of(hint: Any) -> str:
    """The sentence of help that a setting's type has."""
    _, metas = _bare(hint)
    return next((meta.description for meta in metas if meta.description), "")


def holds_text(hint: Any) -> bool:
    """Whether a setting of this type is a text, in any words or in some."""
    kind, _ = _bare(hint)
    return kind is str or get_origin(kind) is Literal


def choices_of(hint: Any) -> tuple[str, ...]:
    """The names that a setting of this type may be; none where it is no choice among names."""
    kind, metas = _bare(hint)
    if kind is bool:
        return "true", "false"
    return get_args(kind) if get_origin(kind) is Literal else tuple(_extra(metas, "known", ()))


def kind_of_value(hint: Any, several: bool = False) -> str:
    """What a value of this type is, in words: ``list of whole numbers``."""
    kind, metas = _bare(hint)
    if get_origin(kind) is tuple:
        first, *others = get_args(kind)
        if others == [...]:
            other = _extra(metas, "or")
            return f"list{'s' * several} of {kind_of_value(first, several=True)}{f', {other}' if other else ''}"
        return f"[{', '.join(map(kind_of_value, (first, *others)))}]"
    if kind is bool:
        return "true or false"
    words = {int: "whole number", float: "number"}.get(kind, "text")
    return words + "s" * several


def schema_of(hint: Any, default: Any = None) -> dict[str, Any]:
    """JSON Schema (draft 7, as editors of TOML read it) of a setting's values."""
    schema = _draft_7(msgspec.json.schema(hint))
    _, metas = _bare(hint)
    if schema.get("type") != "boolean" and (names := choices_of(hint)):
        schema |= {"examples": [*names]} if _extra(metas, "or") else {"enum": [*names]}
    if (most := _extra(metas, "at_most")) is not None:
        schema["maximum"] = most
    if default is not None:
        schema["default"] = default
    return schema


def _draft_7(node: Any) -> Any:
    """A schema of msgspec's, without null, which TOML has not, and with tuples as draft 7 has them."""
    if isinstance(node, list):
        return [_draft_7(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _draft_7(value) for key, value in node.items()}
    if "prefixItems" in node:
        node |= {"items": node.pop("prefixItems"), "additionalItems": False}
    if "anyOf" in node:
        kinds = [item for item in node.pop("anyOf") if item != {"type": "null"}]
        node = {**kinds[0], **node} if len(kinds) == 1 else {"anyOf": kinds, **node}
    return node


def range_of(hint: Any) -> str:
    """Which values a setting of this type may have, in words; empty for any of its kind."""
    kind, metas = _bare(hint)
    if choices := choices_of(hint):
        return " | ".join(filter(None, [*choices, _extra(metas, "or")]))
    if get_origin(kind) is tuple:
        return range_of(get_args(kind)[0])
    low, high, (left, right) = _interval(metas)
    if high < math.inf or left == "(":
        return f"in {left}{low}, {high}{right}"
    return f"at least {low}" if low > -math.inf else ""


def checked(value: Any, hint: Any, name: str, source: str) -> Any:
    """The value of a setting, as its type has it: whole numbers serve as numbers, lists as tuples.

    ConfigError tells ``source``, the setting's ``name``, its value and what it must be.
    """
    where = f"{source}: {name} = {shown(value)}"
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(part, int) and abs(part) > MOST for part in parts):
        raise ConfigError(f"{where} must lie between -2^64 and 2^64.")
    try:
        converted = msgspec.convert(value, hint)
    except msgspec.ValidationError:
        raise ConfigError(f"{where} {_demand(value, hint)}") from None
    for part in (*parts, *numbers_in(value)):
        if isinstance(part, str) and not part.isprintable():
            raise ConfigError(f"{where} must be a text of signs that can be printed.")
        if isinstance(part, float) and not math.isfinite(part):
            limits = range_of(hint)
            raise ConfigError(f"{where} must {f'lie {limits}' if limits.startswith('in ') else 'be finite'}.")
    _, metas = _bare(hint)
    if converted is not None and converted > _extra(metas, "at_most", converted):
        raise ConfigError(f"{where} must be at most {_extra(metas, 'at_most')}.")
    too_long = isinstance(converted, str) and len(converted.encode()) > _extra(metas, "at_most_bytes", math.inf)
    rising = not _extra(metas, "rising") or all(one < other for one, other in zip(converted, converted[1:]))
    if too_long or not rising:
        raise ConfigError(f"{where} must {_extra(metas, 'must')}.")
    return converted


def shown(value: Any) -> str:
    """A value as a message shows it: an integer of thousands of digits has no decimals that Python would write."""
    return hex(value) if isinstance(value, int) and abs(value) > MOST else repr(value)


def numbers_in(value: Any) -> Iterator[float]:
    """All numbers in a value as TOML has it, lists and tables included."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(item)


def _demand(value: Any, hint: Any) -> str:
    """What a value that its type refuses must be."""
    kind, metas = _bare(hint)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            other = _extra(metas, "or")
            return f"must be a list{f', {other}' if other else ''}."
        of, _ = _bare(get_args(kind)[0])
        wrong = [item for item in value if not _fits(item, of)]
        if wrong and of in _ENGLISH:
            return f"must be {_ENGLISH[of]}, each."
    elif get_origin(kind) is Literal:
        return f"is not known{did_you_mean(value, get_args(kind))}" if isinstance(value, str) else "must be a text."
    elif not _fits(value, kind):
        return f"must be {_ENGLISH[kind]}."
    words = _extra(metas, "must")
    if words:
        return f"must {words}."
    limits = range_of(hint)
    if kind is int:
        low, high, _ = _interval(metas)
        limits = f"at least {low}" if value < low else f"at most {high}"
    return f"must {'lie' if limits.startswith('in ') else 'be'} {limits}."


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _bare(hint: Any) -> tuple[Any, list[Meta]]:
    """A type without what is said of it, and without None; and all that is said."""
    if get_origin(hint) is Annotated:
        inner, *metas = get_args(hint)
        kind, more = _bare(inner)
        return kind, [*metas, *more]
    if get_origin(hint) in (Union, types.UnionType):
        return _bare(get_args(hint)[0])
    return hint, []


def _interval(metas: list[Meta]) -> tuple[float, float, str]:
    said = {name: getattr(meta, name) for meta in metas for name in ("gt", "ge", "lt", "le") if _says(meta, name)}
    low, high = said.get("gt", said.get("ge", -math.inf)), said.get("lt", said.get("le", math.inf))
    return low, high, ("(" if "gt" in said else "[") + ("]" if "le" in said else ")")


def _says(meta: Meta, name: str) -> bool:
    return getattr(meta, name) is not None


def _extra(metas: list[Meta], key: str, default: Any = None) -> Any:
    return next((meta.extra[key] for meta in metas if key in (meta.extra or {})), default)
