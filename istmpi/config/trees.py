"""Turns a run's sections into trees of plain values, and back."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from istmpi.config.learner import OWN_SETTINGS, OwnModel


def plain(value: Any) -> Any:
    """Return a section, or a value of it, in the types of TOML."""
    if isinstance(value, OwnModel):
        return {
            **{name: getattr(value, name) for name in OWN_SETTINGS},
            **plain(dict(value.arguments)),
        }
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        items = ((item.name, getattr(value, item.name)) for item in dataclasses.fields(value))
        # TOML has no null: a setting that is None is left out.
        return {name: plain(item) for name, item in items if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a tree with their dotted names."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def separate_arguments(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of an `OwnModel` with its constructor's arguments under one key."""
    settings: dict[str, Any] = {}
    arguments = {}
    for key, value in section.items():
        if key in OWN_SETTINGS:
            settings[key] = value
        else:
            arguments[key] = value
    # The arguments last: they are checked for the network of this name.
    return {**settings, "arguments": arguments}
