"""How everything in a picture looks: the one place for colours. A new method gets a line in `STYLES`."""

from collections.abc import Iterable
from dataclasses import dataclass

INK, PAPER, GRID = "#1b1b1b", "#ffffff", "#7f7f7f"
"""Text and axes, what they are on, and lines that help to read."""
DARK_INK, DARK_PAPER = "#e8e8e8", "#14171a"
"""What ink and paper become where the reader prefers dark pages."""

ON_DARK, ON_LIGHT = "#fdfdfd", "#111111"
"""Text on a colour, which stays as it is on a dark page."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILLION, YELLOW = "#56B4E9", "#D55E00", "#F0E442"
"""The palette of Okabe and Ito, whose black is `INK` here: it holds under all three kinds of colour blindness."""
BROWN, WINE = "#786048", "#a84878"
"""What is farthest from it and from each other, for all eyes and on both pages."""


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
    "streaming-diloco": Style(BROWN, "8"),
    "sparse-loco": Style(WINE, "x"),
    "fedavg": Style(GREEN, "v"),
    "dynamic-averaging": Style(SKY, "P"),
    "codistillation": Style(VERMILLION, "X"),
    # Others' ways of the same method: its colour, another line and another marker.
    "ist-push-pull": Style(BLUE, "h", ":"),
    "data-parallel-broadcast": Style(INK, "<", "--"),
    "data-parallel-halving-doubling": Style(INK, ">", ":"),
    "pytorch-ddp": Style(INK, "d", "-."),
    "pytorch-local-sgd": Style(ORANGE, "p", "--"),
}
"""By the name that a run file gives a method."""

UNKNOWN_MARKERS = ("*", "H", "1", "2", "3", "4", "+", "|")
LINES = ("-", "--", "-.", ":")
"""For runs of one method that differ in their settings: its colour and marker, in this order."""

PHASES = {
    "deal": "#666970",
    "pull": "#dfca57",
    "hop": "#9e9676",
    "compute": "#273e6e",
    "wait": "#fee838",
    "push": "#817f78",
    "all-reduce": "#beaf6b",
    "other": "#4a536c",
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


def shades(count: int) -> list[str]:
    """So many colours from dark to light, for parts of a whole that have an order."""
    scale = sorted(PHASES.values(), key=_light)
    return [scale[place * (len(scale) - 1) // max(count - 1, 1)] for place in range(count)]


def text_on(colour: str) -> str:
    """The colour of text that can be read on another."""
    return ON_LIGHT if _light(colour) > 110 else ON_DARK


def _light(colour: str) -> float:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue
