"""Advice on what to run on a cluster: a method, ranks and local steps, by rules that anyone can
check."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

from istmpi.cluster.survey import Scenario, speed_up, with_lengths
from istmpi.cluster.time import COMPUTING, link_rate
from istmpi.config.methods import METHODS
from istmpi.cost.rivals import find_method
from istmpi.cost.run_cost import Cost
from istmpi.units import counted, in_seconds, number

LOCAL_STEPS = (1, 2, 5, 10, 20, 40, 60, 100)
LEAST_LOCAL_STEPS = {"streaming-diloco": 100, "sparse-loco": 30}
TRANSFER_SHARE = 0.2
"""The largest share of a round's time for transfers; below it, more local steps save little."""
LEAST_SHARE = 0.1
"""The smallest share of the network that an example may train: a share of 1/8 helped, 1/20
harmed."""
LEAST_EFFICIENCY = 0.5
NARROW = 16
"""The most units of a rank's layer with which joint was ahead in a table of docs/results.md."""
WORTH_IT = 1.25
"""The least speed-up over a method that trains more like a single process."""
FAITHFUL = ("data-parallel", "local-sgd", "streaming-diloco", "sparse-loco", "ist")
"""Methods, in the order of how closely they train like one process."""
COLUMNS = ("method", "ranks", "local steps", "an epoch", f"link for {COMPUTING:.0%} computing")
CHEAPER: dict[str, dict[str, Any]] = {
    ", a tenth redealt": {"method.redeal": 0.1},
    ", a tenth redealt, int8": {"method.redeal": 0.1, "method.wire": "int8"},
    ", never redealt": {"method.redeal": 0.0},
}


@dataclass(frozen=True)
class Choice:
    """A method on some ranks with some local steps, and its cost on the scenario's cluster."""

    scenario: Scenario
    method: str
    ranks: int
    local_steps: int

    @cached_property
    def cost(self) -> Cost:
        scenario = self.scenario.override({"method.local_steps": self.local_steps})
        return scenario.cost(self.method, self.ranks)

    @cached_property
    def seconds(self) -> float:
        """The seconds of an epoch."""
        counted = self.cost
        rounds = self.scenario.examples / float(counted.local_steps * counted.examples_per_step)
        return rounds * self.scenario.time(counted).total

    @property
    def sensible(self) -> bool:
        """True if the ranks are used well, the memory is enough, and an example trains enough."""
        faster = speed_up(self.scenario.alone(), self.seconds)
        if faster < max(LEAST_EFFICIENCY * self.ranks, 1):
            return False
        if self.scenario.memory(self.cost).total > (self.scenario.cluster.memory or inf):
            return False
        return self.cost.held.share_of_a_rank >= LEAST_SHARE


@dataclass(frozen=True)
class Advice:
    """The recommended run in words, a row of `COLUMNS` for each method, and notes."""

    first: str
    rows: list[tuple[str, ...]]
    notes: list[str]


def advise(scenario: Scenario, most_ranks: int) -> Advice:
    """Recommend a run on a cluster, or one process if no method is efficient; list all methods."""
    alone = scenario.alone()
    best = _best_choices(scenario, most_ranks)
    chosen, beaten = _choose(best.values())
    notes = [f"Times assume {scenario.cluster.name}; measure your cluster with istmpi measure."]
    if chosen is None:
        first = (
            f"Run one process: {in_seconds(alone)} an epoch. Up to {most_ranks} ranks reach less "
            "than half of their speed with each method."
        )
        rows = _rows(scenario, 2, scenario.method.local_steps, best)
        return Advice(first=first, rows=rows, notes=notes)
    gigabytes = float(chosen.scenario.memory(chosen.cost).total / 1e9)
    share = float(chosen.cost.held.share_of_a_rank)
    needs = f"A rank needs {gigabytes:.3g} GB. An example trains {share:.0%} of the network."
    notes = [_explain(chosen, beaten, most_ranks), needs, *notes]
    if chosen.method == "ist":
        notes += [
            "Accuracy: a network 1/P as wide under local-sgd or sparse-loco was usually as good: "
            "try it first.",
            "Exceptions are 8 ranks with all the data and few units of a layer. Side by side, ist "
            "never redealt was 2 to 7 points ahead on Reuters with 16 to 4 units. It was 3 to 20 "
            "ahead on spoken digits with 16 and 4. It gained nothing on CIFAR-10 and identifiers "
            "with 16. "
            "See docs/results.md, Few units a rank.",
        ]
    notes += _note_joint(chosen)
    notes += _note_experts(chosen)
    first = (
        f"Run {chosen.method} on {chosen.ranks} ranks with "
        f"{counted(chosen.local_steps, 'local step')}: an epoch in {in_seconds(chosen.seconds)}, "
        f"{speed_up(alone, chosen.seconds):.3g} times as fast as one process."
    )
    rows = _rows(scenario, chosen.ranks, chosen.local_steps, best)
    return Advice(first=first, rows=rows, notes=notes)


