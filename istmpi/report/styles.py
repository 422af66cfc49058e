"""The look of everything in pictures: the one place for colours. `STYLES` has the methods'; others get what is left."""

from collections.abc import Iterable
from dataclasses import dataclass

INK, PAPER, GRID = "#1b1b1b", "#ffffff", "#7f7f7f"

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILLION, YELLOW = "#56B4E9", "#D55E00", "#F0E442"
"""The palette of Okabe and Ito, for all kinds of colour blindness."""
BROWN, WINE, ASH, RUST, MOSS = "#786048", "#a84878", "#b9aca8", "#b8330b", "#92b874"
"""Colours as far from these and from each other as can be, for all eyes."""


@dataclass(frozen=True)
class Style:
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
    "admm": Style(ASH, "*"),
    "downpour": Style(RUST, "H"),
    "easgd": Style(MOSS, "+"),
    # Another program's way of the same method has its colour, another line and another marker.
    "ist-push-pull": Style(BLUE, "h", ":"),
    "data-parallel-broadcast": Style(INK, "<", "--"),
    "pytorch-ddp": Style(INK, "d", "-."),
    "pytorch-local-sgd": Style(ORANGE, "p", "--"),
}

UNKNOWN_MARKERS = ("1", "2", "3", "4", "|", "_")
LINES = ("-", "--", "-.", ":")
"""Lines of one method's runs that differ in their settings, in this order."""

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
"""The phases in the order of a round: shades of cividis, neighbours far apart."""
REST = ("#f7f7f7", "#252525", "#bdbdbd")


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each method; another program's has a colour that is left over, and a marker of its own."""
    names = list(dict.fromkeys(names))
    chosen = {name: STYLES[name] for name in names if name in STYLES}
    taken = {style.colour for style in chosen.values()}
    spare = [colour for colour in (YELLOW, VERMILLION, GREEN, PURPLE, SKY, ORANGE, BLUE) if colour not in taken]
    unknown = [name for name in names if name not in STYLES]
    return chosen | {
        name: Style((spare or [GRID])[place % max(len(spare), 1)], UNKNOWN_MARKERS[place % len(UNKNOWN_MARKERS)])
        for place, name in enumerate(unknown)
    }
