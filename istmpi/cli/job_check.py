"""Checks the runs of job scripts before they are printed, as training would check them."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from istmpi.cli.run_options import resolve, run_and_folder
from istmpi.config import Run
from istmpi.errors import ConfigError
from istmpi.foreign import is_file
from istmpi.names import is_own
from istmpi.record import RunFolder


def join_each_host(run: str, options: tuple[str, ...], processes: int) -> tuple[str, ...]:
    """Return the options of istmpi train, with which the ``processes`` of a host train one subnet
    unless a size of groups is given."""
    if processes == 1:
        return options
    parameters = _parse("train", (run, *options))
    assignments = parameters.pop("assignments")
    is_given = any(text.strip().startswith("train.group_size") for text in assignments)
    in_file = resolve(parameters.pop("run"), assignments, parameters).train.group_size != 1
    if is_given or in_file or parameters["group_size"] is not None:
        return options
    return (*options, "--group-size", "host")


def _parse(verb: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values of a command's arguments and options."""
    # Imported here: the command line imports this file.
    from istmpi.cli.main import istmpi

    with click.Context(istmpi) as context:
        command = istmpi.get_command(context, verb)
    assert command is not None, f"there is a command {verb}"
    words = list(arguments)
    return command.make_context(f"istmpi {verb} {shlex.join(words)}", words).params


def check(
    arguments: Sequence[str],
    processes: int,
    verb: str = "train",
    minutes: float = float("inf"),
    runs_code: bool = False,
    nodes: int = 1,
) -> Run:
    """Return a command line's run; raise ConfigError if processes or minutes do not fit.

    ``runs_code``: build users' networks. ``nodes``: hosts with equal numbers of processes.
    """
    from istmpi.cli.networks import describe_run
    from istmpi.config.methods import find_method_spec

    parameters = _parse(verb, arguments)
    _require_time(minutes, parameters["stop_before_walltime"])
    compared = parameters["methods"].split(",") if verb == "compare" else []
    run = resolve(
        parameters.pop("run"), parameters.pop("assignments"), parameters, methods=compared
    )
    size = _size_groups(run.train.group_size, processes // nodes)
    ranks = processes // size
    # To build a user's network is to run its code; only the job does that.
    if is_own(run.model.name) and not runs_code:
        return run.with_implied()
    planned = describe_run(run, None, ranks=ranks)
    if verb != "compare":
        planned.require_trainable(planned.run, ranks, size)
        return planned.run
    for name in compared:
        find_method_spec(name, "--methods:")
        planned.require_trainable(planned.run.override({"method.name": name}), ranks)
    return planned.run


def find_folder(arguments: Sequence[str], run: Run) -> Path:
    """Return the folder in which istmpi train would train ``run``, the run of its ``arguments``.

    Raises ConfigError and DataError if it would refuse the folder.
    """
    parameters = _parse("train", arguments)
    _, resume, own_folder = run_and_folder(parameters["run"], parameters["resume"])
    return RunFolder.choose(run.output.folder or own_folder or "", run.name, resume).path


def _require_time(minutes: float, stop: float | None) -> None:
    """Raise ConfigError if a job of some ``minutes`` would end before it stops."""
    if stop is None:
        stop = 5  # as in the templates
    if minutes <= stop:
        raise ConfigError(
            f"--time: {minutes:g} minutes must be more than --stop-before-walltime, {stop:g}."
        )


def _size_groups(group_size: int, on_a_node: int) -> int:
    """Return the number of processes of a replica group. ``group_size``: as train.group_size."""
    size = group_size or on_a_node
    if on_a_node % size:
        raise ConfigError(
            f"train.group_size = {size} does not divide the {on_a_node} processes on each node. "
            f"Start a multiple of {size}."
        )
    return size


def require_files(run: Run) -> None:
    """Raise ConfigError for files of the run that this machine lacks."""
    names = {"model": run.model.name, "data": run.data.source, "init": run.train.init}
    for what, name in names.items():
        # Of FILE.py:Class, the file.
        path = Path(re.sub(r":\w+$", "", name))
        # A file of each rank may lie on its own host's disk.
        named_by_rank = "{rank}" in name
        is_path = path.suffix in (".py", ".h5", ".npz", ".safetensors")
        if is_path and not named_by_rank and not is_file(path):
            raise ConfigError(f"{what} {path} does not exist. Check the path.")
