"""Libraries that only those need to install who use what needs them."""

import importlib
from types import ModuleType

from istmpi.errors import DataError


def optional(module: str, package: str, what: str, extra: str = "data") -> ModuleType:
    """The module, imported; a DataError that says which extra of istmpi's brings it where it is absent."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # soundfile is there without libsndfile: OSError
        message = f"{what} need {package}, which cannot be imported ({error}): pip install 'istmpi[{extra}]'"
        raise DataError(message) from error
