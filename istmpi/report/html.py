"""A comparison as one HTML file: verdict, tables, pictures, and the settings that differ."""

import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from istmpi import __version__
from istmpi.foreign import printable
from istmpi.report.comparison import Comparison
from istmpi.report.sheets import Sheet, notes, sheets, verdict
from istmpi.report.styles import BLUE, INK, PAPER

STYLE = f"""
:root {{ --ink: {INK}; --paper: {PAPER}; --faint: #5f6368; --line: #d5d8dc; --best: {BLUE}; --tint: #e8f1f8 }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 110rem; padding: 0 2vw; color: var(--ink);
       background: var(--paper); overflow-wrap: break-word }}
.verdict, ul {{ max-width: 60rem }}
.verdict {{ border-left: 4px solid var(--best); padding: .2em 0 .2em .9em }}
.made, .more {{ color: var(--faint); font-size: .85em }}
.wide {{ overflow-x: auto }} td, .value {{ white-space: nowrap }}
th:first-child {{ position: sticky; left: 0; background: var(--paper) }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .3em .7em; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line) }}
th:first-child, .texts td, .texts th {{ text-align: left }} .texts td {{ overflow-wrap: anywhere; white-space: normal }}
tbody th {{ font-weight: 400 }}
td .more {{ display: block }} .value + .value {{ color: var(--faint) }}
td.best {{ background: var(--tint) }} td.best .value:first-child {{ font-weight: 700 }}
td.best .value:first-child::before {{ content: "\\2605\\a0"; color: var(--best) }}
.pictures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1rem;
            margin: 1.5rem 0 .5rem }}
figure {{ margin: 0 }} svg {{ display: block; width: 100%; height: auto; max-width: 36rem; margin: auto }}
"""


def describe_origin() -> str:
    """Return the sentence on who made a page, when and how."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    moment = datetime.now().astimezone()
    where = f"{moment:%Y-%m-%d %H:%M %z} by istmpi {__version__} on {platform.node()}: {command}"
    return f"Made on {printable(where)}"


def page(
    comparison: Comparison, pictures: Mapping[str, str] | None, title: str, origin: str
) -> str:
    """Return the text of the file.

    ``pictures``: <svg> elements by title; None if matplotlib is not installed.
    """
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
{_body(comparison, pictures)}<p class="made">{escape(origin)}</p>
</body></html>
"""


def _body(comparison: Comparison, pictures: Mapping[str, str] | None) -> str:
    first, *following = map(_table, sheets(comparison))
    lines = "".join(f"<li>{escape(line)}</li>" for line in notes(comparison))
    return (
        f'<p class="verdict">{escape(verdict(comparison))}</p>\n'
        f"{first}{_pictures(pictures)}{''.join(following)}"
        f"<h3>How to read this</h3>\n<ul>{lines}</ul>\n"
        f"<details><summary>The runs</summary>\n{_runs(comparison)}</details>\n"
    )


def _pictures(pictures: Mapping[str, str] | None) -> str:
    # A page without pictures is better than none: matplotlib is optional.
    if pictures is None:
        return "<p>No pictures: matplotlib is not installed (pip install 'istmpi[plots]').</p>\n"
    figures = "\n".join(f"<figure>{svg}</figure>" for svg in pictures.values())
    return (
        f'<div class="pictures">\n{figures}\n</div>\n'
        '<p class="more">Dotted lines: the scores to reach.</p>\n'
    )


def _runs(comparison: Comparison) -> str:
    rows = []
    for group in comparison.groups:
        for curve in group.curves:
            state = curve.problem or "finished"
            texts = (group.name, str(curve.seed), str(len(curve.points)), state, curve.source)
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in texts)
            rows.append(f"<tr>{cells}</tr>")
    columns = ("method", "seed", "evaluations", "state", "folder")
    return _frame(columns, "".join(rows), ' class="texts"')


_BEST = ' class="best" title="the best of its row"'


def _table(sheet: Sheet) -> str:
    """Return a sheet as HTML, with its best figures marked."""
    # A sheet that compares nothing marks no best figure.
    best_of_rows: Sequence[frozenset[int]] = sheet.best or [frozenset()] * len(sheet.rows)
    body = ""
    for (name, cells), best in zip(sheet.rows, best_of_rows):
        body += f'<tr><th scope="row">{escape(name)}</th>'
        for place, cell in enumerate(cells):
            mark = _BEST if place in best else ""
            body += f"<td{mark}>{_cell(cell)}</td>"
        body += "</tr>"
    return f"<h3>{escape(sheet.title)}</h3>{_frame((sheet.corner, *sheet.columns), body)}"


def _cell(text: str) -> str:
    """Return a cell's elements: values are parted by two spaces, further lines are remarks."""
    # Two spaces and line breaks are the console's layout of a cell.
    first, *more = text.split("\n")
    values = (f'<span class="value">{escape(part)}</span>' for part in first.split("  "))
    remarks = (f'<span class="more">{escape(line)}</span>' for line in more)
    return " ".join(values) + "".join(remarks)


def _frame(head: Iterable[str], body: str, kind: str = "") -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    # With a tabindex, a table that is wider than the window can be scrolled by keys.
    return (
        f'<div class="wide" tabindex="0"><table{kind}><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>\n"
    )
