"""``istmpi checkpoint``: what is in checkpoints, whether it is whole, and in what two of them differ."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from istmpi.cli.bars import progress
from istmpi.cli.quantities import MOST_RANKS, WholeRange
from istmpi.cli.verifying import Counter
from istmpi.cli.verifying import verify as verify_files

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")


@click.group("checkpoint")
def command() -> None:
    """List, show, verify and compare checkpoints; needs neither MPI nor torch.

    CKPT is a file of a run: runs/NAME/network.h5, or one in runs/NAME/checkpoints.
    """


@command.command("ls", short_help="List the checkpoints of a run.")
@click.argument("folder")
@click.option("--verify", is_flag=True, help="Read every byte of every file.")
@as_json
def ls(folder: str, verify: bool, as_json: bool) -> None:
    """List the checkpoints in the FOLDER of a run, or of checkpoints, the oldest first."""
    from istmpi.checkpoint.summary import entry, files

    found = files(Path(folder))
    entries = []
    with progress(Console(emoji=False, stderr=True), in_bytes=True) as tell:
        counter = Counter(tell, sum(map(_size, found)))
        for path in found:
            counter.stage = path.name
            entries.append(entry(path, Path(folder), verify, counter))
    entries = [one for one in entries if one is not None]
    if as_json:
        _json([asdict(one) for one in entries])
        return
    from istmpi.report.checkpoints import listing

    _console().print(listing(entries, verify))


@command.command("show", short_help="Show what a checkpoint holds.")
@click.argument("path", metavar="CKPT")
@click.option("--ranks", type=WholeRange(1, MOST_RANKS), metavar="P", help="Also show the deal among P ranks.")
@click.option("--round", type=WholeRange(min=0), metavar="R", help="Of round R, from 0.  [default: the next]")
@as_json
def show(path: str, ranks: int | None, round: int | None, as_json: bool) -> None:
    """Show what CKPT holds: header, parameters, optimizer state, normalisation, and the deal for any P and round."""
    from istmpi.checkpoint.reader import open_checkpoint
    from istmpi.checkpoint.summary import contents, deal

    if round is not None and ranks is None:
        raise click.UsageError("--round goes with --ranks P.")
    with open_checkpoint(path) as checkpoint:
        inside = contents(checkpoint)
        dealt = deal(checkpoint, ranks, round) if ranks else None
    if as_json:
        _json({**inside, "deal": dealt} if dealt else inside)
        return
    from istmpi.report import checkpoints as report

    tables = [report.facts(inside), report.tensors("parameter", inside["parameters"])]
    if inside["optimizer"]:
        tables.append(report.tensors("optimizer state", inside["optimizer"]))
    if inside["own"]:
        tables.append(report.tensors("each rank's own", inside["own"]))
    if inside["norms"] or inside["input"]:
        tables.append(report.norms(inside))
    if dealt:
        tables.append(report.deal(dealt))
    console = _console()
    for table in tables:
        console.print(table, "")


@command.command("verify", short_help="Read every byte and say what is damaged.")
@click.argument("paths", metavar="CKPT...", nargs=-1, required=True)
@as_json
def verify(paths: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of each CKPT, a file or a folder of them, and name whatever is damaged; exit code 2 if any is."""
    from istmpi.checkpoint.reader import open_checkpoint
    from istmpi.checkpoint.summary import files

    given = {path: files(path) if path.is_dir() else [path] for path in map(Path, paths)}
    listed = {file for path in given for file in given[path] if file != path}
    unguarded = ", but for its attributes, which nothing guards (format version 1)"
    verify_files([file for inside in given.values() for file in inside], open_checkpoint, unguarded, listed, as_json)


@command.command("diff", short_help="Say in what two checkpoints differ.")
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--tensors", "tensors_only", is_flag=True, help="Leave the headers out.")
@as_json
def diff(one: str, other: str, tensors_only: bool, as_json: bool) -> int:
    """Compare checkpoints A and B: settings, facts and every tensor. Exit code 1 when they differ, 0 when not."""
    from istmpi.checkpoint.difference import settings, tensors
    from istmpi.checkpoint.reader import open_checkpoint

    with open_checkpoint(one) as first, open_checkpoint(other) as second:
        facts = {} if tensors_only else settings(first, second)
        values = list(tensors(first, second))
    if as_json:
        _json({"settings": facts, "tensors": [asdict(tensor) for tensor in values]})
        return int(bool(facts or values))
    from istmpi.report import checkpoints as report

    console = _console()
    if facts:
        console.print(report.settings(facts), "")
    if values:
        console.print(report.values(values))
    if not facts and not values:
        console.print("no difference")
    return int(bool(facts or values))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _json(value: object) -> None:
    click.echo(json.dumps(_portable(value), indent=2))


def _portable(value: object) -> object:
    if isinstance(value, dict):
        return {key: _portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _console() -> Console:
    console = Console(emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 1000
    return console
