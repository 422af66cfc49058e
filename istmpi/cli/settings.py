"""The options that set a run: those that people change all the time by their own names, the rest by --set."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import PurePath
from typing import Any

import click

from istmpi.cli.completion import complete_assignment, complete_values
from istmpi.config import Run, every_setting, shipped, type_of
from istmpi.errors import ConfigError
from istmpi.foreign import toml_value
from istmpi.names import is_module
from istmpi.settings import choices_of, help_of, holds_text, range_of

OPTIONS = {
    "--data": ("data.source", "FILE"),
    "--model": ("model.name", "NAME"),
    "--hidden": ("model.hidden", "N,N,..."),
    "--method": ("method.name", "NAME"),
    "--local-steps": ("method.local_steps", "J"),
    "--optimizer-state": ("method.optimizer_state", "NAME"),
    "--outer-momentum": ("method.outer_momentum", "M"),
    "--finish": ("method.finish", "NAME:SHARE%"),
    "--redeal": ("method.redeal", "FRACTION"),
    "--shares": ("method.shares", "S,S,...|auto|FILE"),
    "--rounds": ("train.rounds", "N"),
    "--max-minutes": ("train.max_minutes", "M"),
    "--batch": ("train.batch", "N"),
    "--lr": ("optimizer.lr", "LR"),
    "--warm-up": ("optimizer.warm_up", "N"),
    "--schedule": ("optimizer.schedule", "NAME"),
    "--optimizer": ("optimizer.name", "NAME"),
    "--seed": ("train.seed", "N"),
    "--init": ("train.init", "FILE"),
    "--evaluate-every": ("evaluate.every", "N"),
    "--checkpoint-every": ("checkpoint.every", "N"),
    "--keep": ("checkpoint.keep", "N"),
    "--writer": ("checkpoint.writer", "NAME"),
    "--threads": ("train.threads", "N|auto"),
    "--out": ("output.folder", "FOLDER"),
}
"""The setting of each, and what its value is called in help."""


def options(command: Callable, without: Collection[str] = ()) -> Callable:
    """Decorate a click command with the options that change a run; it receives them as `resolve` takes them."""
    assigning = {"metavar": "A.B=VALUE", "help": "Any other setting: istmpi settings.", "multiple": True}
    command = click.option("--set", "assignments", shell_complete=complete_assignment, **assigning)(command)
    for option, (setting, metavar) in reversed(OPTIONS.items()):
        if option not in without:
            shown = {"metavar": metavar, "help": _help(setting)}
            command = click.option(option, shell_complete=complete_values(setting), **shown)(command)
    return command


def _help(setting: str) -> str:
    """What a setting is, the names of a choice, and its default where that is a number or a word."""
    hint = type_of(setting)
    said, default = help_of(hint), _defaults()[setting]
    if names := range_of(hint) if choices_of(hint) else "":
        said += f"  [{names}]"
    if default is None or default == "" or default == () or "by default" in said:
        return said
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{said}  [default: {shown}]"


@cache
def _defaults() -> dict[str, Any]:
    return {one.name: one.default for one in reversed([*every_setting()])}


def planning(command: Callable) -> Callable:
    """Decorate a click command that trains nothing with the options that change a run's cost, and with --layers."""
    without = (
        "--out",
        "--evaluate-every",
        "--rounds",
        "--max-minutes",
        "--seed",
        "--lr",
        "--warm-up",
        "--finish",
        "--init",
    )
    command = options(command, without)
    help = "Features, hidden widths and labels, instead of reading data."
    return click.option("--layers", metavar="N-N-...", help=help)(command)


def resolve(
    run: str, assignments: tuple[str, ...], options: dict[str, str | None], refused: Mapping[str, str] | None = None
) -> Run:
    """The run that a command line describes; ConfigError names the option.

    A run that ships with istmpi is named after the data that it is given. ``refused``: settings that the command sets
    itself, each with the option that does it.
    """
    loaded = Run.load(run)
    changed = changes(assignments, options, loaded.model.name)
    for setting, option in (refused or {}).items():
        if setting in changed:
            raise ConfigError(f"--set {setting}: this command sets it itself; use {option}.")
    if run in shipped() and "data.source" in changed and (name := _name_of(changed["data.source"])):
        changed = {"name": name, **changed}
    return loaded.override(changed)


def _name_of(source: str) -> str:
    return PurePath(source).stem.replace("{rank}", "").strip("-_. ")


def changes(assignments: tuple[str, ...], options: dict[str, str | None], model: str = "mlp") -> dict[str, Any]:
    """What a command line changes in a run whose network is ``model``: ``{"method.local_steps": 20}``."""
    typed = []
    for option, (setting, _) in OPTIONS.items():
        given = options.get(_parameter(option))
        if given is not None:
            typed.append((option, setting, given))
    typed += [(f"--set {setting}", setting, value) for setting, value in assigned(assignments)]
    for option, setting, text in typed:
        model = _read(option, setting, text, model) if setting == "model.name" else model
    return {setting: _read(option, setting, text, model) for option, setting, text in typed}


def _parameter(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def assigned(assignments: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each setting that ``--set SECTION.KEY=VALUE`` names, and its value as it was typed."""
    for assignment in assignments:
        setting, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: must be SECTION.KEY=VALUE, as in --set model.norm=layer.")
        yield setting.strip(), value.strip()


def _read(option: str, setting: str, text: str, model: str) -> Any:
    """A value as the run file would have it: numbers, lists with or without brackets, texts with or without quotes.

    Of a network of one's own (``model``) a single number is one, for nobody knows which of its arguments are lists.
    """
    if holds_text(type_of(setting, model)) and not text.startswith(("'", '"')):
        return text
    if setting == "train.threads" and text == "auto":
        return 0
    given = text
    is_list = setting == "method.shares" or (setting == "model.hidden" and ("," in text or not is_module(model)))
    if is_list and not text.startswith(("[", "'", '"')):
        text = f"[{text}]"
    try:
        return toml_value(text)
    except ValueError:
        if setting == "method.shares" and any(sign.isalpha() for sign in given):
            return given
        if text.startswith("["):
            raise ConfigError(f"{option} {text.strip('[]')}: must be numbers with commas between them.") from None
        return text
