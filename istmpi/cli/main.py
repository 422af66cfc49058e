"""``istmpi``: finds the command, and turns an error into a message and an exit code."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import click

from istmpi import __version__, comm
from istmpi.errors import ConfigError, IstmpiError, OutputError, UserError, did_you_mean
from istmpi.foreign import exit_error, forbid_exit, one_line, past_a_limit
from istmpi.signals import SIGNALS

FOLDER = Path(__file__).parent / "commands"


@cache
def _command(name: str) -> click.Command:
    command = importlib.import_module(f"istmpi.cli.commands.{name}").command
    if command.callback:
        # A user's network or data that a command runs must not end it as click does.
        forbid = forbid_exit(click.exceptions.Exit, click.exceptions.Abort, EOFError)
        command.callback = forbid(command.callback)
    return command


class LazyGroup(click.Group):
    """Imports ``istmpi.cli.commands.NAME`` only when command NAME is used.

    Its short help is the file's first line.
    """

    def __init__(self, *args: Any, commands: Iterable[str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._names = list(commands)

    def list_commands(self, context: click.Context) -> list[str]:
        return self._names

    def _help(self) -> Iterator[tuple[str, str]]:
        for name in self._names:
            # Read, not imported: all imports together take seconds.
            with open(FOLDER / f"{name}.py", encoding="utf-8") as file:
                yield name, file.readline().strip('"\n')

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self._names:
            raise ConfigError(f"no command {name}{did_you_mean(name, self._names)}")
        return _command(name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help()))


COMMANDS = [
    "train*",
    "simulate",
    "compare*",
    "report",
    "runs",
    "settings",
    "demo",
    "costmodel",
    "measure*",
    "model",
    "prepare",
    "data",
    "checkpoint",
    "evaluate*",
    "predict",
    "export",
    "job",
    "doctor*",
]
"""The commands in the order of the help; a star marks those that run under mpirun."""
ON_RANKS = [name[:-1] for name in COMMANDS if name.endswith("*")]
ALONE = [name for name in COMMANDS if not name.endswith("*")]
WHERE = f"{', '.join(ON_RANKS)} run under mpirun; the others need no MPI."

COMPLETION = f"_{'istmpi'.upper()}_COMPLETE"  # by click's rule
"""The variable by which a shell asks for the words that may follow at Tab. A wrong word is no
message then."""

FOR_THE_LAUNCHER = 5.0
"""Seconds that a launcher has to end the job with the exit code of a lost rank."""

EXIT_CODES = """\b
Exit codes:
    0  done
    1  an internal error of istmpi
    2  invalid input
    3  the loss is no longer finite
   74  a result could not be written
   75  stopped early and saved; continue with train --resume auto
   76  a rank or its launcher did not respond; continue from the last checkpoint with train --resume auto
  130  interrupted"""

DOCUMENTATION = f"\b\nDocumentation of this version: {Path(__file__).parents[1] / 'docs'}"
"""The help's last line: the folder of this version's pages, in one line that can be copied."""


@click.group(
    cls=LazyGroup,
    commands=[name.rstrip("*") for name in COMMANDS],
    epilog=f"{WHERE}\n\n{EXIT_CODES}\n\n{DOCUMENTATION}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="istmpi")
def istmpi() -> None:
    """Train a PyTorch network on several machines that are joined by a slow network, over MPI."""


def _run_istmpi() -> object:
    return istmpi(prog_name="istmpi", standalone_mode=False)


def main(program: Callable[[], object] = _run_istmpi) -> NoReturn:
    """Run the program, and end this process with its exit code."""
    comm.announce(sys.argv[1:])
    _open_streams()
    if comm.read_launcher()[0] and _needs_no_ranks():
        # One rank's output is enough, and the others do the same.
        _to_nowhere(sys.stdout.fileno())
    code, together = _outcome(program)
    if code and not together:
        comm.abort_at_exit(code)
    elif code:
        # Keep the exit code: a second Ctrl-C, or a launcher's SIGTERM to ranks that leave late, may
        # come after Python has dropped its handlers and before MPI is done.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


class _Output(io.FileIO):
    """A standard stream that stays usable when the reader of its pipe has left."""

    def __init__(self, number: int, replaced: object):
        super().__init__(number, "w", closefd=False)
        # The old stream is kept, because it closes its file when it is freed.
        self.replaced = replaced

    # ``data`` is any buffer, for which typing has a name from Python 3.12 on.
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _to_nowhere(self.fileno())
            return memoryview(data).nbytes


def _open_streams() -> None:
    """Make standard output and error accept every character, and outlive a reader that leaves.

    A closed standard stream is opened to /dev/null, or the next file would get its descriptor.
    """
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        file = io.BufferedWriter(_Output(number, old))
        encoding = old and old.encoding
        by_lines = bool(old) and (old.line_buffering or old.write_through)
        stream = io.TextIOWrapper(file, encoding, "backslashreplace", line_buffering=by_lines)
        setattr(sys, name, stream)


def _to_nowhere(number: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _outcome(program: Callable[[], object]) -> tuple[int, bool]:
    """Run the program.

    Return its exit code, and True if every rank ends by itself, so that none must be aborted.
    """
    try:
        result = program()
        sys.stdout.flush()
        return int(result) if isinstance(result, int) else 0, True
    except click.exceptions.Abort:
        return 130, False
    except click.exceptions.NoArgsIsHelpError as error:
        # Once, not on each rank.
        if comm.read_launcher()[0] == 0:
            click.echo(error.ctx.get_help())
        return 0, True
    except click.ClickException as error:
        return _report(UserError(_describe(error)))
    except IstmpiError as error:
        return (1, True) if COMPLETION in os.environ else _report(error)
    except SystemExit as error:
        if COMPLETION in os.environ:  # click answers the shell, and ends the program itself
            return (error.code if isinstance(error.code, int) else 0), True
        end = exit_error(error)
        if end:
            return _report(end)
        code = error.code if isinstance(error.code, int) else 1
        return code or 1, False
    except KeyboardInterrupt:
        return 130, False
    except BaseException as error:
        return _report_unknown(error)


def _report_unknown(error: BaseException) -> tuple[int, bool]:
    """Print an exception that is no error of istmpi. Return as `_outcome` does."""
    refusal = _refusal_of_output(error)
    if refusal:
        _to_nowhere(sys.stdout.fileno())  # or Python tries again, and fails aloud
        return _report(refusal)
    limit = past_a_limit(error)
    if limit:
        return _report(limit)
    lost = comm.lost_connection(error)
    if lost:
        _say(f"istmpi: rank {comm.find_rank()}: {lost}")
        time.sleep(FOR_THE_LAUNCHER)
    else:
        _say(f"istmpi: rank {comm.find_rank()} failed:\n{traceback.format_exc()}")
    return 1, False


def _describe(error: click.ClickException) -> str:
    """Return the message of a wrong command line, with a cure."""
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        message = f"no option {error.option_name}{_find_cure(error)}"
    # Click's own hint has the word Help or help.
    if isinstance(error, click.UsageError) and error.ctx and "elp" not in message:
        message = f"{message} See: {error.ctx.command_path} --help"
    return message


def _find_cure(error: click.NoSuchOption) -> str:
    """Return what to use in place of an unknown option: another option, or a setting."""
    names = []
    if error.ctx:
        for option in error.ctx.command.params:
            names += option.opts
    long_names = [name[2:] for name in names if name.startswith("--")]
    near = did_you_mean(error.option_name[2:], long_names, "--")
    if "--set" in names:
        from istmpi.config import every_setting

        end = error.option_name.replace("--", ".").replace("-", "_")
        settings = []
        for setting in every_setting():
            if f".{setting.name}".endswith(end):
                settings.append(f"--set {setting.name}=VALUE")
        if settings:
            return f"; it is {' or '.join(settings)}."
    return near if near.endswith("?") else "."


def _refusal_of_output(error: BaseException) -> OutputError | None:
    """Return the error of a standard output that takes nothing more, if ``error`` came of it."""
    if not isinstance(error, OSError) or error.filename:
        return None
    try:
        # The error names no file; only another attempt shows whether the output is the cause.
        os.write(sys.stdout.fileno(), b"\n")
    except OSError as refusal:
        return OutputError(
            f"cannot write to standard output ({refusal.strerror}). Free space, or redirect it."
        )
    return None


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _needs_no_ranks() -> bool:
    if not {*ALONE}.isdisjoint(sys.argv[1:2]):
        return True
    return "--dry-run" in sys.argv


def _report(error: IstmpiError) -> tuple[int, bool]:
    """Print an error on rank 0 if all ranks have it, else on each that failed.

    Return as `_outcome` does.
    """
    alone = _needs_no_ranks()
    if not alone:
        error = comm.agree_on_error(error)
    rank = comm.find_rank()
    # A command that needs no ranks usually has one, so its message names none.
    if not error.everywhere and not (alone and rank == 0):
        _say(f"istmpi: rank {rank}: {one_line(error)}")
    elif rank == 0:
        _say(f"istmpi: {one_line(error)}")
    if error.everywhere:
        comm.final_barrier()
    return error.exit_code, error.everywhere
