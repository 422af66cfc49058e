"""What to run on a cluster: a method that istmpi has, ranks, local steps, and why, by rules that anyone can check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from istmpi.cost.rivals import counted
from istmpi.cost.survey import Scenario, resized
from istmpi.cost.time import COMPUTING, link_rate, round_time
from istmpi.methods import METHODS
from istmpi.units import in_seconds

LOCAL_STEPS = (1, 2, 5, 10, 20, 40, 60, 100)
"""What is tried; the paper used 20 to 160."""
LEAST_LOCAL_STEPS = {"streaming-diloco": 100, "sparse-loco": 30}
"""Of methods whose papers have such rounds. Shorter ones pick and pack all values more often, which takes longer than
the copies by which it is counted."""
TRANSFER_SHARE = 0.2
"""Local steps are as few as keep the transfers below this share of a round: more would save little more."""
LEAST_SHARE = 0.1
"""Of the network that an example trains. In the paper's Table 1 more ranks help down to an eighth (4096-4096-35 on 8,
4096-8192-8192-35 on 4) and harm at a twentieth (the latter on 8)."""
LEAST_EFFICIENCY = 0.5
"""Against one process: with less, half of the machines are better used for something else."""
WORTH_IT = 1.25
"""A method that changes what is learnt must be faster by this factor than one that changes less."""

FAITHFUL = ("data-parallel", "local-sgd", "streaming-diloco", "sparse-loco", "ist")
"""From what trains exactly as one process would to what departs most from it."""


@dataclass(frozen=True)
class Variant:
    """A method with settings that are not the run's; it is told of, and chosen by the user, not by the rules."""

    title: str
    method: str
    settings: Mapping[str, Any]
    narrow: bool = False
    """Of a network with a P-th of each dealt width."""

    def of(self, scenario: Scenario, ranks: int) -> Scenario:
        """The scenario with it."""
        architecture = scenario.architecture
        if self.narrow:
            dealt = counted("ist").groups(scenario.run, architecture)
            lengths = {name: max(length // ranks, 1) for name, length in architecture.lengths.items() if name in dealt}
            architecture = resized(architecture, architecture.lengths | lengths)
        return replace(scenario, run=scenario.run.override(self.settings), architecture=architecture)


VARIANTS = (
    Variant("ist with redeal 0.1", "ist", {"method.redeal": 0.1}),
    Variant("ist with redeal 0.1 in int8", "ist", {"method.redeal": 0.1, "method.wire": "int8"}),
    Variant("ist never redealt", "ist", {"method.redeal": 0.0}),
    Variant("local-sgd of a network a P-th as wide", "local-sgd", {}, narrow=True),
    Variant("sparse-loco of a network a P-th as wide", "sparse-loco", {}, narrow=True),
)


@dataclass(frozen=True)
class Choice:
    """A way to run, and its seconds per epoch."""

    method: str
    ranks: int
    local_steps: int
    seconds: float
    transfer_share: float


def advise(scenario: Scenario, most_ranks: int) -> list[str]:
    """Six lines: what to run; why this method, so many ranks, and local steps; what link methods need; and beware."""
    alone = scenario.alone()
    counts = _powers_of_two(most_ranks)
    best = {name: choice for name in _candidates(scenario) if (choice := _best(scenario, name, counts, alone))}
    chosen = None
    for choice in best.values():
        if chosen is None or choice.seconds * WORTH_IT <= chosen.seconds:
            chosen = choice
    if chosen is None:
        return _one_process(scenario, alone, most_ranks)
    return [
        f"Run {chosen.method} on {chosen.ranks} ranks with {chosen.local_steps} local steps: an epoch in "
        f"{in_seconds(chosen.seconds)}, {alone / chosen.seconds:.3g} times as fast as one process.",
        _why_method(scenario, chosen, best),
        _why_ranks(scenario, chosen, counts, alone),
        _why_local_steps(scenario, chosen),
        _links(scenario, chosen.ranks, chosen.local_steps),
        _beware(scenario, chosen),
    ]


def _candidates(scenario: Scenario) -> list[str]:
    own = scenario.run.method.name
    names = [*FAITHFUL, *([own] if own not in FAITHFUL and own in METHODS else [])]
    return list(filter(scenario.can, names))


def _best(scenario: Scenario, method: str, counts: Sequence[int], alone: float) -> Choice | None:
    """The fastest sensible way to run a method; None where no number of ranks is sensible."""
    choices = []
    for ranks in counts:
        if ranks == 1 or not _sensible(scenario, method, ranks):
            continue
        choice = _with_local_steps(scenario, method, ranks)
        if alone / choice.seconds >= max(LEAST_EFFICIENCY * ranks, 1):
            choices.append(choice)
    return min(choices, key=lambda choice: choice.seconds, default=None)


def _sensible(scenario: Scenario, method: str, ranks: int) -> bool:
    if ranks > (scenario.most_ranks(method) or ranks):
        return False
    plan, memory = scenario.cost(method, ranks), scenario.cluster.memory
    return plan.held.share_of_a_rank >= LEAST_SHARE and (memory is None or plan.largest.memory.total <= memory)


def _with_local_steps(scenario: Scenario, method: str, ranks: int) -> Choice:
    """The fewest local steps with which transfers are a small part of the time."""
    every_step = counted(method).synchronous
    for local_steps in (1,) if every_step else [steps for steps in LOCAL_STEPS if steps >= _at_least(1, method)]:
        choice = _at(scenario, method, ranks, local_steps)
        if choice.transfer_share <= TRANSFER_SHARE:
            break
    return choice


def _at_least(local_steps: int, method: str) -> int:
    return max(local_steps, LEAST_LOCAL_STEPS.get(method, 1))


def _at(scenario: Scenario, method: str, ranks: int, local_steps: int) -> Choice:
    other = _with_rounds_of(scenario, local_steps)
    time = round_time(other.cost(method, ranks), scenario.cluster)
    return Choice(method, ranks, local_steps, other.seconds(method, ranks), time.transfer / time.total)


def _with_rounds_of(scenario: Scenario, local_steps: int) -> Scenario:
    run = scenario.run
    return replace(scenario, run=replace(run, method=replace(run.method, local_steps=local_steps)))


def _why_method(scenario: Scenario, chosen: Choice, best: dict[str, Choice]) -> str:
    others = [
        f"{name} (P = {choice.ranks}, J = {choice.local_steps}) takes {choice.seconds / chosen.seconds:.3g} times"
        for name, choice in best.items()
        if name != chosen.method
    ]
    for name in _candidates(scenario):
        if name not in best:
            others.append(f"{name} gets less than half of the speed of its ranks")
            if chosen.ranks <= (scenario.most_ranks(name) or chosen.ranks):
                times = scenario.seconds(name, chosen.ranks) / chosen.seconds
                others[-1] += f" (P = {chosen.ranks}: {times:.3g} times)"
    for one in _variants(scenario, chosen.ranks):
        steps = _at_least(chosen.local_steps, one.method)
        seconds = _at(one.of(scenario, chosen.ranks), one.method, chosen.ranks, steps).seconds
        others.append(f"{one.title} (P = {chosen.ranks}, J = {steps}) takes {seconds / chosen.seconds:.3g} times")
    return f"Method: {'; '.join(others)}."


def _why_ranks(scenario: Scenario, chosen: Choice, counts: Sequence[int], alone: float) -> str:
    text = f"Ranks: efficiency {alone / chosen.seconds / chosen.ranks:.0%} of {chosen.ranks} single processes"
    more = next((count for count in counts if count > chosen.ranks), None)
    if more is None:
        return f"{text}; more were not asked for (--most-ranks)."
    if more > (scenario.most_ranks(chosen.method) or more):
        return f"{text}; {more} are more than {scenario.narrowest(chosen.method)} has units."
    plan, memory = scenario.cost(chosen.method, more), scenario.cluster.memory
    if plan.held.share_of_a_rank < LEAST_SHARE:
        share = float(plan.held.share_of_a_rank)
        return f"{text}; on {more} an example would train {share:.0%} of the network, too little to pay in the paper."
    if memory is not None and plan.largest.memory.total > memory:
        return f"{text}; on {more} a rank would need {float(plan.largest.memory.total) / 1e9:.3g} GB."
    next_best = _with_local_steps(scenario, chosen.method, more)
    efficiency, epoch = alone / next_best.seconds / more, in_seconds(next_best.seconds)
    return f"{text}; {more} would be at {efficiency:.0%}, an epoch in {epoch}."


def _why_local_steps(scenario: Scenario, chosen: Choice) -> str:
    share = f"transfers are {chosen.transfer_share:.0%} of a round"
    if counted(chosen.method).synchronous:
        return f"Local steps: gradients are averaged in every step, so J does not matter; {share}."
    twice = _at(scenario, chosen.method, chosen.ranks, 2 * chosen.local_steps)
    return (
        f"Local steps: {share}; {2 * chosen.local_steps} would save {1 - twice.seconds / chosen.seconds:.0%}, "
        "and let the ranks drift further apart."
    )


def _links(scenario: Scenario, ranks: int, local_steps: int) -> str:
    """The rate that each method needs for its ranks to hardly wait, with so many local steps or its own least."""
    wanted = [
        (name, name, scenario)
        for name, spec in METHODS.items()
        if scenario.can(name) and not spec.in_passes and ranks <= (scenario.most_ranks(name) or ranks)
    ]
    wanted += [(one.title, one.method, one.of(scenario, ranks)) for one in _variants(scenario, ranks)]
    rates = []
    for title, method, one in wanted:
        steps = _at_least(local_steps, method)
        rate = link_rate(_with_rounds_of(one, steps).cost(method, ranks), scenario.cluster)
        own_steps = f" (J = {steps})" if steps != local_steps else ""
        rates.append(f"{title}{own_steps} {_bits(rate)}")
    joined = ", ".join(rates)
    return f"Link: to compute {COMPUTING:.0%} of its time at P = {ranks}, J = {local_steps} a rank needs {joined}."


def _variants(scenario: Scenario, ranks: int) -> list[Variant]:
    can = scenario.can("ist") and scenario.most_ranks("ist") is not None and ranks <= scenario.most_ranks("ist")
    return list(VARIANTS) if can else []


def _bits(rate: float) -> str:
    """Bits a second with a prefix."""
    if rate in (0, inf):
        return "none" if rate == 0 else "more than any rate"
    for prefix, size in (("G", 1e9), ("M", 1e6)):
        if rate >= size:
            return f"{rate / size:.3g} {prefix}bit/s"
    return f"{rate / 1e3:.3g} kbit/s"


def _beware(scenario: Scenario, chosen: Choice) -> str:
    plan = scenario.cost(chosen.method, chosen.ranks)
    text = f"Memory {float(plan.largest.memory.total) / 1e9:.3g} GB a rank"
    if scenario.cluster.memory:
        text += f" of {scenario.cluster.memory / 1e9:.3g}"
    text += (
        f". An example trains {float(plan.held.share_of_a_rank):.0%} of the network, and times are for equal "
        f"examples, not equal accuracy; they rest on {scenario.cluster.name}: measure yours with istmpi measure."
    )
    if chosen.method == "ist":
        text += " In most of what was measured the network a P-th as wide was as accurate: try it first."
    return text


def _one_process(scenario: Scenario, alone: float, most_ranks: int) -> list[str]:
    two = [_with_local_steps(scenario, name, 2) for name in _candidates(scenario) if _sensible(scenario, name, 2)]
    best = min(two, key=lambda choice: choice.seconds, default=None)
    tried = (
        f"Ranks: on two {best.method} comes nearest, an epoch in {in_seconds(best.seconds)}."
        if best
        else "Ranks: on two subnets are too narrow, or memory is too small."
    )
    return [
        f"Run one process: an epoch in {in_seconds(alone)}.",
        f"Method: with up to {most_ranks} ranks none reaches half of what its ranks could do.",
        tried,
        f"Local steps: up to {LOCAL_STEPS[-1]} were tried.",
        _links(scenario, 2, scenario.run.method.local_steps),
        f"Times rest on {scenario.cluster.name}: measure yours with istmpi measure.",
    ]


def _powers_of_two(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]
