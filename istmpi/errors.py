"""The errors that istmpi raises for its users, as one tree.

    IstmpiError                exit 1   something istmpi itself got wrong or could not foresee
    ├── UserError              exit 2   what the user gave cannot be used (also a ValueError)
    │   ├── ConfigError                 a run file, an option, an axis pattern, a deal that cannot be made
    │   ├── DataError                   a data file that is missing, damaged or of the wrong kind
    │   └── LaunchError                 mpirun, the MPI library and the ranks do not fit together
    ├── DivergedError          exit 3   the loss, a score or the network is no longer finite
    ├── SimulationError        exit 1   a simulated job failed, or one of its ranks was killed (exit 137)
    ├── OutputError            exit 74  a result cannot be written
    ├── StoppedError           exit 75  stopped early as asked, and saved; can be resumed
    └── StuckError             exit 76  a rank is stuck, or the launcher is gone; resume from a checkpoint

A message names the subject, its value, the constraint and the cure, in one line:

    hidden2 has 8 units but the run has 16 ranks; every rank needs at least one. Use fewer ranks or widen hidden2.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path


class IstmpiError(Exception):
    """Base of the errors that istmpi raises for its users."""

    exit_code = 1
    everywhere = False
    """True if every rank raises the error: one rank reports it, and the job ends by itself."""
    heard = False
    """True on a member of a replica group that heard the error from its leader, who reports it."""


class UserError(IstmpiError, ValueError):
    """An input of the user that cannot be used."""

    exit_code = 2


class ConfigError(UserError):
    """A setting, an option, a network or a deal that cannot be used."""


class DataError(UserError):
    """Data that is missing, damaged or of the wrong kind."""


class LaunchError(UserError):
    """A launcher, an MPI library and ranks that do not fit together."""


class DivergedError(IstmpiError):
    """A loss, a score or a network that is no longer finite."""

    exit_code = 3
    of_function = False
    """True if the network's outputs are finite, and a user's loss or score is not."""


class SimulationError(IstmpiError):
    """A job of simulated ranks that did not end as it should."""


class OutputError(IstmpiError):
    """A result that cannot be written, or a run's folder that another run has taken."""

    exit_code = 74


class StoppedError(IstmpiError):
    """A run that stopped when asked to, with its state saved."""

    exit_code = 75


class StuckError(IstmpiError):
    """Ranks that wait for a rank that does not respond, or a launcher that has ended."""

    exit_code = 76


LONGEST_WORD = 100
"""The most characters of a word to compare: comparing takes quadratic time, and longer words are
not mistyped."""


def did_you_mean(word: str, choices: Iterable[str], prefix: str = "") -> str:
    """Return ``"; did you mean X?"`` for the choice nearest to ``word``; the list of choices if
    none is near.

    ``prefix`` precedes each choice. A ``word`` longer than `LONGEST_WORD` gets an empty text.
    """
    words = sorted(choices)
    if len(word) > LONGEST_WORD:
        return ""
    near = difflib.get_close_matches(
        word, [item for item in words if len(item) <= LONGEST_WORD], n=1
    )
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    return f"; known: {', '.join(prefix + item for item in words)}"


def kind_of(path: Path) -> str:
    """Name the kind of a path that is not a regular file, such as a pipe.

    The path is not opened.
    """
    if path.is_symlink() and not path.exists():
        return "a link to nothing"
    kinds = {"a folder": path.is_dir, "a pipe": path.is_fifo, "a socket": path.is_socket}
    return next((kind for kind, is_one in kinds.items() if is_one()), "a device")


def describe_path(path: Path) -> str:
    """Return "does not exist", or "is" and the kind of a path that is not a regular file."""
    if not path.exists():
        return "does not exist"
    return f"is {kind_of(path)}"
