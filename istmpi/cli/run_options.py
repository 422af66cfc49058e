"""Command-line options that set a run, show it and stop it."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from istmpi import __version__
from istmpi.cli.completion import complete_names, complete_run, complete_setting
from istmpi.cli.options import flag, real, text
from istmpi.comm import read_launcher
from istmpi.config import Run, every_setting, shipped, type_of
from istmpi.errors import ConfigError
from istmpi.foreign import is_file, toml_value
from istmpi.loggers import LOGGERS, open_loggers, require_installed
from istmpi.methods import limits
from istmpi.names import is_module
from istmpi.optim import schedules
from istmpi.record import SETTINGS, find_run
from istmpi.settings import describe_range, find_help, holds_text, holds_texts, list_choices

if TYPE_CHECKING:
    from istmpi.comm import Communicator
    from istmpi.training.watch import Watch

OF_A_PROGRAM = "{rank}"
"""The data.source of a run of `istmpi.Distributed`."""
OPTIONS = {
    "--data": ("data.source", "FILE"),
    "--test": ("data.test", "FRACTION"),
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
    "--epochs": ("train.epochs", "N"),
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
    "--threads": ("train.threads", "N|auto"),
    "--group-size": ("train.group_size", "N|host"),
    "--out": ("output.folder", "FOLDER"),
}

COST_NOTHING = (
    "--out --evaluate-every --rounds --epochs --max-minutes --seed --lr --warm-up --finish --init "
    "--group-size"
)
"""Options that change no cost, which commands of planning lack."""

_NAMES = re.compile(r"\[? *\w[\w.-]*( *, *\w[\w.-]*)* *\]?")
"""A list of names without quotes."""
DEFAULT = "digits"
run_argument = click.argument("run", required=False, shell_complete=complete_run)


def options(command: Callable, without: Collection[str] = ()) -> Callable:
    """Decorate a click command with the options that change a run. `resolve` takes their values."""
    assign = click.option(
        "--set",
        "assignments",
        metavar="A.B=VALUE",
        help="Any other setting (list: istmpi settings).",
        multiple=True,
        shell_complete=complete_names,
    )
    command = assign(command)
    # The decorator that comes last is first in the help.
    for option, (setting, metavar) in reversed(OPTIONS.items()):
        if option not in without:
            command = click.option(
                option,
                metavar=metavar,
                help=_help(setting),
                shell_complete=complete_setting(setting),
            )(command)
    return command


def _help(setting: str) -> str:
    hint = type_of(setting)
    default = _defaults()[setting]
    text = find_help(hint)
    if list_choices(hint):
        text += f"  [{describe_range(hint)}]"
    # Some help texts say the default in words.
    if default in (None, "", ()) or "by default" in text:
        return text
    if isinstance(default, tuple | list):
        default = ",".join(map(str, default))
    return f"{text}  [default: {default}]"


@cache
def _defaults() -> dict[str, Any]:
    # A setting of several networks has the default of the first, so the last is written first.
    defaults = {setting.name: setting.default for setting in reversed([*every_setting()])}
    return defaults | Run.load(DEFAULT).flat()


def add_planning_options(command: Callable) -> Callable:
    """Decorate a click command with --layers and the options that change a run's costs."""
    layers = text(
        "--layers", "N-N-...", "Features, hidden widths and labels, instead of reading data."
    )
    return layers(options(command, COST_NOTHING.split()))


def resolve(
    run: str | None,
    assignments: Sequence[str],
    options: Mapping[str, str | None],
    refused: Mapping[str, str] | None = None,
    methods: Sequence[str] = (),
) -> Run:
    """Return the run that a command line describes.

    Raises ConfigError for a wrong setting, for a setting in ``refused``, whose value is the option
    to use instead, and for a setting that no method of ``methods`` reads, by default the run's. A
    method of the command line drops the run's settings that only other methods read.
    """
    run = run or DEFAULT
    loaded = Run.load(run)
    changed = changes(assignments, options, loaded.model.name)
    for setting, option in (refused or {}).items():
        if setting in changed:
            raise ConfigError(f"--set {setting}: this command sets it; use {option}.")
    if loaded.data.source == OF_A_PROGRAM and "data.source" not in changed:
        raise _refuse_program(run, loaded.model.name)
    if "method.name" in changed:
        loaded = limits.with_method(loaded, changed["method.name"])
    # A file of each rank has {rank} in its name, which the run's name leaves out.
    name = PurePath(changed.get("data.source", "")).stem.replace("{rank}", "").strip("-_. ")
    if name and run in shipped():
        # A shipped run on other data is another run, and gets another folder.
        changed = {"name": name, **changed}
    resolved = loaded.override(changed)
    _require_effect(resolved, loaded, changed, Path(run).is_dir(), methods)
    return resolved


