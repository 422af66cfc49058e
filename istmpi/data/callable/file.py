"""The data set of a function of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from istmpi.data.callable.function import loaded, splits_of
from istmpi.data.callable.split import OwnSplit
from istmpi.data.callable.task import RegressionAsItIs, functions_of, kind_of, own_task
from istmpi.data.dataset import Dataset
from istmpi.errors import DataError
from istmpi.tasks import CLASSIFICATION, OWN, REGRESSION

EXAMPLES = 16
"""Training examples that are read to see what they are, and on which networks are tried."""


def open_own(source: str, rank: int, scoring: str, ahead: int) -> Dataset:
    """Call FILE.py:function, and return its data sets with the loss and the score of the class ``scoring``, if any.

    Where there is neither, features with a class or with numbers are data as any other.
    """
    datasets = splits_of(source, rank)
    module, _ = loaded("--data", source, "function")
    holders = {source.rpartition(":")[0]: module}
    if scoring:
        beside, name = loaded("--model", scoring, "Class")
        holders = {scoring: getattr(beside, name, None), **holders}
    takes = _taken(getattr(holders.get(scoring), "forward", None))
    splits = {}
    for split, dataset in datasets.items():
        collate = getattr(dataset, "collate", None) or getattr(module, "collate", None) or default_collate
        splits[split] = OwnSplit(dataset, f"{source}: {split}", collate, takes)
    splits["train"].ahead = ahead
    batch = splits["train"].batch(np.arange(min(len(splits["train"]), EXAMPLES)))
    (first, *others), of_dicts = batch.inputs, isinstance(batch.targets, dict)
    if isinstance(first, dict) and not (scoring and first):
        raise DataError(
            f"{source} has examples with the entries {', '.join(batch.targets if of_dicts else first)}; they go by "
            f"name to the forward of a network of your own. Give one that takes some, --model FILE.py:Class."
        )
    target = None if of_dicts else batch.targets[1]
    classes = getattr(datasets["train"], "classes", ())
    classes = tuple(map(str, range(classes) if isinstance(classes, int) else classes))
    shape = tuple(first.shape[1:]) if isinstance(first, torch.Tensor) and not others else ()
    functions, kind, task = functions_of(holders), kind_of(target), OWN
    outputs = target[0].numel() if kind == "float" else len(classes)
    if shape and first.is_floating_point() and not functions:
        if kind == "integer" and target.ndim == 1 and classes:
            task = CLASSIFICATION
        elif kind == "float" and target.ndim < 3:
            task = REGRESSION
    if task == OWN:
        facts = OWN, shape, outputs, None, source, "python"
        return Dataset(splits, *facts, own_task=own_task(functions, target, source), example=batch.inputs)
    classes = classes if task == CLASSIFICATION else ()
    splits = {name: replace(it, whole=False, shape=shape, classes=len(classes)) for name, it in splits.items()}
    facts = task, shape, outputs, classes or None, source, "python"
    return Dataset(splits, *facts, own_task=RegressionAsItIs if task == REGRESSION else None)


def _taken(forward: Any) -> Collection[str] | None:
    """Return the arguments that a forward takes by name; None for all."""
    arguments = inspect.signature(forward).parameters.values() if forward else ()
    if not arguments or any(each.kind is each.VAR_KEYWORD for each in arguments):
        return None
    return [each.name for each in arguments if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
