"""Compares runs: what each method costs to reach a score, over its repeats, and its final score."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median
from typing import Any

from istmpi.errors import ConfigError, DataError
from istmpi.report.curves import Curve, Point
from istmpi.report.styles import PHASES
from istmpi.tasks import higher_is_better

NOT_REACHED = math.inf

MORE_ERROR = (0.5, 0.25, 0.0)
"""The additional error of each default target, as a share of the error of the best score that all
runs reach."""

FIGURES = ("seconds", "bytes", "examples")

OFF_THE_CLOCK = ("evaluate", "save")


def in_order(phases: Iterable[str]) -> list[str]:
    names, order = list(dict.fromkeys(phases)), list(PHASES)
    return sorted(
        names,
        key=lambda name: (
            name in OFF_THE_CLOCK,
            order.index(name) if name in PHASES else len(order),
        ),
    )


@dataclass(frozen=True)
class Spread:
    """A figure over a group's runs: one value per run, infinite if the run did not reach the
    target."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values) if self.values else NOT_REACHED

    @property
    def reached(self) -> int:
        return sum(map(math.isfinite, self.values))

    @property
    def range(self) -> tuple[float, float] | None:
        there = [value for value in self.values if math.isfinite(value)]
        return (min(there), max(there)) if there else None


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

    @property
    def higher_is_better(self) -> bool:
        return higher_is_better(self.score_name)

    @property
    def splits(self) -> tuple[str, str]:
        """The splits of the scores in training and of the final scores, in words; empty if all are
        test scores."""
        validated = any(curve.test is not None for group in self.groups for curve in group.curves)
        return (" on the validation split", " on the test split") if validated else ("", "")

    def to_target(self, group: Group, figure: str, target: float) -> Spread:
        points = (reached(curve.points, target, self.higher_is_better) for curve in group.curves)
        return Spread(tuple(getattr(point, figure) if point else NOT_REACHED for point in points))

    def to_end(self, group: Group, figure: str) -> Spread:
        return Spread(
            tuple(getattr(curve.points[-1], figure) for curve in group.curves if curve.points)
        )

    def final(self, group: Group) -> Spread:
        """Return the last score of each run, not smoothed; on the test split if the run was scored
        there."""
        ends = (
            curve.points[-1].score if curve.test is None else curve.test
            for curve in group.curves
            if curve.points
        )
        return Spread(tuple(ends))

    def ratio(self, group: Group, figure: str, target: float) -> float | None:
        """Return the ratio of a group's figure to the best group's figure.

        It is the median of the ratios at common seeds, or the ratio of the medians if no seed is
        common. None if the group's median run did not reach the target, or if the ratio is
        infinite.
        """
        spreads = {each.name: self.to_target(each, figure, target) for each in self.groups}
        best = min(self.groups, key=lambda each: spreads[each.name].median)
        if math.isinf(spreads[group.name].median):
            return None
        here, other = (_by_seed(each, spreads[each.name]) for each in (group, best))
        ratios = [
            _ratio(here[seed], other[seed])
            for seed in here
            if math.isfinite(other.get(seed, NOT_REACHED))
        ]
        ratio = (
            median(ratios)
            if ratios
            else _ratio(spreads[group.name].median, spreads[best.name].median)
        )
        return ratio if math.isfinite(ratio) else None

    def phases(self, group: Group) -> dict[str, float]:
        there = [curve.phases for curve in group.curves if curve.phases]
        names = dict.fromkeys(name for phases in there for name in phases)
        return {name: sum(phases.get(name, 0.0) for phases in there) / len(there) for name in names}

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for group in self.groups:
            for target in self.targets:
                row: dict[str, Any] = {
                    "method": group.name,
                    "ranks": _only({curve.ranks_in_turn for curve in group.curves}),
                }
                row |= {"target": target, "repeats": len(group.curves)}
                row["reached"] = self.to_target(group, "seconds", target).reached
                for figure in FIGURES:
                    row |= _columns(figure, self.to_target(group, figure, target))
                    row[f"{figure}_ratio"] = self.ratio(group, figure, target)
                rows.append(row | _columns("final", self.final(group)))
        return rows


def best(spreads: Sequence[Spread], higher: bool = False) -> frozenset[int]:
    medians = [spread.median for spread in spreads]
    there = list(filter(math.isfinite, medians))
    if not there or len(set(medians)) < 2:
        return frozenset()
    top = max(there) if higher else min(there)
    return frozenset(place for place, value in enumerate(medians) if value == top)


def compare(curves: Sequence[Curve], targets: Sequence[float] = ()) -> Comparison:
    """Group runs by method and settings, to compare them at ``targets`` (default:
    `default_targets`).

    Raises DataError for runs that cannot be compared, and ConfigError for a target that the score
    cannot have.
    """
    names = {curve.score_name for curve in curves if curve.score_name}
    if len(names) > 1:
        raise DataError(
            f"runs with different scores cannot be compared: {', '.join(sorted(names))}."
        )
    if len(data := _data(curves)) > 1:
        raise DataError(
            f"runs on different data cannot be compared: {', '.join(data)}. Give runs on the same data."
        )
    score_name = _only(names) or "accuracy"
    check_targets(targets, score_name)
    higher = higher_is_better(score_name)
    groups: dict[str, list[Curve]] = {}
    for curve, name in zip(curves, full_names(curves)):
        groups.setdefault(name, []).append(curve)
    short = labels([members[0] for members in groups.values()])
    made = (
        Group(name, tuple(sorted(members, key=lambda curve: curve.seed)), label)
        for (name, members), label in zip(groups.items(), short)
    )
    chosen = sorted(set(targets or default_targets(curves, higher)), reverse=not higher)
    return Comparison(tuple(made), tuple(chosen), score_name, "".join(data))


