"""A comparison as one HTML file that needs nothing else: tables, pictures inside, and every setting."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

from istmpi.errors import OutputError
from istmpi.report.comparison import Comparison
from istmpi.report.sheets import Sheet, notes, sheets

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222;
       background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 1.8em }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3em .9em; text-align: right; vertical-align: top; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
.runs td, .runs th { text-align: left }
thead th { border-bottom: 2px solid #888 }
td .more { display: block; color: #666; font-size: .85em }
svg { width: 100%; height: auto }
li { margin: .2em 0 }
"""


def page(comparison: Comparison, title: str, picture: str | None) -> str:
    """The whole file's text; ``picture`` is an <svg> element, None where matplotlib is not installed."""
    drawn = picture or "<p>No pictures: matplotlib is not installed (pip install 'istmpi[plots]').</p>"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *(_table(sheet) for sheet in sheets(comparison)[:1]),
            drawn,
            *(_table(sheet) for sheet in sheets(comparison)[1:]),
            "<h2>How to read this</h2>",
            f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in notes(comparison))}</ul>",
            "<h2>Runs</h2>",
            _runs(comparison),
            "<h2>Settings that all runs share</h2>",
            _plain_table(("setting", "value"), shared_settings(comparison)),
            "</body></html>\n",
        ]
    )


def write(text: str, path: Path) -> None:
    """Write a page; OutputError where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}).") from None


def shared_settings(comparison: Comparison) -> list[tuple[str, str]]:
    """The settings in which all runs that have any agree."""
    known = [curve.settings for group in comparison.groups for curve in group.curves if curve.settings]
    if not known:
        return []
    first, *others = known
    return [(key, str(value)) for key, value in first.items() if all(one.get(key) == value for one in others)]


def _table(sheet: Sheet) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (sheet.corner, *sheet.columns))
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{_cell(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in sheet.rows
    )
    return (
        f'<h2>{escape(sheet.title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    first, *more = text.split("\n")
    return escape(first) + "".join(f'<span class="more">{escape(line)}</span>' for line in more)


def _runs(comparison: Comparison) -> str:
    rows = [
        (group.name, str(curve.seed), str(len(curve.points)), curve.problem or "finished", curve.source)
        for group in comparison.groups
        for curve in group.curves
    ]
    return _plain_table(("method", "seed", "evaluations", "state", "folder"), rows)


def _plain_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="runs"><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>'
