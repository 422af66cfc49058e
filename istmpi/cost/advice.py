"""Advice on what to run on a cluster: a method, ranks, local steps, and why, by rules that anyone can check."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from istmpi.cost.counts import Cost
from istmpi.cost.rivals import counted
from istmpi.cost.survey import Scenario, resized
from istmpi.cost.time import COMPUTING, epoch_seconds, link_rate, round_time
from istmpi.methods import METHODS
from istmpi.units import in_seconds

LOCAL_STEPS = (1, 2, 5, 10, 20, 40, 60, 100)
"""Numbers of local steps to try; the paper used 20 to 160."""
LEAST_LOCAL_STEPS = {"streaming-diloco": 100, "sparse-loco": 30}
"""Rounds of the methods' own papers. Shorter ones pick and pack all values more often, which takes longer than the
copies by which it is counted."""
TRANSFER_SHARE = 0.2
"""Local steps are as few as keep the transfers below this share of a round: more would save little more."""
LEAST_SHARE = 0.1
"""The least share of the network that an example trains. In the paper's Table 1 more ranks help down to an eighth
(4096-4096-35 on 8, 4096-8192-8192-35 on 4) and harm at a twentieth (the latter on 8)."""
LEAST_EFFICIENCY = 0.5
"""The least efficiency against one process: below it half of the machines are better used for other work."""
WORTH_IT = 1.25
"""A method that changes what is learnt must be faster by this factor than one that changes less."""

FAITHFUL = ("data-parallel", "local-sgd", "streaming-diloco", "sparse-loco", "ist")
"""Methods, from the one that trains exactly as one process would to the one that departs most from it."""
CHEAPER = {
    "with redeal 0.1": {"method.redeal": 0.1},
    "with redeal 0.1 in int8": {"method.redeal": 0.1, "method.wire": "int8"},
    "never redealt": {"method.redeal": 0.0},
}
"""Variants of ist: named, like the narrow network, and left to the user's choice."""
NARROW = ("local-sgd", "sparse-loco")
"""Methods that are also counted for a network with a P-th of each dealt width."""


@dataclass(frozen=True)
class Choice:
    """A way to run a scenario."""

    scenario: Scenario
    method: str
    ranks: int
    local_steps: int

    @cached_property
    def cost(self) -> Cost:
        run = self.scenario.run
        run = replace(run, method=replace(run.method, local_steps=self.local_steps))
        return replace(self.scenario, run=run).cost(self.method, self.ranks)

    @cached_property
    def seconds(self) -> float:
        """Seconds of an epoch."""
        return epoch_seconds(self.cost, self.scenario.cluster, self.scenario.examples)

    @cached_property
    def transfer_share(self) -> float:
        time = round_time(self.cost, self.scenario.cluster)
        return time.transfer / time.total

    def __str__(self) -> str:
        return f"(P = {self.ranks}, J = {self.local_steps})"


def advise(scenario: Scenario, most_ranks: int) -> list[str]:
    """Return six lines: the run; the reasons for its method, ranks and local steps; the links needed; warnings."""
    alone, best, chosen = scenario.alone(), {}, None
    counts = [2**power for power in range(1, most_ranks.bit_length())]
    for method in _candidates(scenario):
        if choice := _best(scenario, method, counts, alone):
            best[method] = choice
            if chosen is None or choice.seconds * WORTH_IT <= chosen.seconds:
                chosen = choice
    if chosen is None:
        return _one_process(scenario, alone, most_ranks)
    return [
        f"Run {chosen.method} on {chosen.ranks} ranks with {chosen.local_steps} local steps: an epoch in "
        f"{in_seconds(chosen.seconds)}, {alone / chosen.seconds:.3g} times as fast as one process.",
        f"Method: {'; '.join(_others(chosen, best))}.",
        f"Ranks: efficiency {alone / chosen.seconds / chosen.ranks:.0%} of {chosen.ranks} single processes; "
        f"{_more_ranks(chosen, counts, alone)}.",
        f"Local steps: {_more_steps(chosen)}.",
        _links(scenario, chosen.ranks, chosen.local_steps),
        _beware(chosen),
    ]


