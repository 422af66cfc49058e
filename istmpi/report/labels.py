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
        box, anchor, (across, along, right, up), gap = _best_place(own, _size(axis, text, point), frame, away, placed)
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
    probe = axis.text(0, 0, text, fontsize=8.5)
    extent = probe.get_window_extent()
    probe.remove()
    return np.array([extent.width, extent.height]) / point + PADDING


def _best_place(own: np.ndarray, size: np.ndarray, frame: np.ndarray, away: np.ndarray, placed: Sequence[np.ndarray]):
    """The cheapest place of all that are tried: its box, its anchor on the curve, its side and its distance."""
    anchors = own[np.unique(np.linspace(0, len(own) - 1, ANCHORS).astype(int))][::-1]
    places = [(back, side, gap) for back in range(len(anchors)) for gap in GAPS for side in SIDES]
    back = np.array([one for one, _, _ in places])
    gaps = np.array([gap for _, _, gap in places])
    directions = np.array([side[2:] for _, side, _ in places])
    centres = anchors[back] + directions * (gaps[:, None] + (size - PADDING) / 2)
    low, high = centres - size / 2, centres + size / 2
    to_own, to_others = _distances(low, high, own), _distances(low, high, away)
    price = BACK * back / len(anchors) + gaps / 10
    price += OUTSIDE * (np.maximum(frame[:2] - low, 0) + np.maximum(high - frame[2:], 0)).sum(axis=1) / size.sum()
    for other in placed:
        price += ON_A_LABEL * ((low < other[2:] + 2) & (other[:2] < high + 2)).all(axis=1)
    price += ON_A_CURVE * ((to_own == 0).sum(axis=1) + (to_others == 0).sum(axis=1))
    nearest = to_others.min(axis=1, initial=np.inf)
    price += NEARER_TO_ANOTHER * (nearest < np.minimum(to_own.min(axis=1), GAPS[0] + 1))
    best = int(price.argmin())
    box = np.concatenate([low[best], high[best]])
    return box, anchors[back[best]], places[best][1], gaps[best]


def _distances(low: np.ndarray, high: np.ndarray, points: np.ndarray) -> np.ndarray:
    off = np.maximum(np.maximum(low[:, None] - points, points - high[:, None]), 0)
    return np.hypot(off[..., 0], off[..., 1])


def without_room(axes: Sequence["Axes"]) -> None:
    """Take those labels out of bars that are wider than their bar; the picture must have its layout."""
    for axis in axes:
        for bars in axis.containers:
            texts = [text for text in axis.texts if text.get_text() == bars.get_label()]
            for bar, text in zip(bars, texts):
                if text.get_window_extent().width > bar.get_window_extent().width - 2:
                    text.set_visible(False)
