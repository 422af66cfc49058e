"""Measure this cluster's network and ranks for costmodel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from istmpi.cli.options import as_json, text
from istmpi.cli.run_options import add_planning_options, resolve, run_argument
from istmpi.errors import ConfigError
from istmpi.files import require_room

if TYPE_CHECKING:
    from istmpi.cluster.figures import Cluster
    from istmpi.comm import Communicator
    from istmpi.config import Run
    from istmpi.network.architecture import Architecture


@click.command("measure")
@run_argument
@add_planning_options
@as_json
@text("--out", "FILE", "File for the results.", default="cluster.json")
def command(
    run: str | None,
    assignments: tuple[str, ...],
    layers: str | None,
    out: str,
    as_json: bool,
    **parameters: str | None,
) -> None:
    """Measure the network between all ranks of this job, and each rank's speed at the shapes of
    RUN's subnets.

    \b
    mpirun -n 8 istmpi measure speech --layers 4096-4096-35 --out cluster.json
    istmpi costmodel speech --layers 4096-4096-35 --cluster cluster.json
    """
    from istmpi import comm

    communicator = comm.world()
    with communicator.agreed():
        from istmpi.cli.networks import describe_on_all_ranks

        resolved = resolve(run, assignments, parameters)
        if communicator.rank == 0:
            if Path(out).is_dir():
                raise ConfigError(f"--out {out} is a folder. Give the name of a file.")
            require_room(Path(out))
    planned = describe_on_all_ranks(resolved, layers, communicator)
    cluster = _measure(planned.run, planned.architecture, communicator)
    with communicator.agreed():
        if communicator.rank == 0:
            cluster.save(Path(out))
    if communicator.rank == 0:
        _print(cluster, out, as_json)


def _measure(run: Run, network: Architecture, communicator: Communicator) -> Cluster:
    """Return the figures of the job's ranks, or of its replica groups if the run has any."""
    if run.train.group_size == 1:
        from istmpi.cluster.measure import measure

        with communicator.agreed():
            _require_subnet(run, network, communicator.rank, communicator.size)
        return measure(run, network, communicator)
    from istmpi.comm.groups import Membership

    membership = Membership(communicator, run.train.group_size)
    with communicator.agreed():
        _require_subnet(run, network, membership.number, membership.groups)

    from istmpi.cluster.measure_groups import measure_groups

    return measure_groups(run, network, membership)


def _require_subnet(run: Run, network: Architecture, rank: int, ranks: int) -> None:
    """Raise ConfigError if the first deal leaves a rank without units."""
    from istmpi.config.methods import find_method_spec
    from istmpi.methods import limits

    spec = find_method_spec(run.method.name)
    limits.require_dealable(spec, run, network)
    deal = spec.deal(run, network, ranks, 0)
    limits.require_subnets(network, deal, [rank])


def _print(cluster: Cluster, out: str, as_json: bool) -> None:
    if as_json:
        # The file has the JSON already.
        print(Path(out).read_text(), end="")
        return
    from istmpi.cli.output import console, say
    from istmpi.report import tables

    tables.cluster(console(soft_wrap=True), cluster)
    say(f"written: {out}")
