"""A comparison in a sentence for each method: when it reached a score, with what, and its end."""

import math

from istmpi.report.comparison import Comparison, Group
from istmpi.report.units import size
from istmpi.units import in_seconds


def verdict(comparison: Comparison) -> str:
    """The verdict on a comparison, the first to the hardest score that any method reached first."""
    groups = [group for group in comparison.groups if any(curve.points for curve in group.curves)]
    if not groups:
        return "No run has been evaluated yet: there is nothing to compare."

    def seconds(group: Group, target: float) -> float:
        return comparison.to_target(group, "seconds", target).median

    target = comparison.targets[0]
    for harder in comparison.targets:
        if any(math.isfinite(seconds(group, harder)) for group in groups):
            target = harder
    article = "an" if comparison.score_name[:1] in "aeiou" else "a"
    goal, sentences = f"{article} {comparison.score_name} of {target:g}", []
    for group in sorted(groups, key=lambda group: seconds(group, target)):
        reached = f"never reached {goal}"
        if math.isfinite(spent := seconds(group, target)):
            sent = size(comparison.to_target(group, "bytes", target).median)
            reached = f"reached {goal} after {in_seconds(spent)} of training with {sent} sent by all ranks"
        sentences.append(f"{group.label} {reached}, and ended at {comparison.final(group).median:.4g}.")
    if all(len(group.curves) == 1 for group in groups) and len(groups) > 1:
        sentences.append("One run of each method: what noise there is does not show.")
    failed = [group.label for group in comparison.groups if any(curve.problem for curve in group.curves)]
    if failed:
        sentences.append(f"Not all runs of {', '.join(failed)} came to their end.")
    return " ".join(sentences)
