"""Compares runs: what each method costs to reach a score, over its repeats, and its final score."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median
from typing import Any

from istmpi.errors import ConfigError, DataError
from istmpi.report.curves import Curve, Point
from istmpi.report.labels import full_names, labels
from istmpi.report.styles import PHASES
from istmpi.report.tuning import Tuning
from istmpi.tasks import higher_is_better

NOT_REACHED = math.inf

MORE_ERROR = (0.5, 0.25, 0.0)
"""The additional error of each default target.

It is a share of the error of the best score that all runs reach, or of what this score is better
than the first score of the run with the worst start, if that is less.
"""

FIGURES = ("seconds", "bytes", "examples")

OFF_THE_CLOCK = ("evaluate", "save")
"""Phases that training time leaves out, because their frequency is a user's choice."""


def sort_phases(phases: Iterable[str]) -> list[str]:
    """Return phases without repeats: those of a round, then others, then those off the clock."""
    names = list(dict.fromkeys(phases))
    on_the_clock = [name for name in PHASES if name in names]
    unlisted = [name for name in names if name not in PHASES]
    in_order = [*on_the_clock, *unlisted]
    return sorted(in_order, key=lambda name: name in OFF_THE_CLOCK)  # the sort is stable


@dataclass(frozen=True)
class Spread:
    """A figure over a group's runs: one value per run.

    It is infinite for a run that did not reach the target.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        # A group without an evaluation counts as one that reached nothing.
        if not self.values:
            return NOT_REACHED
        return median(self.values)

    @property
    def reached(self) -> int:
        return sum(map(math.isfinite, self.values))

    @property
    def range(self) -> tuple[float, float] | None:
        finite = [value for value in self.values if math.isfinite(value)]
        if not finite:
            return None
        return min(finite), max(finite)


@dataclass(frozen=True)
class Group:
    name: str
    """The method, and every setting in which runs of the comparison differ."""
    curves: tuple[Curve, ...]
    label: str
    """A short name: the method, and only the settings that distinguish groups of the method."""

    @property
    def method(self) -> str:
        return self.curves[0].method


@dataclass(frozen=True)
class Comparison:
    groups: tuple[Group, ...]
    targets: tuple[float, ...]
    """The scores to reach, the easiest first."""
    score_name: str
    data: str = ""
    tunings: tuple[Tuning, ...] = ()
    """The choices of the methods' settings."""

    @property
    def higher_is_better(self) -> bool:
        return higher_is_better(self.score_name)

    @property
    def splits(self) -> tuple[str, str]:
        """The splits of the scores in training and of the final scores, in words.

        Both are empty if all are test scores.
        """
        validated = any(curve.test is not None for group in self.groups for curve in group.curves)
        if not validated:
            return "", ""
        return " on the validation split", " on the test split"

    def to_target(self, group: Group, figure: str, target: float) -> Spread:
        values = []
        for curve in group.curves:
            point = find_reached(curve.points, target, self.higher_is_better)
            values.append(getattr(point, figure) if point else NOT_REACHED)
        return Spread(tuple(values))

    def to_end(self, group: Group, figure: str) -> Spread:
        ends = [curve.points[-1] for curve in group.curves if curve.points]
        return Spread(tuple(getattr(point, figure) for point in ends))

    def final(self, group: Group) -> Spread:
        """Return the last score of each run, not smoothed.

        It is on the test split if the run was scored there.
        """
        scores = []
        for curve in group.curves:
            if not curve.points:
                continue
            score = curve.test
            if score is None:
                score = curve.points[-1].score
            scores.append(score)
        return Spread(tuple(scores))

    def ratio(self, group: Group, figure: str, target: float) -> float | None:
        """Return the ratio of a group's figure to the best group's figure.

        It is the median of the ratios at common seeds, or the ratio of the medians if no seed is
        common. None if the group's median run did not reach the target, or if the ratio is
        infinite.
        """
        spreads = {rival.name: self.to_target(rival, figure, target) for rival in self.groups}
        spread = spreads[group.name]
        if math.isinf(spread.median):
            return None
        best = min(self.groups, key=lambda rival: spreads[rival.name].median)
        spread_of_best = spreads[best.name]
        values = _join_seeds(group, spread)
        values_of_best = _join_seeds(best, spread_of_best)
        # Runs with one seed see the same batches, so their ratios are less noisy.
        ratios = []
        for seed, value in values.items():
            value_of_best = values_of_best.get(seed, NOT_REACHED)
            if math.isfinite(value_of_best):
                ratios.append(_ratio(value, value_of_best))
        if not ratios:
            ratios = [_ratio(spread.median, spread_of_best.median)]
        ratio = median(ratios)
        return ratio if math.isfinite(ratio) else None

    def phases(self, group: Group) -> dict[str, float]:
        """Return the seconds of each phase, as means over the group's runs that have phases."""
        runs = [curve.phases for curve in group.curves if curve.phases]
        names = dict.fromkeys(name for phases in runs for name in phases)
        means = {}
        for name in names:
            means[name] = sum(phases.get(name, 0.0) for phases in runs) / len(runs)
        return means

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each group and target, as in the JSON."""
        rows = []
        for group in self.groups:
            for target in self.targets:
                row: dict[str, Any] = {
                    "method": group.name,
                    "ranks": _only({curve.ranks_in_turn for curve in group.curves}),
                    "target": target,
                    "repeats": len(group.curves),
                    "reached": self.to_target(group, "seconds", target).reached,
                }
                for figure in FIGURES:
                    row |= _columns(figure, self.to_target(group, figure, target))
                    row[f"{figure}_ratio"] = self.ratio(group, figure, target)
                rows.append(row | _columns("final", self.final(group)))
        return rows


def best(spreads: Sequence[Spread], higher: bool = False) -> frozenset[int]:
    """Return the places of the best medians; no place if none is finite, or if all are equal."""
    medians = [spread.median for spread in spreads]
    # A group that did not reach the target has an infinite median.
    finite = list(filter(math.isfinite, medians))
    if not finite or len(set(medians)) < 2:
        return frozenset()
    top = max(finite) if higher else min(finite)
    return frozenset(place for place, value in enumerate(medians) if value == top)


def compare(curves: Sequence[Curve], targets: Sequence[float] = ()) -> Comparison:
    """Group runs by method and settings, to compare them at ``targets``.

    Without targets, these are `default_targets`. Raises DataError for runs that cannot be compared,
    and ConfigError for a target that the score cannot have.
    """
    # A run that stopped before its first round may not name its score.
    names = {curve.score_name for curve in curves if curve.score_name}
    if len(names) > 1:
        raise DataError(
            f"runs with different scores cannot be compared: {', '.join(sorted(names))}."
        )
    data = _data(curves)
    if len(data) > 1:
        raise DataError(
            f"runs on different data cannot be compared: {', '.join(data)}. "
            "Give runs on the same data."
        )
    score_name = _only(names) or "accuracy"
    check_targets(targets, score_name)
    higher = higher_is_better(score_name)
    # The easiest target is first: the lowest score, or the highest of errors.
    chosen = sorted(set(targets or default_targets(curves, higher)), reverse=not higher)
    return Comparison(tuple(_group(curves)), tuple(chosen), score_name, "".join(data))


def _group(curves: Sequence[Curve]) -> list[Group]:
    """Return the groups of runs with equal names, in the order of their first runs."""
    members: dict[str, list[Curve]] = {}
    for curve, name in zip(curves, full_names(curves)):
        members.setdefault(name, []).append(curve)
    short = labels([runs[0] for runs in members.values()])
    groups = []
    for name, label in zip(members, short):
        in_order = sorted(members[name], key=lambda curve: curve.seed)
        groups.append(Group(name, tuple(in_order), label))
    return groups


def _data(curves: Sequence[Curve]) -> list[str]:
    """Return the names of the runs' data sets. Different contents under one name count as several.

    Data without a name count as the named data set, if there is only one.
    """
    names = [PurePath(str(curve.settings.get("data.source", ""))).name for curve in curves]
    fingerprints: dict[str, set[str]] = {}
    for curve, name in zip(curves, names):
        if curve.data:
            fingerprints.setdefault(name, set()).add(curve.data)
    several = set()
    for curve, name in zip(curves, names):
        if name and curve.data and len(fingerprints[name]) > 1:
            name = f"{name} {curve.data}"
        several.add(name)
    named = sorted(several - {""})
    # With one named data set, data without a name are taken to be the same.
    if "" in several and len(named) != 1:
        named.append("unnamed data")
    return named


def check_targets(targets: Sequence[float], score_name: str) -> None:
    for target in targets:
        if not 0 < target < math.inf or (score_name == "accuracy" and target > 1):
            limit = " and at most 1" if score_name == "accuracy" else ""
            raise ConfigError(
                f"--targets {target:g}: a target of the {score_name} must be above 0{limit}, "
                "such as 0.75."
            )


def smooth(scores: Sequence[float]) -> list[float]:
    """Return the median of each score and its two neighbours; the ends stay as they are."""
    # One lucky evaluation must not count as reaching a score.
    inner = [median(scores[place - 1 : place + 2]) for place in range(1, len(scores) - 1)]
    return [*scores[:1], *inner, *scores[1:][-1:]]


def find_reached(
    points: Sequence[Point], target: float, higher_is_better: bool = True
) -> Point | None:
    """Return the first point whose smoothed score reaches a target; None if no point does."""
    for point, score in zip(points, smooth([point.score for point in points])):
        reached = score >= target if higher_is_better else score <= target
        if reached:
            return point
    return None


def default_targets(curves: Sequence[Curve], higher_is_better: bool = True) -> list[float]:
    """Return the scores with 50%, 25% and 0% more error than the best score that all runs reach.

    Near chance, these would be below the first score of every run. The error then counts from that
    of the worst start. Targets have three digits. Unfinished runs count only if no run is finished.
    """
    scored = [curve for curve in curves if curve.points]
    counted = [curve for curve in scored if not curve.problem] or scored
    if not counted:
        return []
    scores = [smooth(curve.scores) for curve in counted]
    targets = []
    if higher_is_better:
        top = min(map(max, scores))
        start = min(scores_of_run[0] for scores_of_run in scores)
        error = max(min(1 - top, top - start), 0.0)
        for more in MORE_ERROR:
            # Rounded down, so that all runs reach it; 1e-9 is for 0.57 * 1000 = 569.99...
            targets.append(math.floor(1000 * (top - more * error) + 1e-9) / 1000)
    else:
        # The lower score is the better one: the best of a run is its least.
        top = max(map(min, scores))
        start = max(scores_of_run[0] for scores_of_run in scores)
        for more in MORE_ERROR:
            targets.append(_round_up(top + more * max(min(top, start - top), 0.0)))
    return [target for target in dict.fromkeys(targets) if target > 0]


def _round_up(value: float) -> float:
    """Round up to three digits."""
    if not value:
        return 0.0
    # The value of the third digit; 1e-9 keeps numbers that have three digits already.
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.12g}")


def _join_seeds(group: Group, spread: Spread) -> dict[int, float]:
    # Runs with one seed differ only by the machine, so they count as one run.
    values: dict[int, list[float]] = {}
    for curve, value in zip(group.curves, spread.values):
        values.setdefault(curve.seed, []).append(value)
    return {seed: median(values_of_seed) for seed, values_of_seed in values.items()}


def _ratio(value: float, other: float) -> float:
    if other:
        return value / other
    if value:
        return math.inf
    return 1.0  # both are zero


def _only(values: set[Any]) -> Any:
    """Return the value of a set with one value; None for another set."""
    if len(values) != 1:
        return None
    (value,) = values
    return value


def _columns(name: str, spread: Spread) -> dict[str, float | None]:
    # JSON has no infinity, so a target that was not reached is null.
    low, high = spread.range or (None, None)
    return {
        f"{name}_median": spread.median if math.isfinite(spread.median) else None,
        f"{name}_lowest": low,
        f"{name}_highest": high,
    }
