"""A kind of data, as its folder declares it. Help needs the declarations, so they import no
reader."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple


def lazy(place: str) -> Callable[..., Any]:
    """Return the function MODULE:NAME of this package; the first call imports it."""
    module, name = place.split(":")

    # `istmpi --help` lists all kinds, and must not wait for NumPy, Pillow or HDF5.
    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(f"istmpi.data.{module}"), name)(*arguments, **options)

    return call


def _refuse_source(*_: Any, **__: Any) -> Any:
    raise AssertionError("data of this kind are never prepared")


class Kind(NamedTuple):
    name: str
    help: str = ""
    read: Callable[..., Any] = _refuse_source
    """``read(archive, decoder, **options) -> Material``; it raises ConfigError or DataError."""
    options: tuple[tuple[str, str, str], ...] = ()
    """Options of `istmpi prepare`: keyword of ``read``, metavar and help.

    The metavar N or 0|1 means a whole number, yes|no a bool, "" a flag, any other a text.
    """
    endings: tuple[str, ...] = ()
    """Endings of files for which messages advise this kind."""
    input: tuple[str, str] | None = None
    """A file to predict and its description, for the help of `istmpi predict`."""
    examples: Callable[..., Any] | None = None
    """``examples(path, request) -> Iterator[Block]`` reads such files; None: only tables, arrays
    and prepared files."""
    reading: Mapping[str, str] = {}
    """Conventions of all data of this kind, which prepared files do not state."""
    open: Callable[..., Any] = lazy("images.split:open_examples")
    """``open(file: PreparedFile) -> Opened``"""
