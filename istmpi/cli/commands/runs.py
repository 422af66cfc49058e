"""``istmpi runs``: what can be trained without writing a run file."""

from collections.abc import Iterator

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from istmpi.config import SHIPPED, shipped


@click.command("runs")
def command() -> None:
    """List the runs that ship with istmpi: istmpi train NAME. What a run may say: istmpi settings."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, *words in _runs():
        table.add_row(f"[bold]{name}", *map(escape, words))
    Console(soft_wrap=True).print(table)


def _runs() -> Iterator[tuple[str, str]]:
    for name in shipped():
        yield name, SHIPPED.joinpath(f"{name}.toml").read_text().splitlines()[0].lstrip("# ")
