"""Finds a run's network: without data if `has_table` holds for its name, and layers or a shape are
given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from istmpi.cli import options
from istmpi.config import Run
from istmpi.cost import Cost, phase_costs
from istmpi.errors import ConfigError
from istmpi.methods import limits
from istmpi.models.architecture import Architecture
from istmpi.models.arguments import ACCEPTED_INPUTS, require_known, user_network
from istmpi.models.tables import Facts, has_table, table_of
from istmpi.tasks import CLASSIFICATION, TASKS

if TYPE_CHECKING:
    from istmpi.comm import Communicator
    from istmpi.data.dataset import Dataset


FEATURES_IN_A_ROW = 75
"""Features of a sparse row if no data are read: those of Amazon-670k."""
NODES, DEGREE = 100_000, 20
"""Nodes of a graph's batch, and neighbours of a node, if no data are read."""


@dataclass(frozen=True)
class Described:
    run: Run
    architecture: Architecture
    examples: int | None
    smaller: Mapping[int, Architecture] = field(default_factory=dict)
    data: Dataset | None = None

    def require_trainable(self, run: Run, ranks: int) -> list[tuple[Cost, int]]:
        """Return the costs of ``run`` on this network. Raises the errors with which its training
        would begin."""
        from istmpi.training.best import Best
        from istmpi.training.epochs import examples_of_ranks

        costs = phase_costs(run, self.architecture, ranks, self.examples, self.smaller)
        Best.of(run, self.data)
        examples = examples_of_ranks(run, self.data, ranks)
        members = sorted({part.part.ranks[0] for each, _ in costs for part in each.parts})
        for name, _ in run.phases():
            phase = run.override({"method.name": name})
            for network in (self.architecture, *self.smaller.values()):
                limits.require_usable(run, phase, self.data, network, ranks, members, examples)
        return costs


def described(
    run: Run,
    layers: str | None,
    shape: tuple[int, int] | None = None,
    in_a_row: int = FEATURES_IN_A_ROW,
    nodes: int = NODES,
    degree: float = DEGREE,
    ranks: int = 1,
) -> Described:
    """Return a run's network from ``layers`` (1000-4000-200), from a ``shape`` (features, labels),
    or from its data.

    If no data are read, ``in_a_row``, ``nodes`` and ``degree`` describe them. Epochs become rounds
    of ``ranks`` ranks.
    """
    require_known(run.model.name)
    run = run.with_implied()
    if has_table(run.model.name) and (layers is not None or shape is not None):
        if layers is not None:
            features, *hidden, outputs = options.widths("--layers", layers)
            run, shape = run.override({"model.hidden": hidden}), (features, outputs)
        name, (features, outputs) = run.model.name, shape
        tasks = (task for task, entry in TASKS.items() if entry.inputs == ACCEPTED_INPUTS.get(name))
        task = next(tasks, CLASSIFICATION)
        code = user_network(name, (features,), outputs, run.model.arguments_for(task), task)
        table = table_of(name, Facts(code.inputs, outputs, in_a_row, degree=degree), code.settings)
        network = Architecture(name, table, run.model.dtype, code)
        if code.graph:
            run = run.override({"train.batch": 1})
            network.nodes = nodes, nodes
        return Described(run, network, 1 if code.graph else None)
    from istmpi.training.epochs import in_rounds
    from istmpi.training.network import planned_network

    data, smaller = _data_of(run, layers), {}
    run = in_rounds(run, data, ranks)
    network = planned_network(run, data)
    if run.train.resolution:
        from istmpi.data.images.split import resized
        from istmpi.training.resolution import require_resizable, sides_of

        smaller = {
            side: planned_network(run, resized(data, side))
            for _, side in sides_of(run, data)
            if side
        }
        require_resizable(run, network)
    return Described(run, network, len(data.train), smaller, data)


def described_on_all_ranks(run: Run, layers: str | None, communicator: Communicator) -> Described:
    """Return a run's network, which only rank 0 inspects. Collective. Raises ConfigError or
    DataError on every rank."""
    with communicator.agreed():
        if has_table(run.model.name) and layers is not None:
            return described(run, layers)
        run = run.with_implied()
        data = _data_of(run, layers)
    from istmpi.training.network import network_of

    return Described(run, network_of(run, data, communicator), len(data.train))


def _data_of(run: Run, layers: str | None) -> Dataset:
    from istmpi.data.sources import open_for_training

    if layers is not None:
        raise ConfigError(
            f"--layers {layers} with {run.model.name} gives the widths of an mlp. Use --data, and set the "
            "widths of your network with --set model.ARGUMENT=VALUE."
        )
    return open_for_training(run.data, 0, run.train.seed)
