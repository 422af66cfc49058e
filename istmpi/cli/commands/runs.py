"""``istmpi runs``: what can be trained without writing a run file."""

import click
from rich.markup import escape
from rich.table import Table

from istmpi.cli.options import as_json
from istmpi.cli.output import console, print_json
from istmpi.config import SHIPPED, shipped


@click.command("runs")
@as_json
def command(as_json: bool) -> None:
    """List the runs that ship with istmpi: istmpi train NAME. What a run may say: istmpi settings."""
    files = {name: SHIPPED.joinpath(f"{name}.toml") for name in shipped()}
    first_lines = {name: file.read_text().splitlines()[0].lstrip("# ") for name, file in files.items()}
    if as_json:
        print_json(first_lines)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, line in first_lines.items():
        table.add_row(f"[bold]{name}", escape(line))
    console(soft_wrap=True).print(table)
