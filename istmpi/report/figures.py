"""How a picture gets into its file, and how texts of others get into a picture."""

import contextlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.errors import OutputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 200
"""Characters of a text in a picture: what is wider than the picture leaves no room for it."""


def plain(text: str) -> str:
    """Text that is not read as mathematics, nor as one that legends leave out."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return text.lstrip("_").replace("$", r"\$")


@contextmanager
def quietly() -> Iterator[None]:
    """A context in which a sign that the font has not, or a text that has no room, is no reason to speak."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def save(figure: "Figure", path: Path) -> None:
    """Write a figure, complete or not at all, in the format that the name says. OutputError where that cannot be."""
    beside = path.with_name(f".{path.name}")
    try:
        with quietly():
            figure.savefig(beside, dpi=130, format=path.suffix[1:])
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}).") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
