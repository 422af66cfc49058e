"""Names of a comparison's runs: full ones for programs, short ones for people, both by the settings that differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from istmpi.report.curves import Curve

WITHOUT_MEANING = ("name", "method.name", "train.seed", "data.source", "evaluate.", "checkpoint.", "output.")
"""Settings, or sections of them, in which runs of one comparison may differ."""


def facts(curve: Curve) -> dict[str, Any]:
    settings = {key: value for key, value in curve.settings.items() if not key.startswith(WITHOUT_MEANING)}
    return settings | ({"ranks": curve.ranks} if curve.ranks else {})


def full_names(curves: Sequence[Curve]) -> list[str]:
    keys = differing([facts(curve) for curve in curves])
    return [_named(curve, keys, "{}, {}") for curve in curves]


def labels(curves: Sequence[Curve]) -> list[str]:
    """Short names of one run of each group: the method, and the settings in which its own groups differ."""
    made = []
    for curve in curves:
        rivals = [facts(other) for other in curves if other.method == curve.method]
        made.append(_named(curve, differing(rivals, all_of_them=True), "{} ({})"))
    return made


def differing(settings: Sequence[Mapping[str, Any]], all_of_them: bool = False) -> list[str]:
    """The keys whose values are not the same in all that have them, or in ``all_of_them``."""
    keys = dict.fromkeys(key for its in settings for key in its)
    return [key for key in keys if len({repr(its.get(key)) for its in settings if all_of_them or key in its}) > 1]


def text(value: Any) -> str:
    """A setting's value as people write it: ``512-512``; ``none`` for one that is not set."""
    if value is None or value == "":
        return "none"
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _named(curve: Curve, keys: Sequence[str], form: str) -> str:
    values = facts(curve)
    words = [f"{key.rpartition('.')[2].replace('_', ' ')} {text(values[key])}" for key in keys if key in values]
    return form.format(curve.method, ", ".join(words)) if words else curve.method
