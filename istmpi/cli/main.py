"""``istmpi``: finds the command, and turns an error that ends it into a message and an exit
code."""

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
from typing import NoReturn

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
        command.callback = forbid_exit(click.exceptions.Exit, click.exceptions.Abort, EOFError)(
            command.callback
        )
    return command


class LazyGroup(click.Group):
    """Imports ``istmpi.cli.commands.NAME`` only when command NAME is used. Its short help is the
    file's first line."""

    def __init__(self, *args, commands: Iterable[str], **settings):
        super().__init__(*args, **settings)
        self._names = list(commands)

    def list_commands(self, context: click.Context) -> list[str]:
        return self._names

    def _help(self) -> Iterator[tuple[str, str]]:
        for name in self._names:
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
    epilog=f"{', '.join(ON_RANKS)} run under mpirun; the others need no MPI.\n\n{EXIT_CODES}\n\n{DOCUMENTATION}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="istmpi")
def istmpi() -> None:
    """Train a PyTorch network on several machines that are joined by a slow network, over MPI."""


def main(
    program: Callable[[], object] = lambda: istmpi(prog_name="istmpi", standalone_mode=False),
) -> NoReturn:
    comm.announce(sys.argv[1:])
    _open_streams()
    if comm.launched()[0] and _needs_no_ranks():
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

    def write(self, data: bytes) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _to_nowhere(self.fileno())
            return len(data)


def _open_streams() -> None:
    """Make standard output and error accept every character, and outlive a reader that leaves.

    A closed standard stream is opened to /dev/null, or the next file would get its descriptor.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for number, name in enumerate(("stdout", "stderr"), 1):
        old, output = getattr(sys, name), _Output(number, "w", closefd=False)
        output.replaced, file = (
            old,
            io.BufferedWriter(output),
        )  # keep the old stream: it closes its file when freed
        by_lines = bool(old) and (old.line_buffering or old.write_through)
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                file, old and old.encoding, "backslashreplace", line_buffering=by_lines
            ),
        )


def _to_nowhere(number: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _outcome(program: Callable[[], object]) -> tuple[int, bool]:
    """Run the program. Return its exit code, and True if every rank ends by itself, so that none
    must be aborted."""
    try:
        code = int(program() or 0)
        sys.stdout.flush()
        return code, True
    except click.exceptions.Abort:
        return 130, False
    except click.exceptions.NoArgsIsHelpError as error:
        if comm.launched()[0] == 0:
            click.echo(error.ctx.get_help())
        return 0, True
    except click.ClickException as error:
        return _report(UserError(_plainly(error)))
    except IstmpiError as error:
        return _report(error)
    except SystemExit as error:
        if end := exit_error(error):
            return _report(end)
        return error.code or 1, False
    except KeyboardInterrupt:
        return 130, False
    except BaseException as error:
        if refusal := _refusal_of_output(error):
            _to_nowhere(sys.stdout.fileno())  # or Python tries again, and fails aloud
            return _report(refusal)
        if limit := past_a_limit(error):
            return _report(limit)
        lost = comm.lost_connection(error)
        what = f": {lost}" if lost else f" failed:\n{traceback.format_exc()}"
        _say(f"istmpi: rank {comm.current_rank()}{what}")
        if lost:
            time.sleep(FOR_THE_LAUNCHER)
        return 1, False


def _plainly(error: click.ClickException) -> str:
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        names = (
            [name for option in error.ctx.command.params for name in option.opts]
            if error.ctx
            else []
        )
        near = did_you_mean(
            error.option_name[2:], [name[2:] for name in names if name.startswith("--")], "--"
        )
        cure = near if near.endswith("?") else "."
        if "--set" in names:
            from istmpi.config import every_setting

            end = error.option_name.replace("--", ".").replace("-", "_")
            settings = [
                f"--set {each.name}=VALUE"
                for each in every_setting()
                if f".{each.name}".endswith(end)
            ]
            cure = f"; it is {' or '.join(settings)}." if settings else cure
        message = f"no option {error.option_name}{cure}"
    if isinstance(error, click.UsageError) and error.ctx and "elp" not in message:
        message = f"{message} See: {error.ctx.command_path} --help"
    return message


def _refusal_of_output(error: BaseException) -> OutputError | None:
    if not isinstance(error, OSError) or error.filename:
        return None
    try:
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
    return not {*ALONE}.isdisjoint(sys.argv[1:2]) or "--dry-run" in sys.argv


def _report(error: IstmpiError) -> tuple[int, bool]:
    """Print an error on rank 0 if all ranks have it, else on each that failed. Return as `_outcome`
    does."""
    alone = _needs_no_ranks()
    if not alone:
        error = comm.agree_on_error(error)
    rank = comm.current_rank()
    if not error.everywhere and not (alone and rank == 0):
        _say(f"istmpi: rank {rank}: {one_line(error)}")
    elif rank == 0:
        _say(f"istmpi: {one_line(error)}")
    if error.everywhere:
        comm.final_barrier()
    return error.exit_code, error.everywhere
