"""Turn raw data into one file that training reads."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from istmpi.cli.options import WholeRange, YesOrNo, as_json, force, list_rows, real, text
from istmpi.cli.output import console, print_json, progress, table
from istmpi.data import KINDS
from istmpi.foreign import printable
from istmpi.record import known
from istmpi.tasks import TASKS
from istmpi.units import size

if TYPE_CHECKING:
    from istmpi.data.prepare import Report

NAMED = 12


def _options_of_kinds(command: Callable) -> Callable:
    """Add the options of all kinds to a command. An option of several kinds is one option."""
    types = {"N": WholeRange(), "0|1": WholeRange(0, 1), "yes|no": YesOrNo()}
    helps: dict[tuple[str, str], list[str]] = {}
    for option in dict.fromkeys(option for kind in KINDS.values() for option in kind.options):
        kinds = ", ".join(kind.name for kind in KINDS.values() if option in kind.options)
        # Kinds may describe the same option differently.
        helps.setdefault(option[:2], []).append(f"{kinds}: {option[2]}")
    # The decorator that comes last is first in the help.
    for (name, metavar), help in reversed(helps.items()):
        settings: dict[str, Any] = {"is_flag": True, "default": None}
        if metavar:
            settings = {"type": types.get(metavar)}
        flag = f"--{name.replace('_', '-')}"
        command = text(flag, metavar or None, " ".join(help), **settings)(command)
    return command


@click.command(
    "prepare",
    help=f"""Turn SRC (a folder, a .tar, .tar.gz or a file) into DST.h5, ready to train on.

\b
KIND is one of
{list_rows([(kind.name, kind.help) for kind in KINDS.values()])}
""",
)
@click.argument("kind")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST.h5")
@_options_of_kinds
@real("--max-bad", "SHARE", "Fraction of files that may be unreadable.", default=0.01)
@force
@as_json
def command(
    kind: str,
    source: str,
    target: str,
    max_bad: float,
    force: bool,
    as_json: bool,
    **options: object,
) -> None:
    # Here, not above: the library loads HDF5, which `istmpi prepare --help` on a login node can do
    # without.
    from istmpi.data.prepare import prepare

    # An option that was not given leaves the default to the kind.
    parameters = {option: value for option, value in options.items() if value is not None}
    with progress() as report_progress:
        report = prepare(
            kind,
            source,
            target,
            progress=report_progress,
            force=force,
            max_bad=max_bad,
            **parameters,
        )
    if as_json:
        print_json(asdict(report, dict_factory=known))
        return
    facts = table()
    for row in _rows(report):
        facts.add_row(*row)
    stdout = console()
    stdout.print(report.target.name, style="bold")
    stdout.print(facts)
    stdout.print(
        f"train on it: mpirun -n 4 {shlex.join(_next(report))}", soft_wrap=True, markup=False
    )


def _next(report: Report) -> list[str]:
    run = TASKS[report.task].start
    data = ("--data", str(report.target))
    # A run's name stands before options.
    is_name = run and not run[0].startswith("-")
    arguments = run + data if is_name else data + run
    return ["istmpi", "train", *arguments]


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line of the report."""
    for split, count in report.counts.items():
        yield split, f"{count:,} {TASKS[report.task].examples}"
    if report.features:
        shape = ""
        if report.shape and len(report.shape) > 1:
            shape = f" ({' x '.join(map(str, report.shape))})"
        yield "features", f"{report.features:,}{shape}"
    counts = report.class_counts
    if counts and report.classes:
        yield "classes", _class_counts(report.classes, counts)
    elif counts:
        yield "labels", _class_counts([*map(str, range(len(counts)))], counts)
    elif report.classes:
        yield "classes", f"{len(report.classes):,}"
    for name, value in report.facts.items():
        yield name, f"{value:,}"
    yield "split", report.split
    if report.skipped:
        yield "skipped", "\n  ".join([f"{len(report.skipped):,}", *report.skipped[:3]])
    for title, notes in (("assumed", report.assumed), ("left out", report.left_out)):
        for place, note in enumerate(notes):
            yield title if place == 0 else "", printable(str(note))
    yield "took", f"{report.seconds:.1f} s"
    yield "size", size(report.bytes)


def _class_counts(classes: Sequence[str], counts: Sequence[int]) -> str:
    named = [f"{printable(name)} {count:,}" for name, count in zip(classes, counts, strict=True)]
    if len(named) > NAMED:
        # Of many classes, only the rarest and the most frequent are shown.
        order = sorted(range(len(named)), key=lambda code: counts[code])
        named = [named[order[0]], "...", named[order[-1]]]
    return f"{len(classes):,}, for training: {', '.join(named)}"
