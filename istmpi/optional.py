"""Imports libraries that only some features need."""

import importlib
from types import ModuleType

from istmpi.errors import DataError


def optional(module: str, package: str, what: str, extra: str = "data") -> ModuleType:
    """Import and return a module.

    Raises a DataError that names the extra to install if the import fails.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # soundfile is there without libsndfile: OSError
        raise DataError(
            f"{what} need {package}, which cannot be imported ({error}): pip install "
            f"'istmpi[{extra}]'"
        ) from error
