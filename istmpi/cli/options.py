"""Kinds of options of commands, and the options that several commands share."""

from collections.abc import Callable
from typing import Any

import click

from istmpi.cli.quantities import MOST_WHOLE, FiniteRange, WholeRange

Decorator = Callable[[Callable], Callable]


def flag(name: str, help: str) -> Decorator:
    names = [name, "as_json"] if name == "--json" else [name]
    return click.option(*names, is_flag=True, help=help)


def text(name: str, metavar: str, help: str, **settings: Any) -> Decorator:
    return click.option(name, metavar=metavar, help=help, show_default=bool(settings.get("default")), **settings)


def whole(
    name: str, metavar: str, help: str, least: int | None = None, largest: int = MOST_WHOLE, **settings: Any
) -> Decorator:
    return text(name, metavar, help, type=WholeRange(least, largest), **settings)


def real(
    name: str, metavar: str, help: str, least: float | None = None, largest: float | None = None, **settings: Any
) -> Decorator:
    return text(name, metavar, help, type=FiniteRange(least, largest), **settings)


as_json = flag("--json", "Print JSON for other programs.")
force = flag("--force", "Replace the file if it exists.")
own_class = text("--model", "FILE.py:Class", "The class of your own network; its code is run.")
calibrate_on = text("--calibrate-on", "DATA", "Data for calibration, where it is needed: those of CKPT's training.")
