"""Map-style data sets of torch that a user's FILE.py:function returns. Only opening a data set
imports torch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.code import calling, import_user_module, shown
from istmpi.comm.mpi import ranks_here
from istmpi.data.batch import Batch
from istmpi.data.callable.classes import read_class_names
from istmpi.data.class_list import require_several
from istmpi.data.dataset import SPLITS, Dataset
from istmpi.data.holdout import NO_TEST, TestSplit
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.tasks import CLASSIFICATION, OWN, REGRESSION

if TYPE_CHECKING:
    from istmpi.data.callable.split import OwnSplit

EXAMPLES = 16
"""The number of training examples that show the form of the data, and on which a network is
tried."""


def is_function(source: str) -> bool:
    """Return True if a data source is written as FILE.py:function or package.module:function."""
    return bool(re.fullmatch(r"(.+\.py|[\w.]+):\w+", source))


def takes_rank(source: str) -> bool:
    _, function = load("--data", source, "function")
    return "rank" in _find_rank_arguments(function)


def open_own(
    source: str, rank: int, scoring: str, ahead: int, test: TestSplit = NO_TEST
) -> Dataset:
    """Return the data set that the function ``source`` makes. Raises ConfigError or DataError.

    The user's loss and score are functions of the network's class ``scoring`` or of the function's
    file. Without them, float tensors with classes or numbers become classification or regression.
    """
    from istmpi.data.callable.task import find_functions, make_task

    module, function = load("--data", source, "function")
    datasets = _call(source, function, rank, test)
    network = _load_network(scoring)
    takes = _find_arguments(getattr(network, "forward", None))
    splits = _open_splits(source, datasets, module, takes, test)
    train = splits["train"]
    # Evaluations read each batch once and in order; only training reads ahead.
    train.ahead = ahead
    # The form of the data is that of a batch: a collate function may make anything of examples.
    batch = train.batch(np.arange(min(len(train), EXAMPLES)))
    target = _find_target(batch)
    _require_network_for_names(source, batch, target, network)
    classes = _require_same_classes(source, datasets)
    functions = find_functions({scoring: network, source.rpartition(":")[0]: module})
    # With a loss of the user's own, targets may mean anything.
    plain = None if functions else _open_plain(source, splits, batch.inputs, target, classes)
    return plain or Dataset(
        splits=splits,
        task=OWN,
        shape=_find_shape(batch.inputs),
        outputs=_count_outputs(target, classes),
        classes=None,
        source=source,
        kind="python",
        own_task=make_task(functions, target, source),
        example=batch.inputs,
    )


def _load_network(scoring: str) -> Any:
    """Return the class of a user's network; None for a network that ships."""
    if not scoring:
        return None
    _, network = load("--model", scoring, "Class")
    return network


def _find_target(batch: Batch) -> Any:
    """Return the targets of a batch ``(inputs, targets)``; None for a dict."""
    if isinstance(batch.targets, Mapping):
        return None
    return batch.targets[1]


def _open_plain(
    source: str,
    splits: Mapping[str, OwnSplit],
    inputs: tuple[Any, ...],
    target: Any,
    classes: tuple[str, ...],
) -> Dataset | None:
    """Return a data set for classification or regression; None if its batches, such as ``inputs``
    and ``target``, are neither."""
    from torch import Tensor

    from istmpi.data.callable.form import Form, name_kind
    from istmpi.data.callable.task import RegressionAsItIs

    shape = _find_shape(inputs)
    if not shape or not inputs[0].is_floating_point() or not isinstance(target, Tensor):
        return None
    kind = name_kind(target)
    is_classes = kind == "integer" and target.ndim == 1 and bool(classes)
    if is_classes:
        require_several(classes, source, "A network needs at least two to tell apart.")
    elif kind != "float" or target.ndim > 2:
        return None
    form = Form(shape, tuple(target.shape[1:]), kind, len(classes) if is_classes else 0)
    return Dataset(
        splits={name: replace(split, form=form, shape=shape) for name, split in splits.items()},
        task=CLASSIFICATION if is_classes else REGRESSION,
        shape=shape,
        outputs=_count_outputs(target, classes),
        classes=classes if is_classes else None,
        source=source,
        kind="python",
        own_task=None if is_classes else RegressionAsItIs,
    )


