"""The function FILE.py:function of the user's that returns data sets, and what stands beside it in its file."""

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

_FUNCTION = re.compile(r"(?:.+\.py|[\w.]+):\w+")


def is_function(source: str) -> bool:
    """Say whether a run's name for its data is FILE.py:function or package.module:function."""
    return bool(_FUNCTION.fullmatch(source))


def module_beside(option: str, name: str, what: str) -> tuple[ModuleType, str]:
    """The module and the last name of FILE.py:NAME, loaded once as long as the file does not change."""
    path = Path(name.rpartition(":")[0])
    return _loaded(option, name, what, path.stat().st_mtime_ns if path.is_file() else 0)


_loaded = cache(lambda option, name, what, changed: module_of(option, name, what))


def _function(source: str) -> Callable[..., Any]:
    module, name = module_beside("--data", source, "function")
    function = getattr(module, name, None)
    if not callable(function):
        there = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        problem = f"has no function {name}{did_you_mean(name, there)}" if function is None else f"{name} is no function."
        raise ConfigError(f"--data {source}: {source.rpartition(':')[0]} {problem}")
    return function


def _takes(source: str) -> set[str]:
    return {"rank", "ranks"} & inspect.signature(_function(source)).parameters.keys()


def takes_rank(source: str) -> bool:
    """Say whether the function is told its rank, so that each rank has data of its own."""
    return "rank" in _takes(source)


def splits_of(source: str, rank: int) -> dict[str, Any]:
    """Call the function; return its data sets by the names of their splits. ConfigError or DataError for others."""
    given = {"rank": rank, "ranks": ranks_here()}
    try:
        returned = _function(source)(**{name: given[name] for name in _takes(source)})
    except ConfigError:
        raise
    except Exception as error:
        raise DataError(f"--data {source}: the function fails: {short(error)}.") from error
    if isinstance(returned, tuple) and len(returned) == 2:
        returned = dict(zip(SPLITS, returned))
    if not isinstance(returned, Mapping) or not {*SPLITS[:2]} <= returned.keys() <= {*SPLITS}:
        what = f"a dict of {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else type(returned).__name__
        raise DataError(
            f"--data {source}: the function returns {what}; it must return (train, test), or a dict of train, test and "
            f"perhaps validation."
        )
    for split, dataset in returned.items():
        _require_map_style(f"--data {source}: {split}", dataset)
    return dict(returned)


def _require_map_style(subject: str, dataset: Any) -> None:
    from torch.utils.data import IterableDataset

    has = all(hasattr(dataset, name) for name in ("__len__", "__getitem__"))
    if not has or isinstance(dataset, IterableDataset):
        raise DataError(
            f"{subject} is {type(dataset).__name__}, of which no example can be read by its number: it needs __len__ "
            f"and __getitem__. A loader, or an iterable data set, goes into a loop of your own (istmpi.Distributed)."
        )
    try:
        length = len(dataset)
    except Exception as error:
        raise DataError(f"{subject}: its length fails: {short(error)}.") from error
    if not length:
        raise DataError(f"{subject} is empty; it needs at least one example.")
