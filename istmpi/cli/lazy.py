"""A click group whose commands are imported when they are used: `istmpi --help` must not wait for torch."""

import importlib
from functools import cache

import click
from click.shell_completion import CompletionItem, add_completion_class

from istmpi.cli.bash import Bash
from istmpi.errors import ConfigError, did_you_mean
from istmpi.foreign import staying
from istmpi.renamed import COMMANDS, tell

add_completion_class(Bash)


@cache
def _command(name: str) -> click.Command:
    command = importlib.import_module(f"istmpi.cli.commands.{name}").command
    if command.callback:
        command.callback = staying(click.exceptions.Exit, click.exceptions.Abort, EOFError)(command.callback)
    return command


class LazyGroup(click.Group):
    """Command NAME is ``istmpi.cli.commands.NAME.command``; its help is given here: listing imports nothing."""

    def __init__(self, *args, commands: dict[str, str], **settings):
        super().__init__(*args, **settings)
        self._help = commands

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self._help)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            tell(f"istmpi {name}", f"istmpi {COMMANDS[name]}")
            name = COMMANDS[name]
        if name not in self._help:
            raise ConfigError(f"no command {name}{did_you_mean(name, self._help)}")
        return _command(name)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names of commands, none of which is imported, and options."""
        known = {name: words for name, words in self._help.items() if name.startswith(incomplete)}
        items = [CompletionItem(name, help=words) for name, words in known.items()]
        return items + click.Command.shell_complete(self, context, incomplete)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but by the command's new name, which its help shows."""
        name, command, rest = super().resolve_command(context, arguments)
        return command.name if command else name, command, rest

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help.items()))
