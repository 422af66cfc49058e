"""List, show, verify and gather checkpoints."""

import math
from pathlib import Path

import click

from istmpi.cli.options import as_json, flag, text
from istmpi.cli.output import print_json, wide_console
from istmpi.cli.output import verify as verify_files


@click.group("checkpoint")
def command() -> None:
    """List, show, verify and gather checkpoints; needs neither MPI nor torch.

    CKPT is a checkpoint of a run: runs/NAME/network.h5, or a file in runs/NAME/checkpoints.
    """


@command.command("ls")
@click.argument("folder")
@as_json
def ls(folder: str, as_json: bool) -> None:
    """List the checkpoints in FOLDER (of a run, or of its checkpoints): rounds in order, best.h5,
    network.h5."""
    from istmpi.checkpoint.folder import describe_file, find_files

    # A file that another job has removed meanwhile has no entry.
    described = (describe_file(path, Path(folder)) for path in find_files(Path(folder)))
    entries = list(filter(None, described))
    if as_json:
        _print_json(entries)
        return
    from istmpi.report.checkpoints import listing

    wide_console().print(listing(entries))


@command.command("show")
@click.argument("path", metavar="CKPT")
@as_json
def show(path: str, as_json: bool) -> None:
    """Show the header, parameters and optimizer state of CKPT."""
    from istmpi.checkpoint.folder import describe_contents
    from istmpi.checkpoint.reader import open_file

    with open_file(Path(path)) as checkpoint:
        inside = describe_contents(checkpoint)
    if as_json:
        _print_json(inside)
        return
    from istmpi.report import checkpoints as report

    tables = [report.facts(inside), report.tensors("parameter", inside["parameters"])]
    if inside["optimizer"]:
        tables.append(report.tensors("optimizer state", inside["optimizer"]))
    if inside["own"]:
        tables.append(report.tensors("each rank's own", inside["own"]))
    for table in tables:
        wide_console().print(table, "")


@command.command("verify")
@click.argument("paths", metavar="CKPT...", nargs=-1, required=True)
@as_json
def verify(paths: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of each CKPT, a file or a folder, and report damage. Exit code 2 if a file is
    damaged."""
    from istmpi.checkpoint.folder import find_files
    from istmpi.checkpoint.reader import open_file

    checked = []
    listed = set()
    for path in map(Path, paths):
        if path.is_dir():
            inside = find_files(path)
            checked += inside
            # The run may remove these files meanwhile; a file that the user named must exist.
            listed.update(inside)
        else:
            checked.append(path)
    unguarded = ", except its attributes, which have no checksums (format version 1)"
    verify_files(checked, open_file, unguarded, listed, as_json)


@command.command("gather")
@click.argument("places", metavar="FOLDER...", nargs=-1, required=True)
@text("--out", "FILE", "The file to write.", required=True)
@flag("--force", "Replace the file if it exists.")
def gather(places: tuple[str, ...], out: str, force: bool) -> None:
    """Make one file of a checkpoint in parts, which hosts without a shared folder write.

    FOLDER is a run's folder, a folder checkpoints/round-N, or a part in it. Give those of all
    hosts. The file is of the latest round of which all parts are there.
    """
    from istmpi.checkpoint.gathering import gather as gather_parts
    from istmpi.files import require_free

    path = Path(out)
    require_free(path, force)
    round = gather_parts([Path(place) for place in places], path)
    click.echo(f"{path}: round {round}")


def _print_json(value: object) -> None:
    print_json(_portable(value))


def _portable(value: object) -> object:
    """Return a value that every reader of JSON accepts."""
    if isinstance(value, dict):
        return {key: _portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has neither NaN nor infinity
    return value
