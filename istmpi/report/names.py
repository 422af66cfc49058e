"""Names of a comparison's runs: full ones for programs, short ones for people, both by the settings that differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from istmpi.report.curves import Curve

WITHOUT_MEANING = ("name", "method.name", "train.seed", "data.source", "evaluate.", "checkpoint.", "output.")
"""Settings, or sections of them, in which runs of one comparison may differ."""

SHORT = {"method.local_steps": "J", "optimizer.name": ""}
"""Short names of settings in a label; the last word names any other."""


def facts(curve: Curve) -> dict[str, Any]:
    """The settings that tell runs apart, and the number of ranks."""
    settings = {key: value for key, value in curve.settings.items() if not key.startswith(WITHOUT_MEANING)}
    return settings | ({"ranks": curve.ranks} if curve.ranks else {})


def full_names(curves: Sequence[Curve]) -> list[str]:
    """Every run's method, with all settings in which not all runs agree."""
    settings = [facts(curve) for curve in curves]
    keys = differing(settings)
    return [
        ", ".join([curve.method, *(f"{_last(key)} {text(values[key])}" for key in keys if key in values)])
        for curve, values in zip(curves, settings)
    ]


def labels(curves: Sequence[Curve]) -> list[str]:
    """Short names of one run of each group: the method, and as few settings as tell its groups apart.

    Groups of one method that no setting tells apart are numbered.
    """
    settings = [facts(curve) for curve in curves]
    made = []
    for curve, values in zip(curves, settings):
        rivals = [others for other, others in zip(curves, settings) if other.method == curve.method]
        words = [_short(key, values[key]) for key in _telling(values, rivals) if key in values]
        made.append(f"{curve.method} ({', '.join(words)})" if words else curve.method)
    return [
        f"{label} [{made[:place].count(label) + 1}]" if made.count(label) > 1 else label
        for place, label in enumerate(made)
    ]


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all that have them."""
    values: dict[str, set[str]] = {}
    for its in settings:
        for key, value in its.items():
            values.setdefault(key, set()).add(repr(value))
    return [key for key, seen in values.items() if len(seen) > 1]


def text(value: Any) -> str:
    """A setting's value as people write it: ``512-512``; ``none`` for one that is not set."""
    if value is None or value == "":
        return "none"
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _telling(values: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that tell one run from its rivals: few that tell all apart, without those that this one does not need."""

    def of(run: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
        return tuple(repr(run.get(key)) for key in keys)

    def kinds(keys: Sequence[str]) -> int:
        return len({of(run, keys) for run in rivals})

    keys: list[str] = []
    left = differing(rivals)
    while left and kinds([*keys, best := max(left, key=lambda key: kinds([*keys, key]))]) > kinds(keys):
        keys.append(best)
        left.remove(best)
    for key in reversed(keys):
        rest = [other for other in keys if other != key]
        if sum(of(run, rest) == of(values, rest) for run in rivals) == 1:
            keys = rest
    return keys


def _short(key: str, value: Any) -> str:
    return f"{SHORT.get(key, _last(key))} {f'{value:g}' if isinstance(value, float) else text(value)}".strip()


def _last(setting: str) -> str:
    return setting.rpartition(".")[2].replace("_", " ")
