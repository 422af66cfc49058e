"""``istmpi runs``: what can be trained without writing a run file."""

import click
from rich.console import Console
from rich.table import Table

from istmpi.config import SHIPPED, shipped


@click.command("runs")
def command() -> None:
    """List the runs that ship with istmpi: istmpi train NAME."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in shipped():
        table.add_row(f"[bold]{name}", SHIPPED.joinpath(f"{name}.toml").read_text().splitlines()[0].lstrip("# "))
    Console(soft_wrap=True).print(table)
