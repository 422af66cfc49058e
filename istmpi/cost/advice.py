"""Advice on what to run on a cluster: a method, ranks and local steps, by rules that anyone can check."""

from collections.abc import Iterator
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
LEAST_LOCAL_STEPS = {"streaming-diloco": 100, "sparse-loco": 30}
TRANSFER_SHARE = 0.2
"""The largest share of a round for transfers; more local steps would save little more."""
LEAST_SHARE = 0.1
"""The least share of the network that an example trains: an eighth helps, a twentieth harms."""
LEAST_EFFICIENCY = 0.5
WORTH_IT = 1.25
"""The factor by which a method that changes more of what is learnt must be faster."""
FAITHFUL = ("data-parallel", "local-sgd", "streaming-diloco", "sparse-loco", "ist")
"""Methods, those first that train most as one process would."""
CHEAPER = {
    "with redeal 0.1": {"method.redeal": 0.1},
    "with redeal 0.1 in int8": {"method.redeal": 0.1, "method.wire": "int8"},
    "never redealt": {"method.redeal": 0.0},
}


@dataclass(frozen=True)
class Choice:
    scenario: Scenario
    method: str
    ranks: int
    local_steps: int

    @cached_property
    def cost(self) -> Cost:
        run = self.scenario.run.override({"method.local_steps": self.local_steps})
        return replace(self.scenario, run=run).cost(self.method, self.ranks)

    @cached_property
    def seconds(self) -> float:
        return epoch_seconds(self.cost, self.scenario.cluster, self.scenario.examples)

    @property
    def sensible(self) -> bool:
        share, memory = self.cost.held.share_of_a_rank, self.cost.largest.memory.total
        efficient = self.scenario.alone() / self.seconds >= max(LEAST_EFFICIENCY * self.ranks, 1)
        return share >= LEAST_SHARE and memory <= (self.scenario.cluster.memory or inf) and efficient


def advise(scenario: Scenario, most_ranks: int) -> list[str]:
    """Return four lines: the run, the other methods, the links that methods need, and warnings."""
    alone, best, chosen = scenario.alone(), {}, None
    counts = [2**power for power in range(1, most_ranks.bit_length())]
    names = [name for name in dict.fromkeys([*FAITHFUL, scenario.run.method.name]) if name in METHODS]
    for method in filter(scenario.can, names):
        choices = [_with_local_steps(scenario, method, ranks) for ranks in counts if _dealt(scenario, method, ranks)]
        if sensible := [choice for choice in choices if choice.sensible]:
            best[method] = choice = min(sensible, key=lambda choice: choice.seconds)
            if chosen is None or choice.seconds * WORTH_IT <= chosen.seconds:
                chosen = choice
    rests = f"Times assume {scenario.cluster.name}; measure your cluster with istmpi measure."
    if chosen is None:
        return [
            f"Run one process: {in_seconds(alone)} an epoch.",
            f"Method: no method reaches half of its ranks' speed with up to {most_ranks} ranks.",
            _links(scenario, 2, scenario.run.method.local_steps),
            rests,
        ]
    others = [(choice.method, choice) for choice in best.values() if choice is not chosen]
    for title, method, variant in _variants(scenario, chosen.ranks):
        others.append((title, Choice(variant, method, chosen.ranks, _at_least(chosen.local_steps, method))))
    shown = (
        f"{title} (P = {each.ranks}, J = {each.local_steps}) takes {each.seconds / chosen.seconds:.3g} times as long"
        for title, each in others
    )
    gigabytes, share = chosen.cost.largest.memory.total / 1e9, float(chosen.cost.held.share_of_a_rank)
    warning = f"Memory {float(gigabytes):.3g} GB a rank. An example trains {share:.0%} of the network. {rests}"
    if chosen.method == "ist":
        warning += " A network a P-th as wide was as accurate in most of our measurements: try it first."
    return [
        f"Run {chosen.method} on {chosen.ranks} ranks with {chosen.local_steps} local steps: an epoch in "
        f"{in_seconds(chosen.seconds)}, {alone / chosen.seconds:.3g} times as fast as one process.",
        f"Method: {'; '.join(shown) or 'no other method is worth its ranks'}.",
        _links(scenario, chosen.ranks, chosen.local_steps),
        warning,
    ]


def _dealt(scenario: Scenario, method: str, ranks: int) -> bool:
    return ranks <= (scenario.most_ranks(method) or ranks)


def _at_least(local_steps: int, method: str) -> int:
    return max(local_steps, LEAST_LOCAL_STEPS.get(method, 1))


def _with_local_steps(scenario: Scenario, method: str, ranks: int) -> Choice:
    """The fewest local steps with which transfers are a small part of the time."""
    every = (1,) if counted(method).synchronous else LOCAL_STEPS
    for local_steps in (steps for steps in every if steps == _at_least(steps, method)):
        choice = Choice(scenario, method, ranks, local_steps)
        time = round_time(choice.cost, scenario.cluster)
        if time.transfer <= TRANSFER_SHARE * time.total:
            break
    return choice


def _variants(scenario: Scenario, ranks: int) -> Iterator[tuple[str, str, Scenario]]:
    if not scenario.can("ist") or ranks > (scenario.most_ranks("ist") or 0):
        return
    for words, settings in CHEAPER.items():
        yield f"ist {words}", "ist", replace(scenario, run=scenario.run.override(settings))
    full = scenario.architecture
    dealt = counted("ist").groups(scenario.run, full)
    narrow = resized(full, full.lengths | {name: max(full.lengths[name] // ranks, 1) for name in dealt})
    for method in ("local-sgd", "sparse-loco"):
        yield f"{method} of a network a P-th as wide", method, replace(scenario, architecture=narrow)


def _links(scenario: Scenario, ranks: int, local_steps: int) -> str:
    """The link rate at which a method's ranks hardly wait, with so many local steps or its own least."""
    methods = [
        (name, name, scenario)
        for name, spec in METHODS.items()
        if scenario.can(name) and not spec.in_passes and _dealt(scenario, name, ranks)
    ]
    rates = []
    for title, method, variant in [*methods, *_variants(scenario, ranks)]:
        steps = _at_least(local_steps, method)
        rate = link_rate(Choice(variant, method, ranks, steps).cost, scenario.cluster)
        rates.append(f"{title}{f' (J = {steps})' * (steps != local_steps)} {_bits(rate)}")
    joined = ", ".join(rates)
    return f"Link rate for {COMPUTING:.0%} computing at P = {ranks}, J = {local_steps}: {joined}."


def _bits(rate: float) -> str:
    if rate in (0, inf):
        return "none" if rate == 0 else "more than any rate"
    prefix, size = next((each for each in (("G", 1e9), ("M", 1e6)) if rate >= each[1]), ("k", 1e3))
    return f"{rate / size:.3g} {prefix}bit/s"
