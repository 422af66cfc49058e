"""Verify prepared data."""

from pathlib import Path

import click

from istmpi.cli.options import as_json
from istmpi.cli.output import verify as verify_files


@click.group("data")
def command() -> None:
    """Verify prepared data; needs neither MPI nor torch."""


@command.command("verify")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@as_json
def verify(paths: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of each prepared FILE and report damage. Exit code 2 if a file is damaged."""
    from istmpi.data.hdf5 import prepared_file

    unguarded = (
        ", but not checked: it has no checksums (format version 1); prepare it again to add them"
    )
    verify_files([Path(path) for path in paths], prepared_file, unguarded, as_json=as_json)
