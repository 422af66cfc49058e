"""Map-style data sets of torch that a user's FILE.py:function returns. Only opening a data set
imports torch."""

import inspect
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from istmpi.code import module_of, short
from istmpi.comm.mpi import ranks_here
from istmpi.data.dataset import SPLITS, Dataset
from istmpi.data.holdout import NO_TEST, TestSplit
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.tasks import CLASSIFICATION, OWN, REGRESSION

EXAMPLES = 16
"""The number of training examples that show the form of the data, and on which a network is
tried."""


def is_function(source: str) -> bool:
    """Return True if a data source is written as FILE.py:function or package.module:function."""
    return bool(re.fullmatch(r"(.+\.py|[\w.]+):\w+", source))


def takes_rank(source: str) -> bool:
    return "rank" in _takes(loaded("--data", source, "function")[1])


def open_own(
    source: str, rank: int, scoring: str, ahead: int, test: TestSplit = NO_TEST
) -> Dataset:
    """Return the data set that the function ``source`` makes.

    The user's loss and score are functions of the network's class ``scoring`` or of the function's
    file. Without them, a float tensor with a class or numbers becomes classification or regression
    data. Raises ConfigError or DataError.
    """
    from torch import Tensor
    from torch.utils.data import default_collate

    from istmpi.data.callable.split import OwnSplit
    from istmpi.data.callable.task import RegressionAsItIs, functions_of, kind_of, own_task

    module, function = loaded("--data", source, "function")
    datasets = _called(source, function, rank, test)
    network = loaded("--model", scoring, "Class")[1] if scoring else None
    splits, takes = {}, _arguments(getattr(network, "forward", None))
    for split, dataset in datasets.items():
        collate = (
            getattr(dataset, "collate", None) or getattr(module, "collate", None) or default_collate
        )
        splits[split] = OwnSplit(dataset, f"{source}: {split}", collate, takes)
    if test.is_drawn(source, "test" in splits):
        whole, name = splits["train"], f"{source}: test"
        train, held = test.indices(len(whole))
        splits |= {
            "train": replace(whole, chosen=train),
            "test": replace(whole, chosen=held, name=name),
        }
    splits["train"].ahead = ahead
    batch = splits["train"].batch(np.arange(min(len(splits["train"]), EXAMPLES)))
    (first, *others), target = (
        batch.inputs,
        None if isinstance(batch.targets, Mapping) else batch.targets[1],
    )
    if isinstance(first, dict) and not (network and first):
        raise DataError(
            f"{source} has examples with entries {', '.join(batch.targets if target is None else first)}, "
            "which are passed by name to your network's forward. Give such a network: --model FILE.py:Class."
        )
    classes = getattr(datasets["train"], "classes", ())
    classes = tuple(map(str, range(classes) if isinstance(classes, int) else classes))
    shape = tuple(first.shape[1:]) if isinstance(first, Tensor) and not others else ()
    functions, kind = (
        functions_of({scoring: network, source.rpartition(":")[0]: module}),
        kind_of(target),
    )
    outputs = target[0].numel() if kind == "float" else len(classes)
    plain = shape and first.is_floating_point() and not functions
    if plain and kind == "integer" and target.ndim == 1 and classes:
        splits = {
            name: replace(it, whole=False, shape=shape, classes=outputs)
            for name, it in splits.items()
        }
        return Dataset(splits, CLASSIFICATION, shape, outputs, classes, source, "python")
    if plain and kind == "float" and target.ndim < 3:
        splits = {name: replace(it, whole=False, shape=shape) for name, it in splits.items()}
        return Dataset(
            splits, REGRESSION, shape, outputs, None, source, "python", own_task=RegressionAsItIs
        )
    task = own_task(functions, target, source)
    return Dataset(
        splits, OWN, shape, outputs, None, source, "python", own_task=task, example=batch.inputs
    )


def loaded(option: str, name: str, what: str) -> tuple[ModuleType, Any]:
    """Return the module and NAME of FILE.py:NAME; a changed file runs again. ConfigError if NAME is
    not callable."""
    path = Path(name.rpartition(":")[0])
    module, inner = _module(option, name, what, path.stat().st_mtime_ns if path.is_file() else 0)
    value = getattr(module, inner, None)
    if not callable(value):
        raise ConfigError(
            f"{option} {name}: it has no {what} {inner}{did_you_mean(inner, vars(module))}"
        )
    return module, value


_module = cache(lambda option, name, what, changed: module_of(option, name, what))


def _takes(function: Any) -> set[str]:
    return {"rank", "ranks"} & inspect.signature(function).parameters.keys()


def _called(source: str, function: Any, rank: int, test: TestSplit) -> Mapping[str, Any]:
    from torch.utils.data import IterableDataset

    from istmpi.data.callable.split import drawing

    given, takes = {"rank": rank, "ranks": ranks_here()}, _takes(function)
    try:
        with drawing() as seed:  # so that ranks, and resumed runs, draw the same splits
            seed(rank if "rank" in takes else 0)
            splits = function(**{name: given[name] for name in takes})
    except ConfigError:
        raise
    except Exception as error:
        raise DataError(f"--data {source} fails: {short(error)}.") from error
    needed = {*SPLITS[: 1 if test.fraction else 2]}
    if isinstance(splits, tuple):
        splits = dict(zip(SPLITS, splits))
    elif test.fraction and not isinstance(splits, Mapping):
        splits = {SPLITS[0]: splits}
    if not isinstance(splits, Mapping) or not needed <= splits.keys() <= {*SPLITS}:
        what = f"it returns {str(splits)[:80]} instead of (train, test) or a dict of {', '.join(SPLITS)}"
        raise DataError(
            f"--data {source}: {what}. Training data alone: --test 0.1 (for mlp, also give classes)."
        )
    for split, dataset in splits.items():
        counted = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not counted or isinstance(dataset, IterableDataset):
            raise DataError(
                f"--data {source}: {split} is {type(dataset).__name__}, without __len__ or __getitem__. Use a "
                "loader or an iterable data set in your own loop: istmpi.Distributed."
            )
        if not len(dataset):
            raise DataError(f"--data {source}: {split} is empty; it needs at least one example.")
    return splits


def _arguments(forward: Any) -> Collection[str] | None:
    arguments = inspect.signature(forward).parameters.values() if forward else ()
    if not arguments or any(each.kind is each.VAR_KEYWORD for each in arguments):
        return None
    return [
        each.name
        for each in arguments
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