def _candidates(scenario: Scenario) -> list[str]:
    names = dict.fromkeys([*FAITHFUL, scenario.run.method.name])
    return [name for name in names if name in METHODS and scenario.can(name)]


def _best(scenario: Scenario, method: str, counts: Sequence[int], alone: float) -> Choice | None:
    """The fastest sensible way to run a method; None where no number of ranks is sensible."""
    choices = (_with_local_steps(scenario, method, ranks) for ranks in counts if _sensible(scenario, method, ranks))
    efficient = [each for each in choices if alone / each.seconds >= max(LEAST_EFFICIENCY * each.ranks, 1)]
    return min(efficient, key=lambda choice: choice.seconds, default=None)


def _sensible(scenario: Scenario, method: str, ranks: int) -> bool:
    if ranks > (scenario.most_ranks(method) or ranks):
        return False
    plan, memory = scenario.cost(method, ranks), scenario.cluster.memory
    return plan.held.share_of_a_rank >= LEAST_SHARE and plan.largest.memory.total <= (memory or inf)


def _with_local_steps(scenario: Scenario, method: str, ranks: int) -> Choice:
    """The fewest local steps with which transfers are a small part of the time."""
    every = (1,) if counted(method).synchronous else LOCAL_STEPS
    for local_steps in (steps for steps in every if steps == _at_least(steps, method)):
        choice = Choice(scenario, method, ranks, local_steps)
        if choice.transfer_share <= TRANSFER_SHARE:
            break
    return choice


def _at_least(local_steps: int, method: str) -> int:
    return max(local_steps, LEAST_LOCAL_STEPS.get(method, 1))


def _others(chosen: Choice, best: dict[str, Choice]) -> Iterator[str]:
    scenario, ranks = chosen.scenario, chosen.ranks
    for choice in best.values():
        if choice.method != chosen.method:
            yield f"{choice.method} {choice} takes {choice.seconds / chosen.seconds:.3g} times"
    for method in _candidates(scenario):
        if method not in best:
            times = ""
            if ranks <= (scenario.most_ranks(method) or ranks):
                times = f" (P = {ranks}: {scenario.seconds(method, ranks) / chosen.seconds:.3g} times)"
            yield f"{method} gets less than half of the speed of its ranks{times}"
    for title, method, variant in _variants(scenario, ranks):
        choice = Choice(variant, method, ranks, _at_least(chosen.local_steps, method))
        yield f"{title} {choice} takes {choice.seconds / chosen.seconds:.3g} times"


