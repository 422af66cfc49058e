"""``istmpi report``: finished runs side by side, without MPI and without torch."""

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from istmpi.cli.reporting import as_targets, draw, print_comparison, print_json, reporting, write_page
from istmpi.errors import OutputError
from istmpi.foreign import one_line
from istmpi.report.comparison import Comparison, by_data, compare
from istmpi.report.curves import Curve, read_curves

MOST_NAMES = 4
"""In a title; of more their number is told."""


@click.command("report")
@click.argument("paths", metavar="DIR...", nargs=-1, required=True)
@reporting
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="The figures as CSV.")
@click.option("--html", metavar="FILE", help="Write them, with pictures, as one HTML file.")
@click.option("--plot", metavar="FILE", help="Draw them: .png, .svg or .pdf.")
def command(
    paths: tuple[str, ...],
    targets: str | None,
    watts: float | None,
    as_json: bool,
    as_csv: bool,
    html: str | None,
    plot: str | None,
) -> None:
    """Compare finished runs: what each method needed to reach the same score.

    \b
    istmpi report runs/compare-digits --html digits.html
    istmpi report runs/speech runs/speech-2 runs/speech-3 --targets 0.63,0.69,0.75 --watts 150

    DIR is the folder of a run or of a comparison, or any folder of runs. Repeats of a method make one column; runs that
    differ in settings do not. Each data set, by the name of its file, makes a comparison of its own. Runs that
    cannot be read are named and left out.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other.")
    wanted = as_targets(targets)
    curves = read_curves(
        map(Path, paths), lambda problem: click.echo(f"istmpi: left out: {one_line(problem)}", err=True)
    )
    found = {data: compare(those, wanted, watts) for data, those in by_data(curves).items()}
    if as_json:
        print_json(found)
    elif as_csv:
        rows = [{"data": data, **row} for data, one in found.items() for row in one.rows()]
        writer = csv.DictWriter(sys.stdout, rows[0] if rows else ["data", "method"])
        writer.writeheader()
        writer.writerows(rows)
    else:
        for data, one in found.items():
            if len(found) > 1:
                click.echo(f"data: {data}\n")
            print_comparison(one)
    title = _title(found, curves)
    if html:
        write_page(found, title, Path(html))
    if plot:
        try:
            draw(found, title, Path(plot))
        except ImportError:
            raise OutputError("--plot needs matplotlib: pip install 'istmpi[plots]'.") from None


def _title(found: Mapping[str, Comparison], curves: Sequence[Curve]) -> str:
    """What is compared on what: names where there are few of them, their number where there are many."""
    methods = list(dict.fromkeys(curve.method for curve in curves))
    used = ", ".join(methods) if len(methods) <= MOST_NAMES else f"{len(methods)} methods"
    if len(found) > 1:
        return f"{len(curves)} runs on {len(found)} data sets: {used}"
    names = list(dict.fromkeys(curve.name for curve in curves if curve.name))
    learnt = ", ".join(names) if 0 < len(names) <= MOST_NAMES else ", ".join(found)
    ranks = sorted({curve.ranks for curve in curves if curve.ranks})
    where = f" on {' and '.join(map(str, ranks))} ranks" if 0 < len(ranks) <= 2 else ""
    return f"{learnt}: {used}{where}"
