"""A comparison in a few sentences: the first to a score, the one that sent least, the best at the end."""

import math
from collections.abc import Sequence

from istmpi.report.comparison import Comparison, Group, Spread, best
from istmpi.report.sheets import TITLES, times

ABOUT = 1.1
"""Two single runs count as about equal up to this ratio of their figures."""

MANY = 3
"""A sentence names the figures of so many methods, of more the first and the last."""


def verdict(comparison: Comparison) -> str:
    """The verdict on a comparison; it claims no difference that repeats do not bear out."""
    groups = [group for group in comparison.groups if any(curve.points for curve in group.curves)]
    if not groups:
        return "No run has been evaluated yet: there is nothing to compare."
    there = {target: _there(comparison, groups, "seconds", target) for target in comparison.targets}
    hardest = next((target for target in reversed(comparison.targets) if there[target]), None)
    if len(groups) == 1:
        sentences = [_alone(comparison, groups[0], hardest)]
    else:
        if hardest is None:
            sentences = [f"No method reached {_goal(comparison, *comparison.targets[:1])}."]
        else:
            sentences = [_first(comparison, groups, hardest), _least(comparison, groups, hardest)]
        sentences.append(_ended(comparison, groups))
        if all(len(group.curves) == 1 for group in groups):
            sentences.append("One run of each method: what noise there is does not show.")
    failed = [group.label for group in comparison.groups if any(curve.problem for curve in group.curves)]
    if failed:
        sentences.append(f"Not all runs of {_listed(failed)} came to their end.")
    return " ".join(filter(None, sentences))


def _goal(comparison: Comparison, *target: float) -> str:
    article = "an" if comparison.score_name[:1] in "aeiou" else "a"
    return f"{article} {comparison.score_name}{''.join(f' of {score:g}' for score in target)}"


def _there(comparison: Comparison, groups: Sequence[Group], figure: str, target: float) -> list[tuple[Group, Spread]]:
    """The groups that reached a target with their figures, the least first."""
    spreads = [(group, comparison.to_target(group, figure, target)) for group in groups]
    return sorted((entry for entry in spreads if math.isfinite(entry[1].median)), key=lambda entry: entry[1].median)


def _alone(comparison: Comparison, group: Group, target: float | None) -> str:
    final = f"ended at {_goal(comparison)} of {comparison.final(group).median:.4g}"
    if target is None:
        return f"{group.label} {final}."
    seconds, sent = (
        TITLES[figure][1](comparison.to_target(group, figure, target).median) for figure in ("seconds", "bytes")
    )
    return (
        f"{group.label} reached {_goal(comparison, target)} after {seconds} of training, with {sent} sent by all "
        f"ranks, and {final}."
    )


def _first(comparison: Comparison, groups: Sequence[Group], target: float) -> str:
    """The group that reached the target first, and how much later the others did."""
    there = _there(comparison, groups, "seconds", target)
    near = [entry for entry in there if entry is there[0] or _alike(there[0][1], entry[1])]
    far = [entry for entry in there if entry not in near]
    write, goal = TITLES["seconds"][1], _goal(comparison, target)
    slowest = dict.fromkeys(write(spread.median) for _, spread in (near[0], near[-1]))
    after = f"after {' to '.join(slowest)} of training"
    if len(near) == 1:
        sentence = f"{there[0][0].label} reached {goal} first, {after}"
    elif len(near) == len(there) > 2:
        sentence = f"No method was clearly the first to reach {goal}: all did {after}"
    else:
        sentence = f"{_listed([group.label for group, _ in near])} reached {goal} about equally fast, {after}"
    reached = [group for group, _ in there]
    never = [group.label for group in groups if group not in reached]
    if far:
        sentence += f"; {_others(comparison, far, 'seconds', target)}"
    return sentence + f"; {_listed(never)} never" * bool(never) + "."


def _least(comparison: Comparison, groups: Sequence[Group], target: float) -> str:
    """The group that had sent the least by then."""
    there = _there(comparison, groups, "bytes", target)
    if there[0][1].median == there[-1][1].median:
        return ""
    least = TITLES["bytes"][1](there[0][1].median)
    return (
        f"By then {there[0][0].label} had sent the least, {least}; {_others(comparison, there[1:], 'bytes', target)}."
    )


def _others(comparison: Comparison, others: Sequence[tuple[Group, Spread]], figure: str, target: float) -> str:
    """A figure of the other groups, each with its ratio to the best."""
    texts = []
    for group, spread in others:
        ratio = comparison.ratio(group, figure, target)
        texts.append(f"{group.label} {TITLES[figure][1](spread.median)}{'' if ratio is None else f' ({times(ratio)})'}")
    return _listed(_shortened(texts))


def _ended(comparison: Comparison, groups: Sequence[Group]) -> str:
    """The group that ended with the best score."""
    finals = [comparison.final(group) for group in groups]
    places = best(finals, comparison.higher_is_better)
    score = f"{comparison.score_name} at the end"
    if not places:
        return f"All have the same {score}, {finals[0].median:.4f}."
    top = finals[min(places)]
    several = [len(spread.values) > 1 and len(top.values) > 1 for spread in finals]
    alike = [
        place for place, spread in enumerate(finals) if place in places or (several[place] and _overlap(spread, top))
    ]
    if len(alike) == len(groups):
        return f"By their {score} the methods cannot be told apart (best: {top.median:.4f})."
    names = _listed([groups[place].label for place in alike])
    others = [f"{groups[place].label} {spread.median:.4f}" for place, spread in enumerate(finals) if place not in alike]
    rest = _listed(_shortened(others))
    if len(alike) > len(places):
        return f"Best by their {score}, within their spread: {names} ({top.median:.4f}); {rest}."
    return f"Best {score}: {names}, {top.median:.4f}; {rest}."


def _alike(first: Spread, other: Spread) -> bool:
    if len(first.values) > 1 and len(other.values) > 1:
        return _overlap(first, other)
    return other.median <= ABOUT * first.median


def _overlap(first: Spread, other: Spread) -> bool:
    if first.range is None or other.range is None:
        return False
    return first.range[0] <= other.range[1] and other.range[0] <= first.range[1]


def _shortened(texts: Sequence[str]) -> list[str]:
    return [texts[0], f"{len(texts) - 2} more", texts[-1]] if len(texts) > MANY else list(texts)


def _listed(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))