def _refuse_program(run: str, network: str) -> ConfigError:
    """Return the error for the folder of a run of `istmpi.Distributed`."""
    file, _, _ = network.rpartition(":")
    program = "PROGRAM.py"
    where = ""
    if file.endswith(".py"):
        # The network's class is as a rule in the program itself.
        program = file
        where = " (or the program that imports this file)"
    return ConfigError(
        f"{run} is a run of a program, whose data and loop are in its code. Start the program "
        f"again: mpirun -n P python {program}{where}, with resume='auto' in job.rounds."
    )


def _require_effect(
    resolved: Run, loaded: Run, changed: Mapping[str, Any], is_saved: bool, methods: Sequence[str]
) -> None:
    """Raise ConfigError for a setting without an effect; a saved run may have such settings."""
    if resolved.optimizer != loaded.optimizer or not is_saved:
        schedules.require_effective(resolved.optimizer)
    if is_saved:
        settings = {name.removeprefix("method.") for name in changed if name.startswith("method.")}
    else:
        settings = {entry.name for entry in fields(resolved.method)}
    limits.require_read(resolved, settings, methods)


def run_and_folder(run: str | None, resume: str) -> tuple[str | None, str, str | None]:
    """Return the run, the checkpoint to resume from, and the folder of a run that is resumed."""
    if run and is_file(Path(run) / SETTINGS):
        return run, resume or "auto", run
    if not run and resume not in ("", "auto"):
        folder = find_run(Path(resume))
        if is_file(folder / SETTINGS):
            return str(folder), resume, str(folder)
    return run, resume, None


def changes(
    assignments: Sequence[str], options: Mapping[str, str | None], model: str = "mlp"
) -> dict[str, Any]:
    """Return the settings that a command line changes, with their values."""
    typed = []
    for option, (setting, _) in OPTIONS.items():
        value = options.get(option.lstrip("-").replace("-", "_"))
        if value is not None:
            typed.append((option, setting, value))
    for setting, value in read_assignments(assignments):
        typed.append((f"--set {setting}", setting, value))
    # The network decides how its settings are read, so it is read first.
    for option, setting, value in typed:
        if setting == "model.name":
            model = _read(option, setting, value, model)
    read: dict[str, Any] = {}
    first: dict[str, str] = {}
    for option, setting, value in typed:
        shown = f"{option} {value}"
        if option.startswith("--set "):
            shown = f"{option}={value}"
        read_value = _read(option, setting, value, model)
        if read.setdefault(setting, read_value) != read_value:
            raise ConfigError(f"{first[setting]} and {shown} both set {setting}. Leave one out.")
        first[setting] = shown
    return read


def read_assignments(
    assignments: Sequence[str], option: str = "--set"
) -> Iterator[tuple[str, str]]:
    """Yield the settings in texts A.B=VALUE, and the texts of their values."""
    for assignment in assignments:
        setting, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(
                f"{option} {assignment} must be SECTION.KEY=VALUE, such as model.norm=layer."
            )
        yield setting.strip(), value.strip()


