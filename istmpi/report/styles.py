"""The look of pictures: colours, markers and lines; and functions that write pictures.

`STYLES` has the styles of known methods; other methods get unused colours.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istmpi.errors import ConfigError
from istmpi.files import appearing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

INK = "#1b1b1b"
PAPER = "#ffffff"
GRID = "#7f7f7f"

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
VERMILLION = "#D55E00"
YELLOW = "#F0E442"
"""The palette of Okabe and Ito, for all kinds of colour blindness."""
BROWN = "#786048"
WINE = "#a84878"
ASH = "#b9aca8"
RUST = "#b8330b"
MOSS = "#92b874"
"""Further colours, as far as possible from each other and the palette, also for the colour-blind."""


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
    "codistillation": Style(YELLOW, "X"),
    "joint": Style(VERMILLION, "*"),
    "admm": Style(ASH, "p"),
    "downpour": Style(RUST, "H"),
    "easgd": Style(MOSS, "+"),
    "ist-push-pull": Style(BLUE, "h", ":"),
    "data-parallel-broadcast": Style(INK, "<", "--"),
    "narrow": Style(ORANGE, ">", "-."),
    "pytorch-ddp": Style(INK, "d", "-."),
    "pytorch-local-sgd": Style(ORANGE, "1", "--"),
}

UNKNOWN_MARKERS = ("2", "3", "4", "|", "_")
LINES = ("-", "--", "-.", ":")
"""The line styles that distinguish a method's groups."""

PHASES = {
    "deal": "#999933",
    "pull": "#88ccee",
    "hop": "#44aa99",
    "compute": "#332288",
    "wait": "#ddcc77",
    "push": "#cc6677",
    "all-reduce": "#117733",
    "other": "#aa4499",
}
"""The colours of phases, in the order of a round: Paul Tol's muted colours.

They differ from each other, also for the colour-blind, and from those of methods.
"""
REST = ("#f7f7f7", "#252525", "#bdbdbd")
"""The colours of phases that other programs record."""
HATCHES = ("", "//", "..", "xx")
"""The patterns of further phases, whose colours are used already."""


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each method.

    Methods that are not in `STYLES` get unused colours, while there are any.
    """
    names = list(dict.fromkeys(names))
    chosen = {name: STYLES[name] for name in names if name in STYLES}
    taken = {style.colour for style in chosen.values()}
    palette = (YELLOW, VERMILLION, GREEN, PURPLE, SKY, ORANGE, BLUE)
    # Colours of known methods in this picture would mislead.
    spare = [colour for colour in palette if colour not in taken] or [GRID]
    unknown = [name for name in names if name not in STYLES]
    for place, name in enumerate(unknown):
        marker = UNKNOWN_MARKERS[place % len(UNKNOWN_MARKERS)]
        chosen[name] = Style(spare[place % len(spare)], marker)
    return chosen


FORMATS = (".png", ".svg", ".pdf")

LONGEST = 200
"""The most characters of a text in a picture."""
WIDEST = 26
"""The most characters in a line of a legend."""

LOOK: "dict[RcKeyType, Any]" = {
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.alpha": 0.3,
    "axes.titleweight": "bold",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "figure.titlesize": 11,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
}
"""Settings of matplotlib."""


def plain(text: str) -> str:
    """Escape $ for matplotlib, and remove a leading _, which hides a label. Long texts are cut."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}..."
    return text.lstrip("_").replace("$", r"\$")


def name(text: str) -> str:
    """Return a text in the lines of a legend."""
    return textwrap.fill(plain(text), WIDEST)


@contextmanager
def use_look() -> Iterator[None]:
    """Use istmpi's settings of matplotlib, not the user's, in a ``with`` block.

    Raises ImportError without matplotlib.
    """
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # Of letters that the font lacks, and of layouts that are too small: the picture is made.
        warnings.simplefilter("ignore", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)
        yield


def require_drawable(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot {path}: must end in {', '.join(FORMATS)}.")


def svg(figure: "Figure", title: str, salt: str = "") -> str:
    """Return a picture as an <svg> element, as reproducible text.

    Each picture of a page needs its own ``salt``, from which matplotlib makes the elements' ids.
    """
    import matplotlib

    file = io.StringIO()
    # None removes an entry: dates and versions would make each picture differ.
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with use_look():
        matplotlib.rcParams["svg.hashsalt"] = f"istmpi {salt}"
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    # The names of groups, such as axes_1, would be in a page more than once.
    text = re.sub(r'<g id="[^"]*">', "<g>", text[text.index("<svg") :])
    head, _, rest = text.partition(">")
    return (
        f'{head} role="img" aria-labelledby="title{salt}">\n'
        f'<title id="title{salt}">{escape(title)}</title>{rest}'
    )


def save(figure: "Figure", path: Path, title: str, follow: bool = True) -> None:
    """Write a figure, complete or not at all, in the format of the file's ending.

    Raises OutputError if that fails.
    """
    with appearing(path, follow) as file:
        if path.suffix == ".svg":
            file.write(svg(figure, title).encode())
            return
        with use_look():
            figure.savefig(file, dpi=130, format=path.suffix[1:], metadata={"Title": title})
