"""``istmpi prepare``: from the files that data come in to one file that training reads."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from istmpi.cli.bars import progress
from istmpi.cli.quantities import FiniteRange, WholeRange, YesOrNo
from istmpi.foreign import printable
from istmpi.record import known
from istmpi.report.units import size
from istmpi.tasks import TASKS
from istmpi.units import counted

if TYPE_CHECKING:
    from istmpi.data.prepare import Report

NAMED = 12
"""Classes that are all named with their numbers of examples."""


@click.command("prepare")
@click.argument("kind")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST.h5")
@click.option(
    "--size",
    type=WholeRange(),
    metavar="N",
    help="images: the largest square in the middle of each, resized to N x N pixels.",
)
@click.option("--label", metavar="COLUMN", help="csv: the column of labels, name or number from 0.  [default: last]")
@click.option(
    "--task",
    metavar="TASK",
    help="csv, arrays: classification, regression; arrays: multi-label.  [default: by the labels]",
)
@click.option("--header", type=YesOrNo(), metavar="yes|no", help="csv: line 1 has names.  [default: as it seems]")
@click.option("--delimiter", metavar="CHARACTER", help="csv: also tab, space.  [default: comma, semicolon or tab]")
@click.option(
    "--channels", metavar="first|last", help="arrays: where images [n, ., ., .] have theirs.  [default: first]"
)
@click.option("--split", type=WholeRange(min=0), metavar="N", help="graph: of masks [nodes, splits] this one, from 0.")
@click.option("--tokenizer", metavar="bytes|FILE.json", help="text: what makes its tokens.  [default: bytes]")
@click.option("--key", metavar="KEY", help="text: where a line of .jsonl has its text.  [default: text]")
@click.option(
    "--counted-from",
    type=WholeRange(0, 1),
    metavar="0|1",
    help="xc: the number of the first feature in rows without a header.  [default: 0 if it occurs, else 1]",
)
@click.option(
    "--clusters", type=WholeRange(), metavar="N", help="graph: cut it into N parts with METIS, for batches of these."
)
@click.option("--directed", is_flag=True, default=None, help="graph: a node hears from sources of its edges alone.")
@click.option(
    "--normalise",
    metavar="HOW",
    help="graph: features by rows (their sum is 1), columns (mean 0, deviation 1) or none.  [default: rows of a "
    "sparse matrix, else columns]",
)
@click.option(
    "--max-bad",
    type=FiniteRange(),
    default=0.01,
    show_default=True,
    metavar="SHARE",
    help="Share of files that may be unreadable.",
)
@click.option("--force", is_flag=True, help="Replace DST.h5 if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
def command(kind: str, source: str, target: str, max_bad: float, force: bool, as_json: bool, **options: object) -> None:
    """Turn SRC (a folder, a .tar, .tar.gz or a file) into DST.h5, ready to train on.

    \b
    KIND is one of
      speech   WORD/SPEAKER_nohash_INDEX.wav, as in Speech Commands
      images   train/CLASS/FILE and test/ or val/CLASS/FILE, or CLASS/FILE, or CIFAR
      idx      the MNIST family
      arrays   .npz or .npy with x_train, y_train, x_test, y_test
      csv      a table of numbers with a column of labels
      text     files of text, .jsonl with a document a line, .gz
      xc       sparse rows with labels: Extreme Classification Repository, svmlight, .npz of scipy
      graph    nodes with features and labels: .npz, Planetoid, the files of PyG and OGB
    """
    # Here, not above: the library loads HDF5, which `istmpi prepare --help` on a login node can do without.
    from istmpi.data.prepare import prepare

    given = {option: value for option, value in options.items() if value is not None}
    with progress(Console(emoji=False, stderr=True)) as tell:
        report = prepare(kind, source, target, progress=tell, force=force, max_bad=max_bad, **given)
    if as_json:
        print(json.dumps(asdict(report, dict_factory=known), default=str))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    shown = _text if report.text else _rows if report.rows else _graph if report.graph else _examples
    for row in shown(report):
        table.add_row(*map(escape, row))
    table.add_row("split", escape(report.split))
    what = "document" if report.text else "file"
    if report.skipped:
        table.add_row("skipped", escape("\n  ".join([counted(len(report.skipped), what), *report.skipped[:3]])))
    for what, notes in (("assumed", report.assumed), ("left out", report.left_out)):
        for note in notes:
            table.add_row(what, escape(printable(str(note))))
            what = ""
    table.add_row("took", f"{report.seconds:.1f} s")
    table.add_row("size", size(report.bytes))
    console = Console(emoji=False, highlight=False)
    console.print(escape(printable(report.target.name)), style="bold")
    console.print(table)
    console.print(f"train on it: mpirun -n 4 {shlex.join(_next(report))}", soft_wrap=True, markup=False)


def _next(report: Report) -> list[str]:
    run, data = TASKS[report.task].start, ("--data", str(report.target))
    is_name = run and not run[0].startswith("-")
    return ["istmpi", "train", *(run + data if is_name else data + run)]


def _examples(report: Report) -> Iterator[tuple[str, str]]:
    for split, count in report.counts.items():
        yield split, f"{count:,} examples"
    shape = f" ({' x '.join(map(str, report.shape))})" if len(report.shape) > 1 else ""
    yield "features", f"{report.features:,}{shape}"
    if TASKS[report.task].several_labels:
        yield "labels", _of_class([*map(str, range(len(report.of_class)))], report.of_class)
        return
    yield "classes", _of_class(report.classes, report.of_class) if report.classes else "none (regression)"


def _of_class(classes: Sequence[str], counts: Sequence[int]) -> str:
    named = [f"{printable(name)} {count:,}" for name, count in zip(classes, counts, strict=True)]
    if len(named) > NAMED:
        order = sorted(range(len(named)), key=lambda code: counts[code])
        named = [named[order[0]], "...", named[order[-1]]]
    return f"{len(classes):,}, for training: {', '.join(named)}"


def _text(report: Report) -> Iterator[tuple[str, str]]:
    for split, count in report.counts.items():
        documents = report.text.documents.get(split)
        of = "a part of the only document" if report.text.cut else f"{documents:,} document{'s' * (documents != 1)}"
        yield split, f"{count:,} tokens ({of})"
    yield "vocabulary", f"{report.text.vocabulary:,}"


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    facts = report.rows
    for split, count in report.counts.items():
        yield split, f"{count:,} rows"
    yield "features", f"{report.features:,}, {facts.features_per_row:.1f} in a row of training"
    labels = f"{facts.labels:,}, {facts.trained_labels:,} of them in training, {facts.labels_per_row:.1f} in a row"
    yield "labels", labels
    yield "dropped", f"{facts.without_features:,} rows without features, {facts.without_labels:,} without labels"
    if facts.repeated:
        yield "", f"{facts.repeated:,} labels that their rows had already"


def _graph(report: Report) -> Iterator[tuple[str, str]]:
    facts = report.graph
    for split, count in report.counts.items():
        yield split, f"{count:,} nodes"
    yield "nodes", f"{facts.nodes:,}, {facts.isolated:,} of them without an edge"
    mean = facts.edges / facts.nodes * (1 if facts.directed else 2)
    kind = "directed edges" if facts.directed else "edges, each in both directions"
    yield "edges", f"{facts.edges:,} {kind}; {mean:.1f} neighbours of a node, at most {facts.largest_degree:,}"
    yield "dropped", f"{facts.self_loops:,} edges from a node to itself, {facts.repeated:,} that were there twice"
    yield "features", f"{report.features:,}"
    if report.classes:
        yield "classes", f"{len(report.classes):,}, known of {facts.labels:,} nodes"
    else:
        yield "labels", f"{facts.labels / facts.nodes:.1f} of a node"
    if facts.clusters:
        yield "clusters", f"{facts.clusters:,}, with {facts.cut:.1%} of the edges between them"
