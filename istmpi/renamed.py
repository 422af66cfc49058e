"""Old names of settings and commands, which still work with a warning; and settings that no longer exist."""

import warnings
from collections.abc import Mapping
from typing import Any

from istmpi.errors import ConfigError

SETTINGS = {"method.resample": "method.redeal"}
COMMANDS = {"calibrate": "measure"}
GONE = {
    "comm.survive": False,
    "comm.buddies": True,
    "method.shared_lr": 1.0,
    "method.shared_momentum": 0.0,
    "method.min_blocks": 0,
    "method.differences": "float4",
    "method.top_values": "2bit",
}
"""Settings that were removed, each with the only value that is still accepted: with it the setting did nothing."""

LEFT_OPEN = {"method.fragments": 4}
"""Settings that the versions with comm.survive wrote into every run. Now they are left out, and mean the same."""


class RenamedWarning(FutureWarning):
    """A warning that something has a new name."""


def tell(old: str, new: str, source: str = "") -> None:
    where = f"{source}: " if source else ""
    warnings.warn(f"{where}{old} is now {new}; the old name still works.", RenamedWarning, stacklevel=3)


def is_gone(name: str, value: Any, source: str) -> bool:
    """Return True for a setting that no longer exists. Raises ConfigError if its value did something."""
    if name in GONE and value != GONE[name]:
        raise ConfigError(f"{source}: {name} = {value!r} no longer exists. Leave it out.")
    return name in GONE


def current(tree: Mapping[str, Any], source: str, aloud: bool = True) -> dict[str, Any]:
    """Return settings under their new names. Raises ConfigError for one that is set twice or no longer exists."""
    gone = [name for name in GONE if (value := _value(tree, name)) is not None and is_gone(name, value, source)]
    if "comm.survive" in gone:
        gone += [name for name, default in LEFT_OPEN.items() if _value(tree, name) == default]
    tree = {
        section: {key: value for key, value in branch.items() if f"{section}.{key}" not in gone}
        if isinstance(branch, Mapping)
        else branch
        for section, branch in tree.items()
    }
    for old, new in SETTINGS.items():
        section, _, key = old.partition(".")
        branch = tree.get(section)
        if isinstance(branch, Mapping) and key in branch:
            name = new.partition(".")[2]
            if name in branch:
                raise ConfigError(f"{source}: {old} is the old name of {new}, which is also set. Leave one out.")
            tree[section] = {name if other == key else other: value for other, value in branch.items()}
            if aloud:
                tell(old, new, source)
    return tree


def _value(tree: Mapping[str, Any], name: str) -> Any:
    section, _, key = name.partition(".")
    branch = tree.get(section)
    return branch.get(key) if isinstance(branch, Mapping) else None
