"""Names of the groups of a comparison, from the settings in which they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from istmpi.report.curves import Curve

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
    """Return the settings of a run, and its ranks, which may separate it from other runs."""
    facts = {}
    for key, value in curve.settings.items():
        if not key.startswith(WITHOUT_MEANING):
            facts[key] = value
    if curve.ranks_in_turn:
        facts["ranks"] = curve.ranks_in_turn
    return facts


def full_names(curves: Sequence[Curve]) -> list[str]:
    keys = find_differences([facts(curve) for curve in curves])
    return [_name(curve, keys, "{}, {}") for curve in curves]


def labels(curves: Sequence[Curve]) -> list[str]:
    """Return short names of groups, given a run of each.

    A name is the method, with settings if groups share the method.
    """
    labels = []
    for curve in curves:
        # Only groups of the same method need settings to tell them apart.
        rivals = [facts(other) for other in curves if other.method == curve.method]
        labels.append(_name(curve, find_differences(rivals, all_of_them=True), "{} ({})"))
    return labels


def find_differences(settings: Sequence[Mapping[str, Any]], all_of_them: bool = False) -> list[str]:
    """Return the keys whose values differ between settings.

    A missing key differs only with ``all_of_them``.
    """
    keys = []
    for key in dict.fromkeys(key for run in settings for key in run):
        # Lists cannot be in a set, but their texts can.
        values = {repr(run.get(key)) for run in settings if all_of_them or key in run}
        # A setting that all runs share does not tell them apart.
        if len(values) > 1:
            keys.append(key)
    return keys


def text(value: Any) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    return str(value)


def _name(curve: Curve, keys: Sequence[str], form: str) -> str:
    """Return the method and the values of ``keys``, joined by ``form``."""
    values = facts(curve)
    words = []
    for key in keys:
        if key in values:
            words.append(f"{key.rpartition('.')[2].replace('_', ' ')} {text(values[key])}")
    if not words:
        return curve.method
    return form.format(curve.method, ", ".join(words))
