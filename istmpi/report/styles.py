"""How everything in a picture looks: the one place for colours. A new method gets a line in `STYLES`."""

from collections.abc import Iterable
from dataclasses import dataclass

INK, PAPER, GRID = "#1b1b1b", "#ffffff", "#7f7f7f"
"""Text and axes, what they are on, and lines that help to read."""
DARK_INK, DARK_PAPER = "#e8e8e8", "#14171a"
"""What ink and paper become where the reader prefers dark pages."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILLION, YELLOW = "#56B4E9", "#D55E00", "#F0E442"
"""The palette of Okabe and Ito (2008), whose black is `INK` here: it holds under all three kinds of colour blindness."""


@dataclass(frozen=True)
class Style:
    """How a method is drawn, in every picture."""

    colour: str
    marker: str
    line: str = "-"


STYLES = {
    "ist": Style(BLUE, "o"),
    "local-sgd": Style(ORANGE, "s"),
    "data-parallel": Style(INK, "D"),
    "diloco": Style(PURPLE, "^"),
    "fedavg": Style(GREEN, "v"),
    "dynamic-averaging": Style(SKY, "P"),
    "codistillation": Style(VERMILLION, "X"),
    # Others' ways of the same method: its colour, another line and another marker.
    "ist-push-pull": Style(BLUE, "h", ":"),
    "data-parallel-broadcast": Style(INK, "<", "--"),
    "data-parallel-halving-doubling": Style(INK, ">", ":"),
    "pytorch-ddp": Style(INK, "d", "--"),
    "pytorch-local-sgd": Style(ORANGE, "p", "--"),
}
"""By the name that a run file gives a method."""

UNKNOWN_MARKERS = ("*", "H", "8", "1", "2", "3", "4", "+")
LINES = ("-", "--", "-.", ":")
"""For runs of one method that differ in their settings: its colour and marker, in this order."""

PHASES = {
    "deal": "#666970",
    "pull": "#dfca57",
    "hop": "#9e9676",
    "compute": "#273e6e",
    "wait": "#fee838",
    "push": "#817f78",
    "all-reduce": "#4a536c",
    "other": "#beaf6b",
}
"""Where the time goes, in the order of a round: shades of cividis, each as light as no other, neighbours far apart."""
REST = ("#f7f7f7", "#252525", "#bdbdbd")
"""For phases of other programs."""


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each method: its own, and for those of other programs a colour that none of these has."""
    names = list(dict.fromkeys(names))
    known = {name: STYLES[name] for name in names if name in STYLES}
    taken = {style.colour for style in known.values()}
    spare = [colour for colour in (YELLOW, VERMILLION, GREEN, PURPLE, SKY, ORANGE, BLUE) if colour not in taken]
    unknown = [name for name in names if name not in STYLES]
    return known | {
        name: Style((spare or [GRID])[place % max(len(spare), 1)], UNKNOWN_MARKERS[place % len(UNKNOWN_MARKERS)])
        for place, name in enumerate(unknown)
    }
