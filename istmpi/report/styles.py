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
from typing import TYPE_CHECKING

from istmpi.errors import ConfigError
from istmpi.files import appearing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER, GRID = "#1b1b1b", "#ffffff", "#7f7f7f"

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILLION, YELLOW = "#56B4E9", "#D55E00", "#F0E442"
"""The palette of Okabe and Ito, for all kinds of colour blindness."""
BROWN, WINE, ASH, RUST, MOSS = "#786048", "#a84878", "#b9aca8", "#b8330b", "#92b874"
"""Further colours, as far as possible from the palette and each other, also for the
colour-blind."""


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
    "ist-push-pull": Style(BLUE, "h", ":"),
    "data-parallel-broadcast": Style(INK, "<", "--"),
    "pytorch-ddp": Style(INK, "d", "-."),
    "pytorch-local-sgd": Style(ORANGE, "p", "--"),
}

UNKNOWN_MARKERS = ("1", "2", "3", "4", "|", "_")
LINES = ("-", "--", "-.", ":")
"""The line styles that distinguish a method's groups."""

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
"""The colours of phases, in the order of a round: shades of cividis, with neighbours that differ
clearly."""
REST = ("#f7f7f7", "#252525", "#bdbdbd")


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each method. Methods that are not in `STYLES` get unused colours, while
    there are any."""
    names = list(dict.fromkeys(names))
    chosen = {name: STYLES[name] for name in names if name in STYLES}
    taken = {style.colour for style in chosen.values()}
    spare = [
        colour
        for colour in (YELLOW, VERMILLION, GREEN, PURPLE, SKY, ORANGE, BLUE)
        if colour not in taken
    ]
    unknown = [name for name in names if name not in STYLES]
    return chosen | {
        name: Style(
            (spare or [GRID])[place % max(len(spare), 1)],
            UNKNOWN_MARKERS[place % len(UNKNOWN_MARKERS)],
        )
        for place, name in enumerate(unknown)
    }


FORMATS = (".png", ".svg", ".pdf")

LONGEST = 200
WIDEST = 26

LOOK = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.alpha": 0.3,
        "axes.titleweight": "bold",
    },
    **{"font.size": 9.5, "axes.titlesize": 10, "figure.titlesize": 11, "legend.fontsize": 8.5},
    **{"lines.linewidth": 1.6, "lines.markersize": 4.5, "svg.fonttype": "none"},
}


def plain(text: str) -> str:
    """Escape $ for matplotlib, and remove a leading _, which hides a label. Long texts are cut."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return text.lstrip("_").replace("$", r"\$")


def name(text: str) -> str:
    return textwrap.fill(plain(text), WIDEST)


@contextmanager
def looking_alike() -> Iterator[None]:
    """A ``with`` block with istmpi's settings of matplotlib, not the user's. Raises ImportError
    without matplotlib."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)
        yield


def require_drawable(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot {path}: must end in {', '.join(FORMATS)}.")


def svg(figure: "Figure", title: str, salt: str = "") -> str:
    """Return a picture as an <svg> element, as reproducible text. Each picture of a page needs its
    own ``salt``."""
    import matplotlib

    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with looking_alike():
        matplotlib.rcParams["svg.hashsalt"] = f"istmpi {salt}"
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    text = re.sub(r'<g id="[^"]*">', "<g>", text[text.index("<svg") :])
    head, _, rest = text.partition(">")
    return f'{head} role="img" aria-labelledby="title{salt}">\n<title id="title{salt}">{escape(title)}</title>{rest}'


def save(figure: "Figure", path: Path, title: str, follow: bool = True) -> None:
    """Write a figure, complete or not at all, in the format of the file's ending. Raises
    OutputError if that fails."""
    with appearing(path, follow) as file:
        if path.suffix == ".svg":
            file.write(svg(figure, title).encode())
            return
        with looking_alike():
            figure.savefig(file, dpi=130, format=path.suffix[1:], metadata={"Title": title})