def _data(curves: Sequence[Curve]) -> list[str]:
    """Return the names of the runs' data sets. Different contents under one name count as several.

    Data without a name count as the named data set, if there is only one.
    """
    names = [PurePath(str(curve.settings.get("data.source", ""))).name for curve in curves]
    contents = {
        name: {curve.data for curve, its in zip(curves, names) if its == name and curve.data}
        for name in names
    }
    several = {
        f"{name} {curve.data}" if name and curve.data and len(contents[name]) > 1 else name
        for curve, name in zip(curves, names)
    }
    named = sorted(several - {""})
    return named + ["unnamed data"] * ("" in several and len(named) != 1)


def check_targets(targets: Sequence[float], score_name: str) -> None:
    for target in targets:
        if not 0 < target < math.inf or (score_name == "accuracy" and target > 1):
            limit = " and at most 1" * (score_name == "accuracy")
            raise ConfigError(
                f"--targets {target:g}: a target of the {score_name} must be above 0{limit}, such as 0.75."
            )


def smoothed(scores: Sequence[float]) -> list[float]:
    """Return the median of each score and its two neighbours; the first and the last score stay as
    they are."""
    inner = [median(scores[place - 1 : place + 2]) for place in range(1, len(scores) - 1)]
    return [*scores[:1], *inner, *scores[1:][-1:]]


def reached(points: Sequence[Point], target: float, higher_is_better: bool = True) -> Point | None:
    for point, score in zip(points, smoothed([point.score for point in points])):
        if score >= target if higher_is_better else score <= target:
            return point
    return None


def default_targets(curves: Sequence[Curve], higher_is_better: bool = True) -> list[float]:
    """Return the scores with 50%, 25% and 0% more error than the best score that all runs reach, to
    three digits.

    Unfinished runs count only if no run is finished.
    """
    there = [curve for curve in curves if curve.points]
    there = [curve for curve in there if not curve.problem] or there
    scores = [smoothed([point.score for point in curve.points]) for curve in there]
    if not scores:
        return []
    if higher_is_better:
        top = min(map(max, scores))
        error = max(1 - top, 0.0)
        targets = [math.floor(1000 * (top - more * error) + 1e-9) / 1000 for more in MORE_ERROR]
    else:
        top = max(map(min, scores))
        targets = [_rounded_up(top + more * top) for more in MORE_ERROR]
    return [target for target in dict.fromkeys(targets) if target > 0]


def _rounded_up(value: float) -> float:
    if not value:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.12g}")


def _by_seed(group: Group, spread: Spread) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for curve, value in zip(group.curves, spread.values):
        values.setdefault(curve.seed, []).append(value)
    return {seed: median(each) for seed, each in values.items()}


def _ratio(value: float, other: float) -> float:
    return value / other if other else math.inf if value else 1.0


def _only(values: set[Any]) -> Any:
    return next(iter(values)) if len(values) == 1 else None


def _columns(name: str, spread: Spread) -> dict[str, float | None]:
    low, high = spread.range or (None, None)
    middle = spread.median if math.isfinite(spread.median) else None
    return {f"{name}_median": middle, f"{name}_lowest": low, f"{name}_highest": high}


WITHOUT_MEANING = (
    "name",
    "method.name",
    "train.seed",
    "data.source",
    "evaluate.",
    "checkpoint.",
    "output.",
)
"""Prefixes of the settings that do not separate the groups of a comparison."""


def facts(curve: Curve) -> dict[str, Any]:
    settings = {
        key: value for key, value in curve.settings.items() if not key.startswith(WITHOUT_MEANING)
    }
    return settings | ({"ranks": curve.ranks_in_turn} if curve.ranks_in_turn else {})


def full_names(curves: Sequence[Curve]) -> list[str]:
    keys = differing([facts(curve) for curve in curves])
    return [_named(curve, keys, "{}, {}") for curve in curves]


def labels(curves: Sequence[Curve]) -> list[str]:
    """Return short names of groups, given a run of each: the method, with settings if groups share
    the method."""
    made = []
    for curve in curves:
        rivals = [facts(other) for other in curves if other.method == curve.method]
        made.append(_named(curve, differing(rivals, all_of_them=True), "{} ({})"))
    return made


def differing(settings: Sequence[Mapping[str, Any]], all_of_them: bool = False) -> list[str]:
    """Return the keys whose values differ between settings. A missing key differs only with
    ``all_of_them``."""
    keys = dict.fromkeys(key for its in settings for key in its)
    return [
        key
        for key in keys
        if len({repr(its.get(key)) for its in settings if all_of_them or key in its}) > 1
    ]


def text(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _named(curve: Curve, keys: Sequence[str], form: str) -> str:
    values = facts(curve)
    words = [
        f"{key.rpartition('.')[2].replace('_', ' ')} {text(values[key])}"
        for key in keys
        if key in values
    ]
    return form.format(curve.method, ", ".join(words)) if words else curve.method
