"""The old spellings of settings and commands that still work; whoever types one is told the new one."""

import warnings
from collections.abc import Mapping
from typing import Any

from istmpi.errors import ConfigError

SETTINGS = {"method.resample": "method.redeal"}
COMMANDS = {"calibrate": "measure"}


class RenamedWarning(FutureWarning):
    """A warning that something has a new name."""


def tell(old: str, new: str, source: str = "") -> None:
    """Warn that ``old``, which stands in ``source``, is now ``new``."""
    where = f"{source}: " if source else ""
    warnings.warn(f"{where}{old} is now {new}; the old name still works.", RenamedWarning, stacklevel=3)


def current(tree: Mapping[str, Any], source: str, aloud: bool = True) -> dict[str, Any]:
    """A tree of settings by their new names; ConfigError where one stands in it by both."""
    tree = dict(tree)
    for old, new in SETTINGS.items():
        section, _, key = old.partition(".")
        branch = tree.get(section)
        if isinstance(branch, Mapping) and key in branch:
            name = new.partition(".")[2]
            if name in branch:
                raise ConfigError(f"{source}: {old} is the old name of {new}, and both are there. Leave one out.")
            tree[section] = {name if other == key else other: value for other, value in branch.items()}
            if aloud:
                tell(old, new, source)
    return tree
