"""The look of pictures, their files, and texts of others in them."""

import io
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.errors import ConfigError
from istmpi.files import appearing
from istmpi.report.styles import GRID, INK, PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")

LONGEST = 200
WIDEST = 26

LOOK = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.alpha": 0.3, "axes.titleweight": "bold"},
    **{"font.size": 9.5, "axes.titlesize": 10, "figure.titlesize": 11, "legend.fontsize": 8.5},
    **{"lines.linewidth": 1.6, "lines.markersize": 4.5, "svg.fonttype": "none"},
}


def plain(text: str) -> str:
    """Text that matplotlib takes neither for mathematics nor for a name that legends leave out."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return text.lstrip("_").replace("$", r"\$")


def name(text: str) -> str:
    return textwrap.fill(plain(text), WIDEST)


@contextmanager
def looking_alike() -> Iterator[None]:
    """A context to draw in, without a user's settings; ImportError without matplotlib."""
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
    """A picture as an <svg> element, always the same text; each picture of a page needs its own ``salt``."""
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


def save(figure: "Figure", path: Path, title: str) -> None:
    """Write a figure, complete or not at all, in the format that its name says; OutputError if that fails."""
    with appearing(path) as file:
        if path.suffix == ".svg":
            file.write(svg(figure, title).encode())
            return
        with looking_alike():
            figure.savefig(file, dpi=130, format=path.suffix[1:], metadata={"Title": title})
