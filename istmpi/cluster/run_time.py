"""Seconds of a whole run on a cluster: its rounds, its evaluations and the save of its network.

Rounds, calls of small messages and links are those of `istmpi.cluster.time`. Loading is not
predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from istmpi.cluster.figures import Cluster
from istmpi.cluster.group_time import time_rounds
from istmpi.comm.at_once import MOST_RANKS, count_trips
from istmpi.comm.ring import count_waits
from istmpi.cost.calibration import count_values, forward_flops
from istmpi.cost.evaluation_plan import SummedUnits
from istmpi.cost.loads import ALLREDUCE, ALLTOALLV
from istmpi.cost.run_cost import Cost, phase_costs
from istmpi.cost.summed_units import count_summed
from istmpi.cost.waits import divide_by_method
from istmpi.engine.axes import count_bytes
from istmpi.evaluation.planned_waits import count_calls_of_moments, count_calls_of_sums
from istmpi.evaluation.planning import Evaluations
from istmpi.evaluation.together import keeps_logits, scores_together
from istmpi.training.saves import CALLS


@dataclass(frozen=True)
class RunTime:
    """The seconds of a run's parts."""

    rounds: float
    evaluations: float | None
    """A mean over ranks, as in a run's summary. None for evaluations of graphs, and of networks
    whose layers' outputs are gathered. Those whose scores choose the form are assumed to choose
    subnets side by side."""
    saving: float | None
    """The save of the network after its evaluation; None if ranks gather its weights once more, or
    pass examples through subnets side by side."""


def predict_run(planned: Evaluations, cluster: Cluster) -> RunTime:
    """Return the seconds of a run on a cluster. Raises ConfigError if it has another number of
    ranks."""
    run = planned.run
    architecture = planned.architecture
    ranks = planned.ranks
    cluster.check(ranks)
    phases = phase_costs(run, architecture, ranks, len(planned.data.train))
    of_rounds = 0.0
    for cost, rounds in phases:
        of_rounds += rounds * time_rounds(run, architecture, cost, cluster).total
        of_rounds += _seconds_of_bytes(float(cost.start_bytes) / ranks, cluster)
    plan = planned.plan
    unknown = planned.form != "merged" and not planned.knows_outputs
    gathers_outputs = bool(plan.sharded) and not plan.summed
    if unknown or gathers_outputs or plan.by_units or architecture.nodes[1]:
        return RunTime(rounds=of_rounds, evaluations=None, saving=None)
    costs = {cost.method: cost for cost, _ in phases}
    evaluations = _TimedEvaluations(planned, cluster)
    of_evaluations = 0.0
    for phase in divide_by_method(run, planned.rounds):
        cost = costs[phase.run.method.name]
        of_evaluations += len(phase.rounds) * evaluations.predict(cost)
        if phase.is_handed_over:
            of_evaluations += evaluations.predict_merged(cost, is_handed_over=True)
    if keeps_logits(planned):
        of_evaluations += evaluations.predict_sample()
    return RunTime(rounds=of_rounds, evaluations=of_evaluations, saving=evaluations.predict_save())


