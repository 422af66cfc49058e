"""The cost of several methods at several numbers of ranks, as flat rows for tables, files and
plots."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import Any

from istmpi.cluster.figures import Cluster
from istmpi.cluster.group_time import time_rounds
from istmpi.cluster.time import RoundTime, round_time
from istmpi.config import Run
from istmpi.config.learner import Method
from istmpi.cost.counts import Memory
from istmpi.cost.members import GroupCost, count_group
from istmpi.cost.rivals import find_method
from istmpi.cost.run_cost import Cost, cost
from istmpi.methods.group_limits import is_divisible, require_groups, require_size
from istmpi.network.architecture import Architecture

FIGURE_2 = {
    "model.hidden": (4000, 4000, 4000),
    "model.norm": "none",
    "train.batch": 512,
    "method.local_steps": 10,
}
"""The run of the paper's Figure 2, whose network is 1000-4000-4000-4000-200."""
FIGURE_2_FEATURES = 1000
FIGURE_2_LABELS = 200

Row = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    run: Run
    architecture: Architecture
    cluster: Cluster
    examples: int
    shared_batch: bool = False
    """True if methods that send in each step divide train.batch among the ranks."""

    def __post_init__(self) -> None:
        members = self.run.train.group_size
        require_size(members)
        require_groups(self.run.train, self.method.name, self.architecture, members)

    @property
    def method(self) -> Method:
        """The settings of the run's method."""
        return self.run.method

    @property
    def has_own_texts(self) -> bool:
        """True if each rank has texts of its own."""
        return self.run.data.placement == "local" and bool(self.architecture.code.tokens)

    def override(self, settings: Mapping[str, Any]) -> "Scenario":
        """Return the scenario with other settings."""
        return replace(self, run=self.run.override(settings))

    def cost(self, method: str, ranks: int) -> Cost:
        return cost(self.run, self.architecture, ranks, method, self.shared_batch, self.examples)

    def count_group(self, plan: Cost) -> GroupCost | None:
        """Return what replica groups add to a cost; None without groups."""
        members = self.run.train.group_size
        if members < 2:
            return None
        return count_group(
            self.run, self.architecture, plan.ranks, members, plan.local_steps, method=plan.method
        )

    def memory(self, plan: Cost) -> Memory:
        """Return the memory of the largest rank of a cost, or of the leader of its replica
        group."""
        group = self.count_group(plan)
        if group is None:
            return plan.largest.memory
        return group.leader

    def time(self, plan: Cost) -> RoundTime:
        """Return the seconds of a round of a cost; a rank may be a replica group."""
        return time_rounds(self.run, self.architecture, plan, self.cluster)

    def alone(self) -> float:
        """Return the seconds of an epoch in one process as fast as the fastest rank."""
        # On one rank, local-sgd sends nothing: it is plain training.
        plain = self.run.override({"method.name": "local-sgd", "method.shares": None})
        plain_cost = cost(plain, self.architecture, 1)
        # A speed-up over a slow rank would say too much.
        cluster = replace(self.cluster, flops=(max(self.cluster.flops),))
        examples = float(plain_cost.local_steps * plain_cost.examples_per_step)
        return self.examples / examples * round_time(plain_cost, cluster).compute

    def can(self, method: str) -> bool:
        """Return False if a method deals out units, but there are none, unless method.partition is
        empty, or needs outputs that replica groups do not exchange."""
        spec = find_method(method)
        if not is_divisible(self.run.train, method, self.architecture):
            return False
        if not spec.deals or self.method.partition == ():
            return True
        return bool(spec.groups(self.run, self.architecture))

    def most_ranks(self, method: str) -> int | None:
        """Return the most ranks that get a unit of each dealt group; None if nothing is dealt."""
        spec = find_method(method)
        groups = spec.groups(self.run, self.architecture)
        if not groups:
            return None
        units = min(self.architecture.lengths[name] for name in groups)
        return spec.cut(self.run, 1).count_most_ranks(units)

    def divides(self, method: str, ranks: int) -> bool:
        """Return False if the deal has no place for so many ranks."""
        return find_method(method).cut(self.run, ranks).is_whole

    def allows(self, method: str, ranks: int) -> bool:
        return ranks <= (self.most_ranks(method) or ranks)

    def narrowest(self, method: str) -> str:
        groups = find_method(method).groups(self.run, self.architecture)
        return min(groups, key=self.architecture.lengths.__getitem__)


def survey(scenario: Scenario, methods: Sequence[str], ranks: Sequence[int]) -> list[Row]:
    """Return a row for each method and number of ranks; none if a rank would get no unit."""
    alone = scenario.alone()
    return [
        _row(scenario, method, count, alone)
        for method in methods
        for count in ranks
        if scenario.allows(method, count)
    ]


def speed_up(alone: float, together: float) -> float:
    """Return how many times as fast as one process ranks are; 1 if their work takes no time on this
    cluster."""
    return alone / together if together else 1.0


def with_lengths(architecture: Architecture, lengths: dict[str, int]) -> Architecture:
    # The network is counted, never built: a copy with other lengths is enough.
    other = copy(architecture)
    other.lengths = lengths
    return other


def _row(scenario: Scenario, method: str, ranks: int, alone: float) -> Row:
    scenario.cluster.check(ranks)
    plan = scenario.cost(method, ranks)
    steps = plan.local_steps
    examples = plan.examples_per_step
    time = scenario.time(plan)
    epoch = time.total * scenario.examples / float(steps * examples)
    memory = scenario.memory(plan)
    products = plan.flops("products", "first_input_gradient")
    received = plan.received_elements
    row: Row = {
        "method": method,
        "ranks": ranks,
        "local_steps": steps,
        "examples_per_step": examples,
        # The paper counts so: one way, own elements included.
        "received_floats_per_step": received / steps,
        "sent_bytes_per_step": plan.round_bytes / steps,
        "sent_bytes_per_step_and_rank": plan.round_bytes / steps / ranks,
        "sent_bytes_per_round": plan.round_bytes,
        "sent_bytes_at_start": plan.start_bytes,
        "flops_per_step": products,
        "flops_per_step_without_first_input_gradient": plan.flops("products"),
        "memory_bytes": memory.total,
        **{f"memory_{name}_bytes": amount for name, amount in asdict(memory).items()},
        "compute_seconds_per_round": time.compute,
        "transfer_seconds_per_round": time.transfer,
        "seconds_per_round": time.total,
        "seconds_per_epoch": epoch,
        "speed_up": speed_up(alone, epoch),
        "efficiency": speed_up(alone, epoch) / (ranks * scenario.run.train.group_size),
        **_describe_group(scenario, plan),
    }
    return {key: _plain(value) for key, value in row.items()}


def _describe_group(scenario: Scenario, plan: Cost) -> Row:
    """Return what a row says of replica groups: their members, what these send to each other, and
    the memory of one that does not lead."""
    group = scenario.count_group(plan)
    if group is None:
        return {}
    return {
        "members": group.members,
        "sent_bytes_inside_groups_per_round": group.round_bytes,
        "memory_of_member_bytes": group.member.total,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, str | float):
        return value
    # Counts are whole numbers, or exact fractions if they are expectations.
    return int(value) if value == int(value) else float(value)
