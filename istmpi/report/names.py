"""What runs of a comparison are called: in full for programs, in short for people, and what tells them apart."""

from collections.abc import Mapping, Sequence
from typing import Any

from istmpi.report.curves import Curve

WITHOUT_MEANING = ("name", "method.name", "train.seed", "data.source", "evaluate.", "checkpoint.", "output.")
"""Settings, or sections of them, in which runs of one comparison may differ."""

SHORT = {"method.local_steps": "J", "optimizer.name": ""}
"""What settings are called in a label; of others the last word."""


def facts(curve: Curve) -> dict[str, Any]:
    """What tells runs apart: their settings, as far as they mean something, and their ranks."""
    settings = {key: value for key, value in curve.settings.items() if not key.startswith(WITHOUT_MEANING)}
    return settings | ({"ranks": curve.ranks} if curve.ranks else {})


def full_names(curves: Sequence[Curve]) -> list[str]:
    """Every run's method, with all settings in which not all runs agree."""
    known = [facts(curve) for curve in curves]
    keys = differing(known)
    return [
        ", ".join([curve.method, *(f"{_last(key)} {text(one[key])}" for key in keys if key in one)])
        for curve, one in zip(curves, known)
    ]


def labels(curves: Sequence[Curve]) -> list[str]:
    """Short names of one run of each group: the method, and as few settings as tell its groups apart.

    Groups of one method that no setting tells apart are numbered.
    """
    known = [facts(curve) for curve in curves]
    made = []
    for curve, one in zip(curves, known):
        same = [its for other, its in zip(curves, known) if other.method == curve.method]
        words = [_short(key, one[key]) for key in _needed(one, same) if key in one]
        made.append(f"{curve.method} ({', '.join(words)})" if words else curve.method)
    return [f"{one} [{made[:place].count(one) + 1}]" if made.count(one) > 1 else one for place, one in enumerate(made)]


def differing(known: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all that have them."""
    values: dict[str, set[str]] = {}
    for one in known:
        for key, value in one.items():
            values.setdefault(key, set()).add(repr(value))
    return [key for key, seen in values.items() if len(seen) > 1]


def text(value: Any) -> str:
    """A setting's value as people write it: ``512-512``; of one that is not set ``none``."""
    if value is None or value == "":
        return "none"
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _telling(known: Sequence[Mapping[str, Any]]) -> list[str]:
    """As few keys as tell all apart, the one that tells most first."""
    chosen: list[str] = []
    left = differing(known)

    def kinds(keys: Sequence[str]) -> int:
        return len({tuple(_values(one, keys)) for one in known})

    while left and (found := max(left, key=lambda key: kinds([*chosen, key]))):
        if kinds([*chosen, found]) == kinds(chosen):
            break
        chosen.append(found)
        left.remove(found)
    return chosen


def _needed(one: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the keys that tell all apart those that tell one from all others."""
    keys = _telling(known)
    for key in reversed(keys):
        rest = [other for other in keys if other != key]
        if sum(_values(its, rest) == _values(one, rest) for its in known) == 1:
            keys = rest
    return keys


def _values(one: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return [repr(one.get(key)) for key in keys]


def _short(key: str, value: Any) -> str:
    said = f"{value:g}" if isinstance(value, float) else text(value)
    return f"{SHORT.get(key, _last(key))} {said}".strip()


def _last(setting: str) -> str:
    return setting.rpartition(".")[2].replace("_", " ")
