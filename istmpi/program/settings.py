"""The settings of a run as the arguments of `istmpi.Distributed`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from istmpi.config import Run
from istmpi.errors import ConfigError, IstmpiError, did_you_mean
from istmpi.settings import types_of

SECTIONS = ("method", "optimizer", "train", "checkpoint", "comm", "model")
"""The sections whose settings are arguments."""
PARTS = {
    "train": ("seed", "max_minutes", "device", "threads", "init", "init_names"),
    "model": ("dtype", "scale", "init"),
}
"""The only settings of some sections that are arguments."""


IN_PYTHON = {
    r"--out (\S+?):": r"folder = \1:",
    r"--resume auto": "resume='auto'",
    r"--resume (\S+?):": r"resume = \1:",
    r"--method (\S+?)([ ;.,)]|$)": r'method="\1"\2',
    r"--set (?:model|method|optimizer|train)\.(\w+)=": r"\1=",
    r"a new --out": "a new folder",
}
"""Options of the command line in messages, and the arguments that a program has for them."""


@contextmanager
def in_python() -> Iterator[None]:
    """Errors that are raised within name arguments of a program in place of options."""
    try:
        yield
    except IstmpiError as error:
        text = str(error)
        for option, argument in IN_PYTHON.items():
            text = re.sub(option, argument, text)
        error.args = (text,)
        raise


def dotted(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings that arguments mean, by their dotted names; ConfigError for unknown ones."""
    places = dict(_settings())
    for name, value in given.items():
        if name not in places:
            raise ConfigError(f"Distributed: unknown argument {name}{did_you_mean(name, places)}")
        yield places[name], value


def _settings() -> Iterator[tuple[str, str]]:
    """Yield arguments with their settings; of two sections with one, the first has the bare name."""
    for section in reversed(SECTIONS):
        for name in PARTS.get(section) or types_of(types_of(Run)[section]):
            if name not in ("name", "state"):
                yield name, f"{section}.{name}"
                yield f"{section}_{name}", f"{section}.{name}"
    yield from (("method", "method.name"), ("optimizer", "optimizer.name"))