def _variants(scenario: Scenario, ranks: int) -> Iterator[tuple[str, str, Scenario]]:
    """The title, the method and the scenario of each variant; none where ist cannot deal to so many ranks."""
    if not scenario.can("ist") or ranks > (scenario.most_ranks("ist") or 0):
        return
    for words, settings in CHEAPER.items():
        yield f"ist {words}", "ist", replace(scenario, run=scenario.run.override(settings))
    full = scenario.architecture
    dealt = counted("ist").groups(scenario.run, full)
    narrow = resized(full, full.lengths | {name: max(full.lengths[name] // ranks, 1) for name in dealt})
    for method in NARROW:
        yield f"{method} of a network a P-th as wide", method, replace(scenario, architecture=narrow)


def _more_ranks(chosen: Choice, counts: Sequence[int], alone: float) -> str:
    scenario, method = chosen.scenario, chosen.method
    more = next((count for count in counts if count > chosen.ranks), None)
    if more is None:
        return "more were not asked for (--most-ranks)"
    if more > (scenario.most_ranks(method) or more):
        return f"{more} are more than {scenario.narrowest(method)} has units"
    plan = scenario.cost(method, more)
    if plan.held.share_of_a_rank < LEAST_SHARE:
        share = float(plan.held.share_of_a_rank)
        return f"on {more} an example would train {share:.0%} of the network, too little to pay in the paper"
    if plan.largest.memory.total > (scenario.cluster.memory or inf):
        return f"on {more} a rank would need {_gigabytes(plan.largest.memory.total)} GB"
    choice = _with_local_steps(scenario, method, more)
    return f"{more} would be at {alone / choice.seconds / more:.0%}, an epoch in {in_seconds(choice.seconds)}"


def _more_steps(chosen: Choice) -> str:
    share = f"transfers are {chosen.transfer_share:.0%} of a round"
    if counted(chosen.method).synchronous:
        return f"gradients are averaged in every step, so J does not matter; {share}"
    twice = replace(chosen, local_steps=2 * chosen.local_steps)
    saved = 1 - twice.seconds / chosen.seconds
    return f"{share}; {twice.local_steps} would save {saved:.0%}, and let the ranks drift further apart"


def _links(scenario: Scenario, ranks: int, local_steps: int) -> str:
    """The link rate at which a method's ranks hardly wait, with so many local steps or its own least."""
    methods = [
        (name, name, scenario)
        for name, spec in METHODS.items()
        if scenario.can(name) and not spec.in_passes and ranks <= (scenario.most_ranks(name) or ranks)
    ]
    rates = []
    for title, method, variant in [*methods, *_variants(scenario, ranks)]:
        steps = _at_least(local_steps, method)
        rate = link_rate(Choice(variant, method, ranks, steps).cost, scenario.cluster)
        rates.append(f"{title}{f' (J = {steps})' * (steps != local_steps)} {_bits(rate)}")
    joined = ", ".join(rates)
    return f"Link: to compute {COMPUTING:.0%} of its time at P = {ranks}, J = {local_steps} a rank needs {joined}."


def _bits(rate: float) -> str:
    if rate in (0, inf):
        return "none" if rate == 0 else "more than any rate"
    prefix, size = next((each for each in (("G", 1e9), ("M", 1e6)) if rate >= each[1]), ("k", 1e3))
    return f"{rate / size:.3g} {prefix}bit/s"


def _gigabytes(nbytes: float) -> str:
    return f"{float(nbytes) / 1e9:.3g}"


def _beware(chosen: Choice) -> str:
    plan, cluster = chosen.scenario.cost(chosen.method, chosen.ranks), chosen.scenario.cluster
    memory = f" of {_gigabytes(cluster.memory)}" if cluster.memory else ""
    text = (
        f"Memory {_gigabytes(plan.largest.memory.total)} GB a rank{memory}. An example trains "
        f"{float(plan.held.share_of_a_rank):.0%} of the network, and times are for equal examples, not equal accuracy; "
        f"they rest on {cluster.name}: measure yours with istmpi measure."
    )
    if chosen.method == "ist":
        text += " In most of what was measured the network a P-th as wide was as accurate: try it first."
    return text


def _one_process(scenario: Scenario, alone: float, most_ranks: int) -> list[str]:
    two = [_with_local_steps(scenario, name, 2) for name in _candidates(scenario) if _sensible(scenario, name, 2)]
    best = min(two, key=lambda choice: choice.seconds, default=None)
    nearest = "subnets are too narrow, or memory is too small"
    if best:
        nearest = f"{best.method} comes nearest, an epoch in {in_seconds(best.seconds)}"
    return [
        f"Run one process: an epoch in {in_seconds(alone)}.",
        f"Method: with up to {most_ranks} ranks none reaches half of what its ranks could do.",
        f"Ranks: on two {nearest}.",
        f"Local steps: up to {LOCAL_STEPS[-1]} were tried.",
        _links(scenario, 2, scenario.run.method.local_steps),
        f"Times rest on {scenario.cluster.name}: measure yours with istmpi measure.",
    ]
