"""The delimiter of a table of text."""

from istmpi.data.archive import Archive
from istmpi.data.decoder import Notes
from istmpi.data.dense.columnar import is_columnar
from istmpi.errors import ConfigError, DataError


def guess_delimiter(archive: Archive, name: str, notes: Notes) -> str:
    """Return the delimiter in the first line of a table; raise DataError if several may be it."""
    if is_columnar(name):
        return ","
    with archive.stream(name) as stream:
        first = next((line for line in stream.lines() if line.strip()), b"")
    line = first.decode("utf-8", errors="replace")  # delimiters are ASCII
    present = [
        word for word, character in ((",", ","), (";", ";"), ("tab", "\t")) if character in line
    ]
    if len(present) > 1:
        raise DataError(
            f"{name}: its first line has {' and '.join(present)}; which is the delimiter is "
            "unclear (a decimal comma is not). Set --delimiter."
        )
    delimiter = present[0] if present else ","
    notes.assume(f"the columns are separated by {delimiter!r}", "--delimiter")
    return delimiter


def to_character(delimiter: str) -> str:
    """Return the character of a ``delimiter``, which may be ``tab``. Raises ConfigError."""
    character = "\t" if delimiter == "tab" else delimiter
    # Such characters are parts of numbers or of quotes.
    if len(character) != 1 or character.isalnum() or character in '"\r\n.+- ':
        raise ConfigError(
            f"delimiter {delimiter!r} is invalid; give a character such as ';', or tab."
        )
    return character