def _choose(choices: Iterable[Choice]) -> tuple[Choice | None, Choice | None]:
    """Return the recommended choice, and the more faithful one that it replaces; None if there is
    none. ``choices``: the most faithful first."""
    chosen: Choice | None = None
    beaten: Choice | None = None
    for choice in choices:
        if chosen is None:
            chosen = choice
        elif choice.seconds * WORTH_IT <= chosen.seconds:
            beaten = chosen
            chosen = choice
    return chosen, beaten


def _explain(chosen: Choice, beaten: Choice | None, most_ranks: int) -> str:
    """Return the reasons for the method, the ranks and the local steps."""
    reason = (
        f"Why: {chosen.method} trains most like one process of the methods that use the ranks "
        f"well, and no other is {WORTH_IT:g} times as fast."
    )
    if beaten:
        reason = (
            f"Why: {chosen.method} is {speed_up(beaten.seconds, chosen.seconds):.3g} times as fast "
            f"as {beaten.method}, which trains more like one process; {WORTH_IT:g} times is enough."
        )
    time = chosen.scenario.time(chosen.cost)
    share = 0.0
    if time.total:
        share = float(time.transfer / time.total)
    steps = counted(chosen.local_steps, "local step")
    return (
        f"{reason} Of the powers of two up to {most_ranks}, {chosen.ranks} ranks are the fastest "
        f"that it uses well. Transfers take {share:.0%} of a round of {steps}."
    )


def _note_joint(chosen: Choice) -> Iterator[str]:
    """Yield a note on method joint if its outputs are fewer bytes than a subnet's weights, and the
    subnets are as narrow as where it was ahead."""
    scenario = chosen.scenario
    if not scenario.can("joint") or not scenario.allows("joint", chosen.ranks):
        return
    lengths = scenario.architecture.lengths
    dealt = find_method("joint").groups(scenario.run, scenario.architecture)
    units = max((lengths[name] for name in dealt), default=0) // chosen.ranks
    joint = replace(chosen, method="joint").cost
    outputs = float(joint.round_bytes)
    weights = 2.0 * (chosen.ranks - 1) * float(joint.largest.memory.network)
    if outputs < weights and 0 < units <= NARROW:
        yield (
            f"joint sends {number(outputs)}B a round, and local-sgd of a network 1/P as wide "
            f"{number(weights)}B. A rank has {counted(units, 'unit')} of a layer. joint was 3 to "
            "20 points ahead of that network on five of six tasks. There, 8 ranks had the same "
            "data and 4 to 16 units. Try its rivals first: that network under sparse-loco sends "
            "less, and ist never redealt with evaluate.form = blocks (an ensemble) sends "
            "almost nothing (docs/results.md, The sum of outputs)."
        )


