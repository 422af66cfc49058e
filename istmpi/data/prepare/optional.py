"""The readers' libraries, which only those who prepare data need to install."""

import importlib
from types import ModuleType

from istmpi.errors import DataError


def optional(module: str, package: str, what: str) -> ModuleType:
    """The module, imported; a DataError that says how to get it where it is absent."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # soundfile is there without libsndfile: OSError
        message = f"{what} need {package}, which cannot be imported ({error}): pip install 'istmpi[data]'"
        raise DataError(message) from error
