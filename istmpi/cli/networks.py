"""Finds a run's network.

It needs no data if `has_table` holds for its name, and layers or a shape are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from istmpi.cli import options
from istmpi.config import Run
from istmpi.cost import Cost, phase_costs
from istmpi.errors import ConfigError
from istmpi.methods import limits
from istmpi.methods.group_limits import FEWEST, require_groups
from istmpi.models.tables import Facts, find_table
from istmpi.names import has_table
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import ACCEPTED_INPUTS, require_known, user_network
from istmpi.tasks import CLASSIFICATION, TASKS

if TYPE_CHECKING:
    from istmpi.comm import Communicator
    from istmpi.data.dataset import Dataset


FEATURES_IN_A_ROW = 75
"""Features of a sparse row if no data are read: those of Amazon-670k."""
NODES = 100_000
"""Nodes of a graph's batch if no data are read."""
DEGREE = 20
"""Neighbours of a node if no data are read."""


@dataclass(frozen=True)
class Described:
    run: Run
    architecture: Architecture
    examples: int | None
    smaller: Mapping[int, Architecture] = field(default_factory=dict)
    data: Dataset | None = None

    def require_trainable(
        self, run: Run, ranks: int, group_size: int | None = None
    ) -> list[tuple[Cost, int]]:
        """Return the costs of ``run`` on this network, which was made from its data.

        ``group_size``: the processes of a replica group; by default those of the settings. Raises
        the errors with which its training would begin.
        """
        from istmpi.training.best import Best
        from istmpi.training.epochs import count_examples

        assert self.data is not None, "the network was made without its data"
        costs = phase_costs(run, self.architecture, ranks, self.examples, self.smaller)
        # Called for its errors alone.
        Best.from_run(run, self.data)
        examples = count_examples(run.data, run.train.seed, self.data, ranks)
        # Ranks with equal parts are alike, so the first of each kind is checked.
        first_ranks: set[int] = set()
        for cost, _ in costs:
            first_ranks.update(part.part.ranks[0] for part in cost.parts)
        members = sorted(first_ranks)
        for name, _ in run.phases():
            phase = run.override({"method.name": name})
            for network in (self.architecture, *self.smaller.values()):
                limits.require_usable(run, phase, self.data, network, ranks, members, examples)
                # Without a job, the processes of a host are not known, but there may be two.
                processes = group_size or run.train.group_size or FEWEST
                require_groups(phase.train, name, network, processes)
        return costs


def describe_run(
    run: Run,
    layers: str | None,
    shape: tuple[int, int] | None = None,
    in_a_row: int = FEATURES_IN_A_ROW,
    nodes: int = NODES,
    degree: float = DEGREE,
    ranks: int = 1,
) -> Described:
    """Return a run's network.

    It is made from ``layers`` (1000-4000-200), from a ``shape`` (features, labels), or from the
    run's data. If no data are read, ``in_a_row``, ``nodes`` and ``degree`` describe them. Epochs
    become rounds of ``ranks`` ranks.
    """
    require_known(run.model.name)
    run = run.with_implied()
    by_table = _describe_by_table(run, layers, shape, in_a_row, nodes, degree)
    return by_table or _describe_by_data(run, layers, ranks)


def _describe_by_table(
    run: Run,
    layers: str | None,
    shape: tuple[int, int] | None = None,
    in_a_row: int = FEATURES_IN_A_ROW,
    nodes: int = NODES,
    degree: float = DEGREE,
) -> Described | None:
    """Return a run's network from its table, without data; None if that is not possible."""
    name = run.model.name
    if not has_table(name):
        return None
    if layers is not None:
        features, *hidden, outputs = options.widths("--layers", layers)
        run = run.override({"model.hidden": hidden})
    elif shape is not None:
        features, outputs = shape
    else:
        return None
    task = CLASSIFICATION
    # The first task with inputs that the network accepts.
    for other, entry in TASKS.items():
        if entry.inputs == ACCEPTED_INPUTS.get(name):
            task = other
            break
    code = user_network(name, (features,), outputs, run.model.arguments_for(task), task)
    facts = Facts(code.inputs, outputs, in_a_row, degree=degree)
    table = find_table(name, facts, code.settings)
    assert table is not None, f"{name} has a table"
    network = Architecture(name, table, run.model.dtype, code)
    if not code.graph:
        return Described(run, network, None)
    # A graph is one example.
    network.nodes = (nodes, nodes)
    return Described(run.override({"train.batch": 1}), network, 1)


def _describe_by_data(run: Run, layers: str | None, ranks: int) -> Described:
    """Return a run's network for the data that it trains on."""
    from istmpi.training.epochs import convert_epochs
    from istmpi.training.network import plan_network
    from istmpi.training.sizes import plan_smaller_networks

    data = _open_data(run, layers)
    run = convert_epochs(run, data, ranks)
    network = plan_network(run, data)
    smaller = plan_smaller_networks(run, data, network)
    return Described(run, network, len(data.train), smaller, data)


def describe_on_all_ranks(run: Run, layers: str | None, communicator: Communicator) -> Described:
    """Return a run's network, which only rank 0 inspects.

    Collective. Raises ConfigError or DataError on every rank.
    """
    with communicator.agreed():
        run = run.with_implied()
        by_table = _describe_by_table(run, layers)
        if by_table:
            return by_table
        data = _open_data(run, layers)
    from istmpi.training.same_network import build_network

    return Described(run, build_network(run, data, communicator), len(data.train))


def _open_data(run: Run, layers: str | None) -> Dataset:
    """Return the run's data. Raises ConfigError if ``layers`` are given, too."""
    from istmpi.data.sources import open_for_training

    if layers is not None:
        raise ConfigError(
            f"--layers {layers} with {run.model.name} gives the widths of an mlp. Use --data, and "
            "set the widths of your network with --set model.ARGUMENT=VALUE."
        )
    if run.data.columns == "own":
        raise ConfigError(
            "data.columns = 'own' needs all ranks' files. Plan with a table of as many columns: "
            "--data TABLE --set data.columns=even."
        )
    return open_for_training(run.data, 0, run.train.seed)
