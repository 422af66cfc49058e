"""Compare finished runs: table, pictures, HTML."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from istmpi.cli.completion import complete_folder
from istmpi.cli.options import as_json, text
from istmpi.cli.output import console, note, print_json, say
from istmpi.errors import ConfigError
from istmpi.report import tables
from istmpi.report.comparison import Comparison, compare
from istmpi.report.curves import read_curves
from istmpi.report.sheets import notes
from istmpi.report.tuning import read_tunings

WIDTH_OF_A_LOG = 200


def add_targets_option(command: Callable) -> Callable:
    """Decorate a click command with --targets."""
    help = (
        "Scores to reach.  [default: the best score that all runs reach, "
        "and those with 25% and 50% more error]"
    )
    return text("--targets", "SCORE,...", help)(command)


@click.command("report")
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, shell_complete=complete_folder)
@add_targets_option
@as_json
@text(
    "--html",
    "FILE",
    "Write the figures, with pictures, as one HTML file, instead of printing them.",
)
def command(paths: tuple[str, ...], targets: str | None, as_json: bool, html: str | None) -> None:
    """Compare what the methods of finished runs needed to reach the same score.

    \b
    istmpi report runs/compare-digits --html digits.html
    istmpi report runs/speech runs/speech-2 runs/speech-3 --targets 0.63,0.69,0.75

    DIR is the folder of a run or a comparison, or any folder of runs. Repeats of a method form one
    column; runs that differ in settings do not. Runs must use the same data. Unreadable runs in a
    folder of runs are listed and left out.
    """
    scores = as_targets(targets)
    curves = read_curves(map(Path, paths), lambda problem: note(f"left out: {problem}"))
    comparison = replace(compare(curves, scores), tunings=read_tunings(map(Path, paths)))
    if as_json:
        print_json(build_tree(comparison))
    elif not html:
        print_comparison(comparison)
    if html:
        names = ", ".join(dict.fromkeys(curve.name for curve in curves if curve.name))
        methods = ", ".join(dict.fromkeys(curve.method for curve in curves))
        write_page(comparison, f"{names or comparison.data}: {methods}", Path(html))


def as_targets(text: str | None) -> list[float]:
    """Return the scores of --targets; an empty list without the option."""
    if text is None:
        return []
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--targets {text} must be numbers separated by commas, such as 0.63,0.69."
        ) from None


def print_comparison(comparison: Comparison) -> None:
    width = None
    # A log has no width, and a table in it should not be broken.
    if not sys.stdout.isatty():
        width = max(WIDTH_OF_A_LOG, shutil.get_terminal_size().columns)
    tables.comparison(console(width=width), comparison)


def build_tree(comparison: Comparison) -> dict[str, Any]:
    tree = {"data": comparison.data, "score": comparison.score_name, "targets": comparison.targets}
    tree |= {"notes": notes(comparison), "rows": comparison.rows()}
    if comparison.tunings:
        tree["tunings"] = [asdict(tuning) for tuning in comparison.tunings]
    return {"comparisons": [tree]}


def write_page(comparison: Comparison, title: str, path: Path) -> None:
    """Write a comparison as one HTML file."""
    from istmpi.files import appearing
    from istmpi.report.html import describe_origin, page

    try:
        from istmpi.report.plots import pictures

        drawn = pictures(comparison)
    except ImportError:
        # matplotlib is optional; the page says that it is missing.
        drawn = None
    with appearing(path) as file:
        file.write(page(comparison, drawn, title, describe_origin()).encode())
    say(f"written: {path}", err=True)
