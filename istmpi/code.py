"""Imports the user's code, a FILE.py or a package, and turns its errors into one line."""

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from istmpi.errors import ConfigError, IstmpiError
from istmpi.foreign import printable

SHOWN = 60


def import_user_module(option: str, name: str, what: str) -> tuple[ModuleType, str]:
    """Import, and thereby run, the module of ``name``; return the module and NAME.

    ``name`` is FILE.py:NAME or package.module:NAME. ``option`` and ``what`` are for messages.
    Raises ConfigError for a malformed name, or if the import fails.
    """
    path, _, inner = name.rpartition(":")
    if not path or not inner.isidentifier():
        raise ConfigError(f"{option} {name}: give FILE.py:{what} or package.module:{what}.")
    try:
        with gradients_kept():
            if path.endswith(".py"):
                return _module_of_file(Path(path), f"{option} {name}"), inner
            return importlib.import_module(path), inner
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a script without a main guard may also exit
        raise ConfigError(
            f"{option} {name}: {path} cannot be imported: {short(error)}. Make it importable in "
            "Python."
        ) from error


@contextmanager
def gradients_kept() -> Iterator[None]:
    """A context for foreign code.

    If the code turns torch's gradients on or off, undo that and raise RuntimeError.
    """
    import torch

    # Training would go on without gradients, and nothing would be learnt.
    before = torch.is_grad_enabled()
    yield
    if torch.is_grad_enabled() != before:
        torch.set_grad_enabled(before)
        change = "off" if before else "on"
        raise RuntimeError(
            f"it turns gradients {change} globally; use torch.no_grad() as a context"
        )


@contextmanager
def calling(subject: str, kind: type[IstmpiError] = ConfigError, cure: str = "") -> Iterator[None]:
    """A context in which one method of a user's object runs; ``subject`` names both.

    Any exception becomes an error of this ``kind``, with the line of the user's code and the
    ``cure``, a sentence. Errors of istmpi pass unchanged.
    """
    try:
        yield
    except IstmpiError:
        raise
    except BaseException as error:
        if ends_the_program(error):
            raise
        text = f"{subject} fails: {short(error)}.{raised_in(error)}"
        if cure:
            text += f" {cure}"
        raise kind(text) from error


def ends_the_program(error: BaseException) -> bool:
    """Return True for Ctrl-C, sys.exit and the end of a simulated rank.

    A class of a user's that derives from BaseException is an error like others.
    """
    ends = isinstance(error, KeyboardInterrupt | SystemExit)
    return ends or type(error).__module__.startswith("istmpi.")


def short(error: BaseException) -> str:
    """Return an exception's class and the beginning of its text, in one line."""
    try:
        words = str(error)
    except Exception:  # the exception is a user's object, too
        return type(error).__name__
    text = printable(" ".join(words.split()))[:200].rstrip(".")
    if not text:
        return type(error).__name__
    return f"{type(error).__name__}: {text}"


def shown(value: object) -> str:
    """Return the beginning of a user's object in one line; its type if it cannot be shown."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return f"a value of type {type(value).__name__}"
    if len(text) > SHOWN:
        text = f"{text[:SHOWN]}..."
    return printable(text)


def raised_in(error: BaseException) -> str:
    """Return a sentence that names the last line of the user's code in a traceback.

    It is empty if no line is the user's.
    """
    libraries = str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(libraries) and "-packages" not in frame.filename:
            return f" It is raised in {frame.filename}, line {frame.lineno}."
    return ""


def _module_of_file(path: Path, subject: str) -> ModuleType:
    """Import a file as a module that can import other files of its folder.

    Raises ConfigError if it is missing.
    """
    if not path.is_file():
        raise ConfigError(f"{subject}: {path} does not exist.")
    folder = str(path.resolve().parent)
    # At the end, so that no file of the user hides a library.
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    # Pickles and dataclasses of the user look the module up by name; a library's own one stays.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