def _find_shape(inputs: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape of an example; () if the inputs of a batch are not a single tensor."""
    from torch import Tensor

    if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
        return ()
    return tuple(inputs[0].shape[1:])


def _count_outputs(target: Any, classes: tuple[str, ...]) -> int:
    from istmpi.data.callable.form import name_kind

    if name_kind(target) == "float":
        return target[0].numel()
    return len(classes)


def _require_network_for_names(source: str, batch: Batch, target: Any, network: Any) -> None:
    """Raise DataError for examples with named entries and a network that takes none."""
    inputs = batch.inputs[0]
    # A network that ships takes a tensor, and could not name what is missing.
    if not isinstance(inputs, dict) or (network and inputs):
        return
    names = ", ".join(map(str, batch.targets if target is None else inputs))
    raise DataError(
        f"{source} has examples with entries {names}, which are passed by name to your network's "
        "forward. Give such a network: --model FILE.py:Class."
    )


def _open_splits(
    source: str,
    datasets: Mapping[str, Any],
    module: ModuleType,
    takes: Collection[str] | None,
    test: TestSplit,
) -> dict[str, OwnSplit]:
    """Return the splits of a user's data sets, with a test split drawn from the training data if
    ``test`` asks for it.

    ``takes``: the names of the entries of a dict that the network takes; None for all.
    """
    from torch.utils.data import default_collate

    from istmpi.data.callable.split import OwnSplit

    splits: dict[str, OwnSplit] = {}
    for split, dataset in datasets.items():
        name = f"{source}: {split}"
        with calling(f"{name}: its attribute collate", DataError):
            # As an attribute each split may have its own.
            collate = getattr(dataset, "collate", None) or getattr(module, "collate", None)
            collate = collate or default_collate
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


def _require_same_classes(source: str, datasets: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes of the training data. Raises DataError if another split has other
    classes."""
    by_split = {
        split: read_class_names(dataset, f"{source}: {split}")
        for split, dataset in datasets.items()
    }
    expected = by_split[SPLITS[0]]
    for split, classes in by_split.items():
        if expected and classes and classes != expected:
            pairs = zip_longest(expected, classes, fillvalue="none")
            name, other = next((name, other) for name, other in pairs if name != other)
            raise DataError(
                f"{source}: {split} has other classes than train (the first that differ: "
                f"{name} and {other}). A class must have one number in all splits: give each "
                "split the same list, or map its labels."
            )
    return expected


def load(option: str, name: str, what: str) -> tuple[ModuleType, Any]:
    """Return the module and NAME of FILE.py:NAME; a changed file runs again. ConfigError if NAME is
    not callable."""
    # A notebook edits the file and opens the data again.
    path = Path(name.rpartition(":")[0])
    changed = 0
    if path.is_file():
        changed = path.stat().st_mtime_ns
    module, inner = _import(option, name, what, changed)
    value = getattr(module, inner, None)
    if not callable(value):
        raise ConfigError(
            f"{option} {name}: it has no {what} {inner}{did_you_mean(inner, vars(module))}"
        )
    return module, value


@cache
def _import(option: str, name: str, what: str, changed: int) -> tuple[ModuleType, str]:
    """Import a module once; again if the time ``changed`` of its file differs."""
    return import_user_module(option, name, what)


def _find_rank_arguments(function: Any) -> set[str]:
    return {"rank", "ranks"} & inspect.signature(function).parameters.keys()


def _call(source: str, function: Any, rank: int, test: TestSplit) -> Mapping[str, Any]:
    from istmpi.data.callable.split import control_random_numbers

    values = {"rank": rank, "ranks": ranks_here()}
    takes = _find_rank_arguments(function)
    # Ranks, and resumed runs, must draw the same splits.
    with control_random_numbers() as seed:
        seed(rank if "rank" in takes else 0)
        with calling(f"--data {source}", DataError):
            splits = function(**{name: values[name] for name in takes})
    with calling(f"--data {source}: its result", DataError):
        return _name_splits(splits, source, test)


def _name_splits(returned: Any, source: str, test: TestSplit) -> Mapping[str, Any]:
    """Return the data sets that a function returned, by their splits. Raises DataError for any
    other result."""
    from torch.utils.data import IterableDataset

    needed = {"train"} if test.fraction else {"train", "test"}
    splits = returned
    # A list may itself be a data set; a tuple of splits is what torch's own functions return.
    if isinstance(returned, tuple) and len(returned) <= len(SPLITS):
        splits = dict(zip(SPLITS, returned))
    elif test.fraction and not isinstance(returned, tuple | Mapping):
        splits = {SPLITS[0]: returned}
    if not isinstance(splits, Mapping) or not needed <= splits.keys() <= {*SPLITS}:
        raise DataError(
            f"--data {source}: it returns {_describe(returned)} instead of (train, test), (train, "
            f"test, validation) or a dict of {', '.join(SPLITS)}. Training data alone: --test 0.1 "
            "(for mlp, also give classes)."
        )
    for split, dataset in splits.items():
        is_map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not is_map_style or isinstance(dataset, IterableDataset):
            raise DataError(
                f"--data {source}: {split} is {type(dataset).__name__}, without __len__ or "
                "__getitem__. Use a loader or an iterable data set in your own loop: "
                "istmpi.Distributed."
            )
    return splits


def _describe(returned: Any) -> str:
    """Describe a function's result by the types and names of its parts."""
    if isinstance(returned, Mapping):
        return f"a dict of {', '.join(map(str, returned)) or 'nothing'}"
    if isinstance(returned, list | tuple):
        types = ", ".join(type(part).__name__ for part in returned)
        return f"a {type(returned).__name__} of {len(returned)} ({types})"
    return type(returned).__name__


def _find_arguments(forward: Any) -> Collection[str] | None:
    """Return the names of the arguments of a ``forward``; None if it takes any name, or is None."""
    if not forward:
        return None
    parameters = inspect.signature(forward).parameters.values()
    if not parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    # Entries of a dict are passed by name, so an argument without a name takes none.
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in by_name]
