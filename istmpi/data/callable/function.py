"""The function FILE.py:function of the user's that returns map-style data sets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from istmpi.code import module_of, short
from istmpi.comm.mpi import ranks_here
from istmpi.data.dataset import SPLITS
from istmpi.errors import ConfigError, DataError, did_you_mean


def is_function(source: str) -> bool:
    """Say whether a run's name for its data is FILE.py:function or package.module:function."""
    return bool(re.fullmatch(r"(.+\.py|[\w.]+):\w+", source))


def loaded(option: str, name: str, what: str) -> tuple[ModuleType, str]:
    """The module and the last name of FILE.py:NAME, run once as long as the file does not change."""
    path = Path(name.rpartition(":")[0])
    return _loaded(option, name, what, path.stat().st_mtime_ns if path.is_file() else 0)


_loaded = cache(lambda option, name, what, changed: module_of(option, name, what))


def _function(source: str) -> tuple[Callable[..., Any], set[str]]:
    """Return the function, and which of rank and ranks it takes."""
    module, name = loaded("--data", source, "function")
    function = getattr(module, name, None)
    if not callable(function):
        problem = (
            f"has no function {name}{did_you_mean(name, vars(module))}" if function is None else f"has {function}."
        )
        raise ConfigError(f"--data {source}: the file {problem}")
    return function, {"rank", "ranks"} & inspect.signature(function).parameters.keys()


def takes_rank(source: str) -> bool:
    """Say whether the function is told its rank, so that each rank has data of its own."""
    return "rank" in _function(source)[1]


def splits_of(source: str, rank: int) -> Mapping[str, Any]:
    """Call the function; return its data sets by the names of their splits. ConfigError or DataError for others."""
    from torch.utils.data import IterableDataset

    from istmpi.data.callable.drawing import drawing

    function, takes = _function(source)
    given = {"rank": rank, "ranks": ranks_here()}
    try:
        with drawing() as seed:  # so that ranks, and resumed runs, draw the same splits
            seed(rank if "rank" in takes else 0)
            splits = function(**{name: given[name] for name in takes})
        if isinstance(splits, tuple) and len(splits) == 2:
            splits = dict(zip(SPLITS, splits))
        if not isinstance(splits, Mapping) or not {*SPLITS[:2]} <= splits.keys() <= {*SPLITS}:
            raise DataError(f"it returns {str(splits)[:80]}, not (train, test) or a dict of {', '.join(SPLITS)}.")
        for split, dataset in splits.items():
            if isinstance(dataset, IterableDataset) or not (
                hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
            ):
                raise DataError(
                    f"{split} is {type(dataset).__name__}, without __len__ or __getitem__. A loader or an iterable "
                    f"data set goes into a loop of your own, istmpi.Distributed."
                )
            if not len(dataset):
                raise DataError(f"{split} is empty; it needs at least one example.")
    except ConfigError:
        raise
    except Exception as error:
        problem = str(error) if isinstance(error, DataError) else f"it fails: {short(error)}."
        raise DataError(f"--data {source}: {problem}") from error
    return splits
