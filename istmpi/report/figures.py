"""How a picture gets into its file."""

from pathlib import Path
from typing import TYPE_CHECKING

from istmpi.errors import OutputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: "Figure", path: Path) -> None:
    """Write a figure, in the format that the file's name says; OutputError where it cannot be written."""
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}).") from None
