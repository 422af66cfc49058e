"""``istmpi report``: finished runs side by side, without MPI and without torch."""

import csv
import json
import sys
from pathlib import Path

import click

from istmpi.cli.reporting import as_targets, draw, print_comparison, reporting, write_page
from istmpi.errors import OutputError
from istmpi.report.comparison import compare
from istmpi.report.curves import read
from istmpi.report.sheets import notes


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
    differ in settings do not.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other.")
    wanted = as_targets(targets)
    curves = read(map(Path, paths))
    found = compare(curves, wanted, watts)
    rows = found.rows()
    if as_json:
        tree = {"score": found.score_name, "targets": found.targets, "notes": notes(found), "rows": rows}
        print(json.dumps(tree, indent=1))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, rows[0] if rows else ["method"])
        writer.writeheader()
        writer.writerows(rows)
    else:
        print_comparison(found)
    names = " ".join(dict.fromkeys(curve.name for curve in curves if curve.name))
    title = f"{names or ' '.join(paths)}: {' '.join(dict.fromkeys(curve.method for curve in curves))}"
    if html:
        write_page(found, title, Path(html))
    if plot:
        try:
            draw(found, title, Path(plot))
        except ImportError:
            raise OutputError("--plot needs matplotlib: pip install 'istmpi[plots]'.") from None