def _note_experts(chosen: Choice) -> Iterator[str]:
    """Yield a note on experts by likelihood if each rank has text of its own, and units to hold."""
    scenario = chosen.scenario
    if not scenario.has_own_texts or chosen.ranks > (scenario.most_ranks("ist") or 0):
        return
    stay = scenario.override({"method.redeal": 0.0})
    experts = replace(chosen, scenario=stay, method="ist").cost
    sent = float(experts.round_bytes)
    bytes_sent = "nothing"
    if sent:
        bytes_sent = f"{number(sent)}B a round, and nothing if method.partition has all widths"
    yield (
        "Experts by likelihood were ahead of local-sgd where each rank had text of another domain: "
        "method.redeal = 0 and evaluate.form = likelihood. They send "
        f"{bytes_sent}. A rank needs {float(experts.largest.memory.total) / 1e9:.3g} GB. An "
        f"evaluation passes each text through {chosen.ranks} networks, and istmpi predict holds "
        "all of them (docs/methods.md)."
    )


def _best_choices(scenario: Scenario, most_ranks: int) -> dict[str, Choice]:
    """Return the fastest sensible choice of each method that has one, the most faithful first."""
    # 2, 4, 8 and so on: costs change little between neighbouring powers.
    counts = [2**power for power in range(1, most_ranks.bit_length())]
    best: dict[str, Choice] = {}
    for method in dict.fromkeys([*FAITHFUL, scenario.method.name]):
        if method not in METHODS or not scenario.can(method):
            continue
        allowed = [ranks for ranks in counts if scenario.allows(method, ranks)]
        choices = [_with_local_steps(scenario, method, ranks) for ranks in allowed]
        sensible = [choice for choice in choices if choice.sensible]
        if sensible:
            best[method] = min(sensible, key=lambda choice: choice.seconds)
    return best


def _with_local_steps(scenario: Scenario, method: str, ranks: int) -> Choice:
    every = (1,) if find_method(method).sends_every_step else LOCAL_STEPS
    # The fewest steps at which transfers are cheap: more steps train less like one process.
    for local_steps in (steps for steps in every if steps >= LEAST_LOCAL_STEPS.get(method, 1)):
        choice = Choice(scenario, method, ranks, local_steps)
        time = scenario.time(choice.cost)
        if time.transfer <= TRANSFER_SHARE * time.total:
            break
    return choice


def _variants(scenario: Scenario, ranks: int) -> Iterator[tuple[str, str, Scenario]]:
    if not scenario.can("ist") or ranks > (scenario.most_ranks("ist") or 0):
        return
    for words, settings in CHEAPER.items():
        yield f"ist{words}", "ist", scenario.override(settings)
    full = scenario.architecture
    # As wide as the subnets of ist, to compare both at about the same cost of a step.
    dealt = find_method("ist").groups(scenario.run, full)
    narrow = with_lengths(
        full, full.lengths | {name: max(full.lengths[name] // ranks, 1) for name in dealt}
    )
    for method in ("local-sgd", "sparse-loco"):
        yield f"{method}, network 1/P as wide", method, replace(scenario, architecture=narrow)


def _rows(
    scenario: Scenario, ranks: int, local_steps: int, best: Mapping[str, Choice]
) -> list[tuple[str, ...]]:
    methods = [
        (name, name, scenario)
        for name, spec in METHODS.items()
        if scenario.can(name)
        and not spec.in_passes
        and (name in best or scenario.allows(name, ranks))
    ]
    rows: list[tuple[str, ...]] = []
    # A method without a sensible choice is shown with the ranks and steps of the recommended run.
    for title, method, variant in [*methods, *_variants(scenario, ranks)]:
        choice = best.get(title) or Choice(
            variant, method, ranks, max(local_steps, LEAST_LOCAL_STEPS.get(method, 1))
        )
        link = _bits(link_rate(choice.cost, scenario.cluster))
        steps = "-" if find_method(method).sends_every_step else str(choice.local_steps)
        rows.append((title, str(choice.ranks), steps, in_seconds(choice.seconds), link))
    return rows


def _bits(rate: float) -> str:
    if rate in (0, inf):
        return "needs none" if rate == 0 else "more than any rate"
    return f"{number(rate)}bit/s"
