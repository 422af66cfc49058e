"""The waits of a run that is planned, in words."""

from collections.abc import Mapping
from typing import Any

_WAITS = {
    "start": "to load",
    "rounds": "in rounds",
    "evaluation": "in evaluations",
    "saving": "to save",
}


def describe_waits(waits: Mapping[str, Any]) -> str:
    """Return the planned waits of a run in a sentence. ``waits``: those of the plan's JSON."""
    parts = []
    missing = []
    for purpose, words in _WAITS.items():
        planned = waits[purpose]
        if planned["calls"] is None:
            missing.append(f"those {words} ({planned['unknown']})")
            continue
        text = f"{planned['calls']:,} {words}"
        if planned["least"] != planned["calls"]:
            text = f"{planned['least']:,} to {text}"
        if purpose == "saving":
            text += f" ({_join_range(*waits['apart'])} more without a shared folder)"
        if purpose == "start":
            text += f" ({waits['start_apart']} more without a shared folder)"
        parts.append(text)
    text = f"waits, one call after the other: {', '.join(parts) or 'none'}"
    if missing:
        text += f"; not predicted: {', '.join(missing)}"
    return text


def _join_range(first: int, last: int) -> str:
    if first == last:
        return f"{last}"
    return f"{first} to {last}"
