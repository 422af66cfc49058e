"""What `istmpi compare` and `istmpi report` share: their options, and where a comparison is shown."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from rich.console import Console

from istmpi.cli.quantities import FiniteRange
from istmpi.errors import ConfigError
from istmpi.foreign import MOST, one_line
from istmpi.report import tables
from istmpi.report.comparison import Comparison
from istmpi.report.sheets import notes

WIDTH_OF_A_LOG = 200
"""Columns for tables where nobody's terminal sets a limit."""


def reporting(command: Callable) -> Callable:
    """Decorate a click command with --targets and --watts."""
    command = click.option(
        "--watts", type=FiniteRange(min=0, min_open=True, max=MOST), metavar="W", help="Of a node, for the energy."
    )(command)
    return click.option(
        "--targets",
        metavar="SCORE,...",
        help="Scores to reach.  [default: the best that all runs reach, and with 25% and 50% more error]",
    )(command)


def as_targets(text: str | None) -> list[float]:
    """The numbers of ``0.63,0.69``; none where the option was not given."""
    try:
        return [float(one) for one in text.split(",")] if text is not None else []
    except ValueError:
        raise ConfigError(f"--targets {text}: must be numbers with commas between them, as 0.63,0.69.") from None


def print_comparison(found: Comparison) -> None:
    """Its tables, on stdout."""
    width = None if sys.stdout.isatty() else max(WIDTH_OF_A_LOG, shutil.get_terminal_size().columns)
    tables.comparison(Console(emoji=False, highlight=False, width=width), found)


def print_json(found: Mapping[str, Comparison]) -> None:
    """Comparisons, by what their data are called, for other programs."""
    trees = [
        {"data": data, "score": one.score_name, "targets": one.targets, "notes": notes(one), "rows": one.rows()}
        for data, one in found.items()
    ]
    print(json.dumps({"comparisons": trees}, indent=1))


def write_page(found: Mapping[str, Comparison], title: str, path: Path) -> None:
    """Write the HTML page, a part for each data set, without pictures where matplotlib is not installed."""
    from istmpi.report.html import Made, Section, page, write

    try:
        from istmpi.report.comparison_plots import pictures

        drawn = [pictures(one, f"{place}-") for place, one in enumerate(found.values())]
    except ImportError:
        drawn = [None] * len(found)
    sections = [Section(data, one, its) for (data, one), its in zip(found.items(), drawn)]
    write(page(sections, title, Made.now()), path)
    click.echo(one_line(f"written: {path}"), err=True)


def draw(found: Mapping[str, Comparison], title: str, path: Path) -> None:
    """Draw the picture, a row for each data set; ImportError where matplotlib is not installed."""
    from istmpi.report import comparison_plots

    comparison_plots.draw(found, title, path)
    click.echo(one_line(f"drawn: {path}"), err=True)
