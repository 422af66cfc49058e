"""Names written beside their curves, where they hide least."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from istmpi.report.figures import plain
from istmpi.report.styles import INK, PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDEST = 26
"""Characters on a line of a label."""
APART = 3.0
"""Points between two samples of a curve."""
ALONE = 8
"""Samples that a point counts for which is all that a curve has."""
ANCHORS = 24
"""Places on a curve that are tried, from its end to its start."""
SIDES = tuple(
    (("right", "center", "left")[right + 1], ("top", "center", "bottom")[up + 1], right, up)
    for right, up in ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
)
"""Where a label lies as seen from its curve: its alignment, and its direction."""
GAPS = (6.0, 13.0, 25.0, 40.0)
"""Points between a label and its curve; a line leads to those that are far."""
FAR = 20.0
PADDING = 7.0
"""Points that a label's frame adds to its width and height."""

OUTSIDE, ON_A_LABEL, ON_A_CURVE, NEARER_TO_ANOTHER, BACK = 1000.0, 60.0, 1.5, 25.0, 4.0
"""What is bad about a place: each has a price, the last one for going back from a curve's end to its start."""


@dataclass(frozen=True)
class Named:
    """A curve in the units of its axes, with its label; without one it is only in the way."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    label: str = ""


def label(figure: "Figure", panels: Sequence[tuple["Axes", Sequence[Named]]]) -> None:
    """Write every curve's label beside it, panel by panel; the picture must be complete but for that."""
    figure.draw_without_rendering()
    for axis, curves in panels:
        _label(axis, curves, figure.dpi / 72)


def _label(axis: "Axes", curves: Sequence[Named], point: float) -> None:
    samples = [_samples(axis, curve, point) for curve in curves]
    frame = axis.get_window_extent().extents / point
    placed: list[np.ndarray] = []
    for curve, own in zip(curves, samples):
        if not curve.label or not len(own):
            continue
        text = textwrap.fill(plain(curve.label), WIDEST)
        others = [other for other in samples if other is not own and len(other)]
        away = np.concatenate(others) if others else np.empty((0, 2))
        size = _size(axis, text, point)
        found = min(_places(own, size, frame, own, away, placed), key=lambda one: one[0])
        _, box, anchor, (across, along, right, up), gap = found
        placed.append(box)
        axis.annotate(
            text,
            axis.transData.inverted().transform(anchor * point),
            (right * gap, up * gap),
            textcoords="offset points",
            ha=across,
            va=along,
            fontsize=8.5,
            color=INK,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": PAPER, "edgecolor": curve.colour, "alpha": 0.9},
            arrowprops={"arrowstyle": "-", "color": curve.colour, "linewidth": 0.7} if gap > FAR else None,
            annotation_clip=False,
            zorder=5,
        ).set_in_layout(False)


def _samples(axis: "Axes", curve: Named, point: float) -> np.ndarray:
    """Points on a curve, close to each other, in points of the page."""
    corners = axis.transData.transform(np.column_stack([curve.x, curve.y])) / point
    corners = corners[np.isfinite(corners).all(axis=1)]
    if len(corners) < 2:
        return np.repeat(corners, ALONE, axis=0)
    steps = np.hypot(*np.diff(corners, axis=0).T)
    way = np.concatenate([[0], np.cumsum(steps)])
    at = np.linspace(0, way[-1], int(way[-1] / APART) + 2)
    return np.column_stack([np.interp(at, way, values) for values in corners.T])


def _size(axis: "Axes", text: str, point: float) -> np.ndarray:
    """Width and height of a label, with its frame."""
    probe = axis.text(0, 0, text, fontsize=8.5)
    extent = probe.get_window_extent()
    probe.remove()
    return np.array([extent.width, extent.height]) / point + PADDING


def _places(anchors, size, frame, own, away, placed):
    """Every place that is tried: its price, its box, its anchor, its side and its distance."""
    chosen = anchors[np.unique(np.linspace(0, len(anchors) - 1, ANCHORS).astype(int))][::-1]
    for back, anchor in enumerate(chosen):
        for gap in GAPS:
            for side in SIDES:
                _, _, right, up = side
                centre = anchor + np.array([right, up]) * (gap + (size - PADDING) / 2)
                box = np.concatenate([centre - size / 2, centre + size / 2])
                price = BACK * back / len(chosen) + gap / 10
                price += OUTSIDE * _outside(box, frame)
                price += ON_A_LABEL * sum(_overlap(box, other) for other in placed)
                price += ON_A_CURVE * (_inside(box, own) + _inside(box, away))
                price += NEARER_TO_ANOTHER * (_distance(box, away) < min(_distance(box, own), GAPS[0] + 1))
                yield price, box, anchor, side, gap


def _outside(box: np.ndarray, frame: np.ndarray) -> float:
    """How much of a box's sides is beyond the frame."""
    beyond = np.concatenate([frame[:2] - box[:2], box[2:] - frame[2:]])
    return float(np.maximum(beyond, 0).sum() / (box[2:] - box[:2]).sum())


def _overlap(box: np.ndarray, other: np.ndarray) -> bool:
    return bool((box[:2] < other[2:] + 2).all() and (other[:2] < box[2:] + 2).all())


def _inside(box: np.ndarray, points: np.ndarray) -> int:
    return int(((points > box[:2]) & (points < box[2:])).all(axis=1).sum())


def _distance(box: np.ndarray, points: np.ndarray) -> float:
    """From the nearest of some points to a box."""
    if not len(points):
        return np.inf
    off = np.maximum(np.maximum(box[:2] - points, points - box[2:]), 0)
    return float(np.hypot(*off.T).min())


def without_room(axes: Sequence["Axes"]) -> None:
    """Take those labels out of bars that are wider than their bar; the picture must have its layout."""
    for axis in axes:
        for bars in axis.containers:
            texts = [text for text in axis.texts if text.get_text() == bars.get_label()]
            for bar, text in zip(bars, texts):
                if text.get_window_extent().width > bar.get_window_extent().width - 2:
                    text.set_visible(False)
