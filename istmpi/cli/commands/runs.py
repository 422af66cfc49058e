"""List the runs that ship with istmpi."""

import click
from rich.markup import escape

from istmpi.cli.options import as_json
from istmpi.cli.output import console, print_json, table
from istmpi.config import SHIPPED, shipped


@click.command("runs")
@as_json
def command(as_json: bool) -> None:
    """List the runs that ship with istmpi, for istmpi train NAME. Their settings: istmpi settings."""
    files = {name: SHIPPED.joinpath(f"{name}.toml") for name in shipped()}
    first_lines = {name: file.read_text().splitlines()[0].lstrip("# ") for name, file in files.items()}
    if as_json:
        print_json(first_lines)
        return
    listing = table()
    for name, line in first_lines.items():
        listing.add_row(f"[bold]{name}", escape(line))
    console(soft_wrap=True).print(listing)
