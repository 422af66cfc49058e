"""A click group that imports a command when it is used, for `istmpi --help` must not wait for torch; and bash's TAB."""

import importlib
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

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

    def _help(self, beginning: str = "") -> Iterator[tuple[str, str]]:
        for name in self._names:
            if name.startswith(beginning):
                with open(FOLDER / f"{name}.py", encoding="utf-8") as file:
                    yield name, file.readline().strip('"\n')

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            tell(f"istmpi {name}", f"istmpi {COMMANDS[name]}")
            name = COMMANDS[name]
        if name not in self._names:
            raise ConfigError(f"no command {name}{did_you_mean(name, self._names)}")
        return _command(name)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names of commands, none of which is imported, and options."""
        items = [CompletionItem(name, help=help) for name, help in self._help(incomplete)]
        return items + click.Command.shell_complete(self, context, incomplete)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, but to the command's new name, which its help shows."""
        name, command, rest = super().resolve_command(context, arguments)
        return command.name if command else name, command, rest

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help()))


@add_completion_class
class Bash(BashComplete):
    """Bash, which takes = and : for the ends of words; what it offers there must begin behind them."""

    source_template = BashComplete.source_template.replace("-o nosort", "-o nosort -o default")
    """Bash completes names of files where nothing is offered."""
    _left_out = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words up to the one that is typed; parts that = or : has cut are one word again."""
        words, at = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        parts = words[1 : at + 1] + [""] * (len(words) <= at)
        joined: list[str] = []
        for before, part in zip(["", *parts], parts):
            if joined and ({before, part} & {"=", ":"}):
                joined[-1] += part
            else:
                joined.append(part)
        *before, typed = joined or [""]
        if typed != parts[-1]:
            self._left_out = len(typed) - (0 if parts[-1] in ("=", ":") else len(parts[-1]))
        return before, typed

    def format_completion(self, item: CompletionItem) -> str:
        """Type and value, without what stands in the line already."""
        return f"{item.type},{item.value[self._left_out * (item.type == 'plain') :]}"
