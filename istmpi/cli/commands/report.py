"""Compare finished runs: table, pictures, HTML."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from istmpi.cli.options import as_json, plot, text
from istmpi.cli.output import console, drawing, note, print_json, say
from istmpi.errors import ConfigError
from istmpi.report import tables
from istmpi.report.comparison import Comparison, by_data, compare
from istmpi.report.curves import Curve, read_curves
from istmpi.report.sheets import notes

MOST_NAMES = 4
WIDTH_OF_A_LOG = 200


def comparing(command: Callable) -> Callable:
    """Decorate a click command with --targets."""
    help = "Scores to reach.  [default: the best that all runs reach, and with 25% and 50% more error]"
    return text("--targets", "SCORE,...", help)(command)


@click.command("report")
@click.argument("paths", metavar="DIR...", nargs=-1, required=True)
@comparing
@as_json
@text("--html", "FILE", "Write the figures, with pictures, as one HTML file.")
@plot
def command(
    paths: tuple[str, ...],
    targets: str | None,
    as_json: bool,
    html: str | None,
    plot: str | None,
) -> None:
    """Compare finished runs: what each method needed to reach the same score.

    \b
    istmpi report runs/compare-digits --html digits.html
    istmpi report runs/speech runs/speech-2 runs/speech-3 --targets 0.63,0.69,0.75

    DIR is the folder of a run or of a comparison, or any folder of runs. Repeats of a method make one column; runs that
    differ in settings do not. Each data set, by the name of its file, makes a comparison of its own. Runs that
    cannot be read are named and left out.
    """
    scores = as_targets(targets)
    curves = read_curves(map(Path, paths), lambda problem: note(f"left out: {problem}"))
    comparisons = {data: compare(those, scores) for data, those in by_data(curves).items()}
    if as_json:
        print_comparisons_as_json(comparisons)
    else:
        for data, comparison in comparisons.items():
            if len(comparisons) > 1:
                click.echo(f"data: {data}\n")
            print_comparison(comparison)
    title = _title(comparisons, curves)
    if html:
        write_page(comparisons, title, Path(html))
    if plot:
        draw(comparisons, title, Path(plot))


def _title(comparisons: Mapping[str, Comparison], curves: Sequence[Curve]) -> str:
    methods = list(dict.fromkeys(curve.method for curve in curves))
    used = ", ".join(methods) if len(methods) <= MOST_NAMES else f"{len(methods)} methods"
    if len(comparisons) > 1:
        return f"{len(curves)} runs on {len(comparisons)} data sets: {used}"
    names = list(dict.fromkeys(curve.name for curve in curves if curve.name))
    ranks = sorted({curve.ranks for curve in curves if curve.ranks})
    where = f" on {' and '.join(map(str, ranks))} ranks" if 0 < len(ranks) <= 2 else ""
    return f"{', '.join(names if 0 < len(names) <= MOST_NAMES else comparisons)}: {used}{where}"


def as_targets(text: str | None) -> list[float]:
    """The numbers of ``0.63,0.69``; none where the option was not given."""
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise ConfigError(f"--targets {text}: must be numbers with commas between them, as 0.63,0.69.") from None


def print_comparison(comparison: Comparison) -> None:
    """Print its tables."""
    width = None if sys.stdout.isatty() else max(WIDTH_OF_A_LOG, shutil.get_terminal_size().columns)
    tables.comparison(console(width=width), comparison)


def print_comparisons_as_json(comparisons: Mapping[str, Comparison]) -> None:
    """Print comparisons, by the names of their data, for other programs."""
    trees = [
        {"data": data, "score": each.score_name, "targets": each.targets, "notes": notes(each), "rows": each.rows()}
        for data, each in comparisons.items()
    ]
    print_json({"comparisons": trees})


def write_page(comparisons: Mapping[str, Comparison], title: str, path: Path) -> None:
    """Write the HTML page, a part for each data set, without pictures where matplotlib is not installed."""
    from istmpi.report.html import Section, made, page, write

    try:
        from istmpi.report.comparison_plots import pictures

        drawn = [pictures(each, f"{place}-") for place, each in enumerate(comparisons.values())]
    except ImportError:
        drawn = [None] * len(comparisons)
    sections = [Section(data, each, its) for (data, each), its in zip(comparisons.items(), drawn)]
    write(page(sections, title, made()), path)
    say(f"written: {path}", err=True)


def draw(comparisons: Mapping[str, Comparison], title: str, path: Path, required: bool = True) -> None:
    """Draw the picture, a row for each data set."""
    with drawing(path, required):
        from istmpi.report import comparison_plots

        comparison_plots.draw(comparisons, title, path)