@dataclass(frozen=True)
class _TimedEvaluations:
    """The seconds of planned evaluations on a cluster, and of the save after the last one."""

    planned: Evaluations
    cluster: Cluster

    def predict_save(self) -> float | None:
        """Return the seconds of the save of the network; None if they are not known."""
        planned = self.planned
        ranks = planned.ranks
        form = planned.form
        # The pass that chose the form has left its logits for the temperature.
        has_logits = planned.plan.leaves_outputs
        is_known = ranks == 1 or (has_logits and form in ("merged", "best"))
        # Weights of joint also travel to their owners.
        is_known |= form == "blocks" and keeps_logits(planned)
        if planned.data.scoring.one_class and not is_known:
            return None
        return CALLS * self.cluster.small_call(ranks) + self.cluster.save_seconds

    def predict(self, last: Cost) -> float:
        """Return the seconds of an evaluation after a round of the cost ``last``."""
        form = self.planned.form
        if not last.groups:
            # Each rank trains the whole network.
            form = "merged"
        seconds = 0.0
        if form in ("merged", "best"):
            seconds += self.predict_merged(last)
        if form != "merged":
            seconds += self._predict_subnets()
        plan = self.planned.plan
        if form == "best" and plan.summed:
            # Both wait for the same message, and rank 0 tells both scores.
            of_scores = _told_seconds(self.planned.ranks, self.cluster)
            seconds += of_scores - self._wait_for_sums(plan.summed)
        return seconds

    def predict_merged(self, last: Cost, is_handed_over: bool = False) -> float:
        """Return the seconds of an evaluation of the full network after a round of the cost
        ``last``. ``is_handed_over``: True if owners alone have the newest values."""
        planned = self.planned
        ranks = planned.ranks
        cluster = self.cluster
        plan = planned.plan
        seconds = 0.0
        present: list[str] = []
        if not is_handed_over:
            present = last.spec.on_all_ranks(planned.run, planned.architecture, ranks)
            if last.flush_bytes:
                # Owners get the newest values in a transfer like those of a round.
                seconds += _message_seconds(ranks, float(last.flush_bytes) / ranks, cluster)
                seconds += cluster.transfer_seconds
        if ranks > 1 and not set(planned.architecture.parameters) <= set(present):
            # All weights pass the link of rank 0, or each rank's part all links.
            links = ranks
            if plan.on_one:
                links = 1
            seconds += _message_seconds(ranks, self._count_gathered(present) / links, cluster)
        seconds += self._time_passes()
        if ranks == 1:
            return seconds
        if plan.summed:
            return seconds + self._wait_for_sums(plan.summed)
        calls = count_calls_of_moments(planned.architecture, plan)
        calls += count_calls_of_sums(planned.data, plan)
        # Rank 0 tells the sums of the score, or all ranks tell each other.
        if plan.on_one:
            seconds += _told_seconds(ranks, cluster)
            calls -= 1
        return seconds + calls * cluster.small_call(ranks)

    def predict_sample(self) -> float:
        """Return the seconds that the outputs for the sample add to the last evaluation of
        subnets."""
        planned = self.planned
        nbytes = planned.count_output_bytes(planned.sampled)
        moved = 2 * (planned.ranks - 1) / planned.ranks * nbytes
        return moved * self.cluster.links[ALLREDUCE].seconds_per_byte

    def _wait_for_sums(self, units: SummedUnits) -> float:
        """Return the seconds of waits in the sum over the units of all ranks. Its bytes are among
        those of the plan."""
        planned = self.planned
        architecture = planned.architecture
        numbers = count_summed(architecture, units, planned.plan.at_once)
        waits = count_waits(numbers * architecture.itemsize, planned.ranks)
        return waits * self.cluster.links[ALLREDUCE].latency

    def _predict_subnets(self) -> float:
        """Return the seconds that subnets side by side add to an evaluation: their passes over the
        scored examples, and over the sample if its scores choose the form."""
        planned = self.planned
        architecture = planned.architecture
        ranks = planned.ranks
        passes = planned.list_batches(planned.scored)
        if planned.form == "best":
            passes += planned.list_batches(planned.sampled)
        sizes = [planned.count_output_bytes(examples) for examples in passes]
        # The moments travel with the first outputs.
        sizes[0] += (planned.moments or 0) * architecture.itemsize
        seconds = _time_means(sizes, scores_together(planned), ranks, self.cluster)
        if architecture.batch_norms:
            passes.append(planned.sampled)
        flops = sum(passes) * forward_flops(architecture, 1) / ranks
        seconds += float(flops) / self.cluster.speed(range(1))
        return seconds + len(passes) * len(architecture.operators) * self.cluster.product_seconds

    def _count_gathered(self, present: Sequence[str]) -> float:
        """Return the bytes that all ranks send in an evaluation if every rank has the weights
        ``present``. The plan is for those of the run's first method."""
        planned = self.planned
        ranks = planned.ranks
        share: float = ranks - 1
        if planned.plan.on_one:
            share /= ranks
        parameters = planned.architecture.parameters
        of_plan = planned.list_present(planned.run)
        more = {name: parameters[name] for name in of_plan if name not in present}
        fewer = {name: parameters[name] for name in present if name not in of_plan}
        lengths = planned.architecture.lengths
        return planned.plan.sent + share * (
            count_bytes(more, lengths) - count_bytes(fewer, lengths)
        )

    def _time_passes(self) -> float:
        """Return the seconds of the passes of an evaluation of the full network."""
        planned = self.planned
        architecture = planned.architecture
        cluster = self.cluster
        flops = planned.count_flops()
        passes = planned.list_passes()
        # Leaders alone add up what units contribute.
        members = 1
        if not planned.plan.summed:
            members = max(planned.run.train.group_size, 1)
        seconds = cluster.evaluation_seconds
        if members > 1:
            weights = count_bytes(architecture.parameters, architecture.lengths)
            seconds += (members - 1).bit_length() * weights * cluster.inside.seconds_per_byte
        alone = planned.plan.on_one or planned.ranks == 1
        # Each rank passes all examples through most layers, as a rank alone does.
        if alone or planned.plan.summed:
            values = count_values(architecture, passes)
            seconds += cluster.evaluate_alone(float(flops) / members, values / members)
        else:
            seconds += float(flops) / members / cluster.speed(range(1))
        return seconds + len(passes) * len(architecture.operators) * cluster.product_seconds


def _time_means(sizes: Sequence[int], together: bool, ranks: int, cluster: Cluster) -> float:
    """Return the seconds of means over ranks of so many bytes each, one after the other or
    ``together``."""
    link = cluster.links[ALLREDUCE]
    waits = [count_waits(nbytes, ranks) for nbytes in sizes]
    count = sum(waits)
    if together:
        count = max(waits)
    moved = 2 * (ranks - 1) / ranks * sum(sizes)
    return count * link.latency + moved * link.seconds_per_byte


def _told_seconds(ranks: int, cluster: Cluster) -> float:
    """Return the seconds until a rank has what rank 0 tells all, as a mean over ranks."""
    trips: float = ranks - 1
    if ranks > MOST_RANKS:
        # Ranks pass it on.
        trips = sum(rank.bit_count() for rank in range(ranks))
    return trips / ranks / count_trips(ranks) * cluster.small_call(ranks)


def _message_seconds(ranks: int, nbytes: float, cluster: Cluster) -> float:
    """Return the seconds of messages with all other ranks, of ``nbytes`` in all."""
    link = cluster.links[ALLTOALLV]
    return (ranks - 1) * link.latency + _seconds_of_bytes(nbytes, cluster)


def _seconds_of_bytes(nbytes: float, cluster: Cluster) -> float:
    return nbytes * cluster.links[ALLTOALLV].seconds_per_byte
