"""``istmpi runs``: what can be trained without writing a run file."""

import json
from collections.abc import Iterator

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from istmpi.config import SHIPPED, shipped


@click.command("runs")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
def command(as_json: bool) -> None:
    """List the runs that ship with istmpi: istmpi train NAME. What a run may say: istmpi settings."""
    if as_json:
        print(json.dumps(dict(_runs()), indent=1))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, *words in _runs():
        table.add_row(f"[bold]{name}", *map(escape, words))
    Console(emoji=False, soft_wrap=True).print(table)


def _runs() -> Iterator[tuple[str, str]]:
    for name in shipped():
        yield name, SHIPPED.joinpath(f"{name}.toml").read_text().splitlines()[0].lstrip("# ")
