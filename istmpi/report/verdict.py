"""What a comparison comes to, in a few sentences: who was first, who sent least, who ended best."""

import math
from collections.abc import Sequence

from istmpi.report.comparison import Comparison, Group, Spread, best
from istmpi.report.sheets import TITLES, times

ABOUT = 1.1
"""Up to so many times a figure counts as about the same, where there is one run of each."""

MOST = 3
"""Of so many methods a sentence tells each one's figures."""


def verdict(comparison: Comparison) -> str:
    """The verdict on a comparison; it claims no difference that repeats do not bear out."""
    groups = [group for group in comparison.groups if any(curve.points for curve in group.curves)]
    if not groups:
        return "No run has been evaluated yet: there is nothing to compare."
    sentences = []
    reached = [one for one in comparison.targets if _there(comparison, groups, "seconds", one)]
    if len(groups) == 1:
        sentences.append(_alone(comparison, groups[0], reached))
    else:
        if reached:
            sentences += [_first(comparison, groups, reached[-1]), _least(comparison, groups, reached[-1])]
        else:
            sentences.append(f"No method reached {_goal(comparison, comparison.targets[:1])}.")
        sentences.append(_ended(comparison, groups))
        if all(len(group.curves) == 1 for group in groups):
            sentences.append("One run of each method: what noise there is does not show.")
    failed = [group.label for group in comparison.groups if any(curve.problem for curve in group.curves)]
    if failed:
        sentences.append(f"Not all runs of {_listed(failed)} came to their end.")
    return " ".join(filter(None, sentences))


def _goal(comparison: Comparison, targets: Sequence[float]) -> str:
    article = "an" if comparison.score_name[:1] in "aeiou" else "a"
    return f"{article} {comparison.score_name}{''.join(f' of {one:g}' for one in targets)}"


def _there(comparison: Comparison, groups: Sequence[Group], figure: str, target: float) -> list[Group]:
    median = {group.name: comparison.to_target(group, figure, target).median for group in groups}
    there = [group for group in groups if math.isfinite(median[group.name])]
    return sorted(there, key=lambda group: median[group.name])


def _alone(comparison: Comparison, group: Group, reached: Sequence[float]) -> str:
    final = f"ended at {_goal(comparison, [])} of {comparison.final(group).median:.4g}"
    if not reached:
        return f"{group.label} {final}."
    cost = (
        TITLES[figure][1](comparison.to_target(group, figure, reached[-1]).median) for figure in ("seconds", "bytes")
    )
    seconds, sent = cost
    return (
        f"{group.label} reached {_goal(comparison, reached[-1:])} after {seconds} of training, with {sent} sent by all "
        f"ranks, and {final}."
    )


def _first(comparison: Comparison, groups: Sequence[Group], target: float) -> str:
    """Who reached the target first, and how much later the others."""
    first, *others = _there(comparison, groups, "seconds", target)
    write = TITLES["seconds"][1]
    spread = {group.name: comparison.to_target(group, "seconds", target) for group in groups}
    near = [group for group in others if _alike(spread[first.name], spread[group.name])]
    took, goal = write(spread[first.name].median), _goal(comparison, [target])
    slowest = write(max(spread[one.name].median for one in (first, *near)))
    after = f"after {took if slowest == took else f'{took} to {slowest}'} of training"
    if not near:
        said = f"{first.label} reached {goal} first, {after}"
    elif len(near) == len(others) > 1:
        said = f"No method was clearly the first to reach {goal}: all did {after}"
    else:
        said = f"{_listed([one.label for one in (first, *near)])} reached {goal} about equally fast, {after}"
    far = [group for group in others if group not in near]
    later = [
        f"{group.label} {write(spread[group.name].median)}{_ratio(comparison, group, 'seconds', target)}"
        for group in far
    ]
    never = [group.label for group in groups if group.name not in {one.name for one in (first, *others)}]
    return (
        said
        + (f"; {_listed(_shortened(later))}" if later else "")
        + (f"; {_listed(never)} never" if never else "")
        + "."
    )


def _least(comparison: Comparison, groups: Sequence[Group], target: float) -> str:
    """Who had sent the least by then."""
    there = _there(comparison, groups, "bytes", target)
    write = TITLES["bytes"][1]
    sent = {group.name: comparison.to_target(group, "bytes", target).median for group in there}
    if len(there) < 2 or sent[there[0].name] == sent[there[-1].name]:
        return ""
    others = [f"{one.label} {write(sent[one.name])}{_ratio(comparison, one, 'bytes', target)}" for one in there[1:]]
    return f"By then {there[0].label} had sent the least, {write(sent[there[0].name])}; {_listed(_shortened(others))}."


def _ended(comparison: Comparison, groups: Sequence[Group]) -> str:
    """Who ended with the best score."""
    finals = [comparison.final(group) for group in groups]
    places = best(finals, comparison.higher_is_better)
    score = f"{comparison.score_name} at the end"
    if not places:
        return f"All have the same {score}, {finals[0].median:.4f}."
    top = finals[min(places)]
    alike = [
        place for place, one in enumerate(finals)
        if place in places or (len(one.values) > 1 and len(top.values) > 1 and _overlap(one, top))
    ]  # fmt: skip
    others = [f"{groups[place].label} {one.median:.4f}" for place, one in enumerate(finals) if place not in alike]
    names = _listed([groups[place].label for place in alike])
    if not others:
        return f"By their {score} the methods cannot be told apart (best: {top.median:.4f})."
    if len(alike) > len(places):
        return f"Best by their {score}, within their spread: {names} ({top.median:.4f}); {_listed(_shortened(others))}."
    return f"Best {score}: {names}, {top.median:.4f}; {_listed(_shortened(others))}."


def _alike(first: Spread, other: Spread) -> bool:
    if len(first.values) > 1 and len(other.values) > 1:
        return _overlap(first, other)
    return other.median <= ABOUT * first.median


def _overlap(first: Spread, other: Spread) -> bool:
    if first.range is None or other.range is None:
        return False
    return first.range[0] <= other.range[1] and other.range[0] <= first.range[1]


def _ratio(comparison: Comparison, group: Group, figure: str, target: float) -> str:
    ratio = comparison.ratio(group, figure, target)
    return "" if ratio is None else f" ({times(ratio)})"


def _shortened(texts: Sequence[str]) -> list[str]:
    return [texts[0], f"{len(texts) - 2} more", texts[-1]] if len(texts) > MOST else list(texts)


def _listed(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))) if texts else ""
