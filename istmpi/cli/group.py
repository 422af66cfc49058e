"""A click group that imports a command when it is used, for `istmpi --help` must not wait for torch."""

import importlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import click

from istmpi.errors import ConfigError, did_you_mean
from istmpi.foreign import staying
from istmpi.renamed import COMMANDS, tell

FOLDER = Path(__file__).parent / "commands"


@cache
def _command(name: str) -> click.Command:
    command = importlib.import_module(f"istmpi.cli.commands.{name}").command
    if command.callback:
        command.callback = staying(click.exceptions.Exit, click.exceptions.Abort, EOFError)(command.callback)
    return command


class LazyGroup(click.Group):
    """Command NAME is ``istmpi.cli.commands.NAME.command``; its help is the first line of its file: no import."""

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
        if name in COMMANDS:
            tell(f"istmpi {name}", f"istmpi {COMMANDS[name]}")
            name = COMMANDS[name]
        if name not in self._names:
            raise ConfigError(f"no command {name}{did_you_mean(name, self._names)}")
        return _command(name)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, but to the command's new name, which its help shows."""
        name, command, rest = super().resolve_command(context, arguments)
        return command.name if command else name, command, rest

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help()))
