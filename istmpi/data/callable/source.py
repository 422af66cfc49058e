"""Map-style data sets of torch that a user's FILE.py:function returns. Only opening a data set
imports torch."""

import inspect
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from istmpi.code import calling, module_of, shown
from istmpi.comm.mpi import ranks_here
from istmpi.data.callable.classes import class_names
from istmpi.data.class_list import require_several
from istmpi.data.dataset import SPLITS, Dataset, Split
from istmpi.data.holdout import NO_TEST, TestSplit
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.tasks import CLASSIFICATION, OWN, REGRESSION, Task

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

    from istmpi.data.callable.form import Form, kind_of
    from istmpi.data.callable.task import RegressionAsItIs, functions_of, own_task

    module, function = loaded("--data", source, "function")
    datasets = _called(source, function, rank, test)
    network = None
    if scoring:
        _, network = loaded("--model", scoring, "Class")
    takes = _arguments(getattr(network, "forward", None))
    splits = _opened(source, datasets, module, takes, test)
    train = splits["train"]
    train.ahead = ahead
    batch = train.batch(np.arange(min(len(train), EXAMPLES)))
    first = batch.inputs[0]
    target = None
    if not isinstance(batch.targets, Mapping):
        target = batch.targets[1]
    if isinstance(first, dict) and not (network and first):
        _refuse_names(source, batch.targets if target is None else first)
    classes = _same_classes(source, datasets)
    functions = functions_of({scoring: network, source.rpartition(":")[0]: module})
    shape: tuple[int, ...] = ()
    if isinstance(first, Tensor) and len(batch.inputs) == 1:
        shape = tuple(first.shape[1:])
    kind = kind_of(target)
    outputs = len(classes)
    if kind == "float":
        outputs = target[0].numel()
    is_plain = shape and first.is_floating_point() and not functions and isinstance(target, Tensor)
    if is_plain and kind == "integer" and target.ndim == 1 and classes:
        require_several(classes, source, "A network needs at least two to tell apart.")
        form = Form(shape, (), kind, len(classes))
        splits = {name: replace(it, form=form, shape=shape) for name, it in splits.items()}
        return Dataset(splits, CLASSIFICATION, shape, outputs, classes, source, "python")
    if is_plain and kind == "float" and target.ndim < 3:
        form = Form(shape, tuple(target.shape[1:]), kind, 0)
        splits = {name: replace(it, form=form, shape=shape) for name, it in splits.items()}
        task: type[Task] = RegressionAsItIs
        return Dataset(splits, REGRESSION, shape, outputs, None, source, "python", own_task=task)
    task = own_task(functions, target, source)
    inputs = batch.inputs
    return Dataset(
        splits, OWN, shape, outputs, None, source, "python", own_task=task, example=inputs
    )


def _refuse_names(source: str, entries: Mapping[Any, Any]) -> NoReturn:
    """Raise DataError for examples with named entries and a network that takes none."""
    names = ", ".join(map(str, entries))
    raise DataError(
        f"{source} has examples with entries {names}, which are passed by name to your network's "
        "forward. Give such a network: --model FILE.py:Class."
    )


def _opened(
    source: str,
    datasets: Mapping[str, Any],
    module: ModuleType,
    takes: Collection[str] | None,
    test: TestSplit,
) -> dict[str, Split]:
    """Return the splits of a user's data sets, with a test split drawn from the training data if
    ``test`` asks for it.

    ``takes``: the names of the entries of a dict that the network takes; None for all.
    """
    from torch.utils.data import default_collate

    from istmpi.data.callable.split import OwnSplit

    splits: dict[str, Split] = {}
    for split, dataset in datasets.items():
        name = f"{source}: {split}"
        with calling(f"{name}: its attribute collate", DataError):
            collate = (
                getattr(dataset, "collate", None)
                or getattr(module, "collate", None)
                or default_collate
            )
        if not callable(collate):
            raise DataError(
                f"{name} has collate = {shown(collate)}; it must be a function of a list of "
                "examples."
            )
        splits[split] = OwnSplit(dataset, name, collate, takes)
        if not len(splits[split]):
            raise DataError(f"--data {source}: {split} is empty; it needs at least one example.")
    if test.is_drawn(source, "test" in splits):
        whole = splits["train"]
        train, held = test.indices(len(whole))
        splits["train"] = replace(whole, chosen=train)
        splits["test"] = replace(whole, chosen=held, name=f"{source}: test")
    return splits


def _same_classes(source: str, datasets: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes of the training data. Raises DataError if another split has other
    classes."""
    by_split = {
        split: class_names(dataset, f"{source}: {split}") for split, dataset in datasets.items()
    }
    expected = by_split[SPLITS[0]]
    for split, classes in by_split.items():
        if expected and classes and classes != expected:
            differing = [
                f"{a} and {b}"
                for a, b in zip_longest(expected, classes, fillvalue="none")
                if a != b
            ]
            raise DataError(
                f"{source}: {split} has other classes than train (the first that differ: "
                f"{differing[0]}). A class must "
                "have one number in all splits: give each split the same list, or map its labels."
            )
    return expected


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
    from istmpi.data.callable.split import drawing

    given, takes = {"rank": rank, "ranks": ranks_here()}, _takes(function)
    with drawing() as seed:  # so that ranks, and resumed runs, draw the same splits
        seed(rank if "rank" in takes else 0)
        with calling(f"--data {source}", DataError):
            splits = function(**{name: given[name] for name in takes})
    with calling(f"--data {source}: its result", DataError):
        return _splits_in(splits, source, test)


def _splits_in(returned: Any, source: str, test: TestSplit) -> Mapping[str, Any]:
    """Return the data sets that a function returned, by their splits. Raises DataError for any
    other result."""
    from torch.utils.data import IterableDataset

    needed, splits = {*SPLITS[: 1 if test.fraction else 2]}, returned
    if isinstance(returned, tuple) and len(returned) <= len(SPLITS):
        splits = dict(zip(SPLITS, returned))
    elif test.fraction and not isinstance(returned, tuple | Mapping):
        splits = {SPLITS[0]: returned}
    if not isinstance(splits, Mapping) or not needed <= splits.keys() <= {*SPLITS}:
        raise DataError(
            f"--data {source}: it returns {_described(returned)} instead of (train, test), (train, "
            "test, validation) "
            f"or a dict of {', '.join(SPLITS)}. Training data alone: --test 0.1 (for mlp, also "
            "give classes)."
        )
    for split, dataset in splits.items():
        counted = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not counted or isinstance(dataset, IterableDataset):
            raise DataError(
                f"--data {source}: {split} is {type(dataset).__name__}, without __len__ or "
                "__getitem__. Use a "
                "loader or an iterable data set in your own loop: istmpi.Distributed."
            )
    return splits


def _described(returned: Any) -> str:
    """Describe a function's result by the types and names of its parts."""
    if isinstance(returned, Mapping):
        return f"a dict of {', '.join(map(str, returned)) or 'nothing'}"
    if isinstance(returned, list | tuple):
        return f"a {type(returned).__name__} of {len(returned)} ({', '.join(type(each).__name__ for each in returned)})"
    return type(returned).__name__


def _arguments(forward: Any) -> Collection[str] | None:
    arguments = inspect.signature(forward).parameters.values() if forward else ()
    if not arguments or any(each.kind is each.VAR_KEYWORD for each in arguments):
        return None
    return [
        each.name
        for each in arguments
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
