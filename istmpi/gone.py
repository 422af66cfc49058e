"""Settings of older checkpoints that no longer exist. A value that had no effect is accepted."""

from collections.abc import Mapping
from typing import Any

from istmpi.errors import ConfigError

GONE = {
    "comm.survive": False,
    "comm.buddies": True,
    "method.shared_lr": 1.0,
    "method.shared_momentum": 0.0,
    "method.min_blocks": 0,
    "method.differences": "float4",
    "method.top_values": "2bit",
}
"""The removed settings, each with the only value that had no effect, and is still accepted."""

LEFT_OPEN = {"method.fragments": 4}
"""Settings that versions with comm.survive wrote into every run.

A run without these values means the same.
"""


def is_gone(name: str, value: Any, source: str) -> bool:
    """Return True for a setting that no longer exists.

    Raises ConfigError if its value had an effect.
    """
    if name in GONE and value != GONE[name]:
        raise ConfigError(f"{source}: {name} = {value!r} no longer exists. Leave it out.")
    return name in GONE


def drop_gone(tree: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a tree without removed settings.

    Raises ConfigError if a removed setting had an effect.
    """
    gone = set()
    for name in GONE:
        value = _value(tree, name)
        if value is not None and is_gone(name, value, source):
            gone.add(name)
    # Only a file of those versions has it: another run without the value means something else.
    if "comm.survive" in gone:
        for name, default in LEFT_OPEN.items():
            if _value(tree, name) == default:
                gone.add(name)
    if _value(tree, "data.test") == 0:  # once the default
        gone.add("data.test")
    kept = {}
    for section, branch in tree.items():
        if isinstance(branch, Mapping):
            branch = {key: branch[key] for key in branch if f"{section}.{key}" not in gone}
        kept[section] = branch
    return kept


def _value(tree: Mapping[str, Any], name: str) -> Any:
    section, _, key = name.partition(".")
    branch = tree.get(section)
    if not isinstance(branch, Mapping):
        return None
    return branch.get(key)