def _read(option: str, setting: str, text: str, model: str) -> Any:
    """Return an option's text as a run file's value: a number, a list or a text.

    Brackets and quotes are optional.
    """
    quoted = text.startswith(("'", '"'))
    hint = type_of(setting, model)
    if holds_text(hint) and not quoted:
        return text
    if holds_texts(hint):
        return _read_texts(option, text)
    # A run file has 0 for these words.
    if (setting, text) in (("train.threads", "auto"), ("train.group_size", "host")):
        return 0
    is_list = setting == "method.shares"
    if setting == "model.hidden":
        # A network of the user's may have a single width of this name.
        is_list = "," in text or not is_module(model)
    listed = text
    if is_list and not quoted and not text.startswith("["):
        listed = f"[{text}]"
    try:
        return toml_value(listed)
    except ValueError:
        # Shares may also be a word or a file.
        is_word = setting == "method.shares" and any(map(str.isalpha, text))
        if listed.startswith("[") and not is_word:
            raise ConfigError(
                f"{option} {listed.strip('[]')} must be numbers separated by commas."
            ) from None
        return text


def _read_texts(option: str, text: str) -> Any:
    # A shell takes the quotes out of ["blocks3"].
    if _NAMES.fullmatch(text):
        return text.strip("[] ").replace(" ", "").split(",")
    try:
        return toml_value(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text} must be a list of texts, which the shell must not change. Put it "
            """between single quotes: '["...", "..."]'."""
        ) from None


@dataclass(frozen=True)
class Showing:
    progress: str | None = None
    """bar, lines or none. None means a bar on a terminal and lines elsewhere."""
    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    """Print the outcome as JSON, and everything else to standard error."""
    since: float = field(default_factory=time.monotonic, compare=False)
    """The time when the command began, in seconds of the monotonic clock."""

    def begins(self, work: str) -> None:
        """Say on rank 0 that a command begins its work: imports may take a minute."""
        rank, ranks = read_launcher()
        if rank != 0 or self.quiet:
            return
        # A rank may be a group of processes, which only the settings tell.
        words = f"{ranks:,} processes"
        if ranks == 1:
            words = "1 process"
        tasks = os.environ.get("SLURM_NTASKS", "1")
        if ranks == 1 and tasks != "1":
            words += f" of this SLURM job's {tasks} tasks (srun or mpirun starts all)"
        text = f"istmpi {__version__} {work} on {words}: loading MPI, PyTorch and the data"
        click.echo(text, err=self.as_json)
        sys.stdout.flush()


def add_display_options(command: Callable) -> Callable:
    """Decorate a click command with --progress, -q, -v and --json, which it gets as ``shown``."""

    @click.option(
        "--progress",
        type=click.Choice(("bar", "lines", "none")),
        metavar="bar|lines|none",
        help="Progress display.  [default: bar on a terminal, otherwise lines]",
    )
    @click.option("-q", "--quiet", is_flag=True, help="Print only errors and warnings.")
    @click.option(
        "-v", "--verbose", is_flag=True, help="Print a line for every round, with all figures."
    )
    @flag("--json", "Print the result as JSON, other output to standard error.")
    @wraps(command)
    def shown(
        progress: str | None, quiet: bool, verbose: bool, as_json: bool, **parameters: object
    ) -> object:
        return command(shown=Showing(progress, quiet, verbose, as_json), **parameters)

    return shown


def _check_installed(
    context: click.Context, option: click.Parameter, names: Sequence[str]
) -> Sequence[str]:
    if read_launcher()[0] == 0:  # only rank 0 logs
        require_installed(names)
    return names


def add_watch_options(command: Callable) -> Callable:
    """Decorate a click command with --stop-before-walltime, --log and those of
    `add_display_options`."""
    logging = text(
        "--log",
        "NAME",
        f"Also log each round to another program; may be repeated.  [{' | '.join(LOGGERS)}]",
        type=click.Choice(list(LOGGERS)),
        multiple=True,
        callback=_check_installed,
    )
    help = "Save and stop this long before the SLURM job's time limit."
    return real("--stop-before-walltime", "MINUTES", help, 0, 1e6)(
        logging(add_display_options(command))
    )


def open_watches(
    communicator: Communicator, stop_before_walltime: float | None, log: Sequence[str]
) -> tuple[float | None, dict[str, Watch]]:
    """Return the time at which a run must stop, and its loggers; rank 0 alone has them."""
    from istmpi.comm.stopping import end_of_job

    if communicator.rank:
        return None, {}
    stop_at = None
    if stop_before_walltime is not None:
        # Unix time in seconds; the option is in minutes.
        stop_at = end_of_job() - 60 * stop_before_walltime
    return stop_at, open_loggers(log)
