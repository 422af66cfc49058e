"""The class of a user's network, and a hash of its source: its file, and files imported from the
same folder.

The files are read as text, so that the hash is the same in every process. Imports under computed
names are missed.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from istmpi.code import import_user_module, short
from istmpi.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Source:
    hash: str = ""
    """The first 16 digits of the files' SHA-256, which does not depend on the folder; empty if
    there is no file."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """The version of each library that the files import; if unknown, a hash of the library's
    file."""


def load(name: str) -> tuple[type[nn.Module], Source]:
    """Run the code of FILE.py:Class or package.module:Class. Return the class and its source.

    Raises ConfigError if the code fails, the class is no torch.nn.Module, or the source cannot be
    read.
    """
    kind, module = load_class(name)
    try:
        return kind, _read_source(kind, module)
    except OSError as error:
        raise ConfigError(f"--model {name}: its source cannot be read: {short(error)}.") from error


def load_class(name: str) -> tuple[type[nn.Module], ModuleType]:
    """Return the class, and the module that ``name`` names, which may only import the class.

    Raises ConfigError if the code fails, or has no such class.
    """
    from torch import nn

    module, class_name = import_user_module("--model", name, "Class")
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        networks = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, nn.Module)
        ]
        others = did_you_mean(class_name, networks) if networks else ", nor any torch.nn.Module."
        if inspect.isfunction(kind):
            raise ConfigError(
                f"--model {name}: {class_name} is a function, no torch.nn.Module class{others}"
            )
        problem = "has no class" if kind is None else "does not have a torch.nn.Module as"
        raise ConfigError(
            f"--model {name}: {name.rpartition(':')[0]} {problem} {class_name}{others}"
        )
    return kind, module


def class_name(kind: type[nn.Module]) -> str:
    """Return the name of a class as --model takes it. Raises ConfigError if it is no network."""
    from torch import nn

    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ConfigError(
            f"network = {kind!r}: give a torch.nn.Module class, and its arguments separately."
        )
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    # A module outside packages is found by its file; others are found by their name.
    if file and "." not in kind.__module__:
        return f"{os.path.relpath(file)}:{kind.__qualname__}"
    return f"{kind.__module__}:{kind.__qualname__}"


def find_source(kind: type[nn.Module]) -> Source:
    """Return the source of a class; empty if its module is not loaded under its name."""
    module = sys.modules.get(kind.__module__)
    if module is None:
        return Source()
    return _read_source(kind, module)


def _read_source(kind: type, module: ModuleType) -> Source:
    files: dict[Path, str] = {}
    libraries: set[str] = set()
    _collect(module, files, libraries)
    # The named module may import the class from another one.
    home = sys.modules.get(kind.__module__)
    if home and kind.__module__ != module.__name__:
        _collect(home, files, libraries)
    if not files:
        return Source()
    first, *others = files
    # The first file by its content alone, so that a renamed file has the same hash.
    digest = hashlib.sha256(first.read_bytes())
    for name, file in sorted((files[file], file) for file in others):
        digest.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return Source(digest.hexdigest()[:16], {name: _version(name) for name in sorted(libraries)})


def _find_file(module: ModuleType) -> Path | None:
    try:
        file = inspect.getsourcefile(module)
    except TypeError:  # it is built in
        return None
    return Path(file).resolve() if file else None


def _collect(module: ModuleType, files: dict[Path, str], libraries: set[str]) -> None:
    """Add a module's file, and its imports from the same folder, to ``files``, and other imports to
    ``libraries``."""
    file = _find_file(module)
    if not file:
        return
    # The folder from which the module's absolute imports of its own package begin.
    above = module.__name__.count(".") + (file.name == "__init__.py")
    folder = file.parents[min(above, len(file.parents) - 1)]
    is_here: dict[str, bool] = {}
    waiting = [file]
    while waiting:
        file = waiting.pop()
        if file in files or not file.is_file():
            continue
        files[file] = file.relative_to(folder).as_posix()
        # An installed package counts by its version: its files are the same on all hosts.
        if any(part in INSTALLED for part in file.parts):
            libraries.add(files[file].partition("/")[0].removesuffix(".py"))
            continue
        for name in _list_imports(file.read_bytes(), file.relative_to(folder).parent.parts):
            top = name.partition(".")[0]
            # Most imports are of libraries: one look for each, whatever is imported from it.
            if top not in is_here:
                is_here[top] = (folder / f"{top}.py").is_file() or (folder / top).is_dir()
            if is_here[top]:
                waiting += _files(folder, name)
            elif top not in sys.stdlib_module_names:
                libraries.add(top)


def _files(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files below ``folder`` that an import of the module ``name`` runs."""
    for part in name.split("."):
        yield from filter(Path.is_file, (folder / f"{part}.py", folder / part / "__init__.py"))
        folder /= part


@cache
def _list_imports(source: bytes, package: tuple[str, ...]) -> list[str]:
    """Return the names of modules that a file of ``package`` may import, and other names.

    Only the folder shows whether ``y`` of ``from x import y`` is a module.
    """
    names: list[str] = []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # it cannot be imported either
        return []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts: tuple[str, ...] = ()
            if node.level:  # from .x import y
                parts = package[: len(package) - node.level + 1]
            if node.module:
                parts = (*parts, node.module)
            module = ".".join(parts)
            if module:
                names.append(module)
            names += (f"{module}.{alias.name}".lstrip(".") for alias in node.names)
    return names


def _version(name: str) -> str:
    """Return a library's version; a hash of its file without one, "" if it is not loaded."""
    library = sys.modules.get(name)
    if library is None:
        return ""
    version = getattr(library, "__version__", None)
    if version is not None:
        return str(version)
    file = _find_file(library)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file else ""
