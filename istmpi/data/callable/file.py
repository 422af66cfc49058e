"""The data set of a function of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from istmpi.data.callable.function import module_beside, splits_of
from istmpi.data.callable.split import OwnSplit
from istmpi.data.callable.task import ScoredAsItIs, has_functions, own_task
from istmpi.data.dataset import Dataset
from istmpi.errors import ConfigError, DataError
from istmpi.tasks import CLASSIFICATION, OWN, REGRESSION

EXAMPLES = 16
"""Training examples that are read to see what they are, and on which networks are tried."""


def open_own(source: str, rank: int, scoring: str, ahead: int) -> Dataset:
    """Call FILE.py:function, and return its data sets with the loss and the score of the class ``scoring``, if any.

    Without a loss, a score and unusual examples, data are for classification or regression as any other.
    """
    datasets = splits_of(source, rank)
    module, _ = module_beside("--data", source, "function")
    kind = None
    if scoring:
        beside, name = module_beside("--model", scoring, "Class")
        kind = getattr(beside, name, None)
    holders = {scoring: kind} if kind else {}
    holders[source.rpartition(":")[0]] = module
    splits = {}
    for split, dataset in datasets.items():
        collate = getattr(dataset, "collate", None) or getattr(module, "collate", None) or default_collate
        splits[split] = OwnSplit(dataset, f"{source}: {split}", collate, _arguments(kind))
    splits["train"] = replace(splits["train"], ahead=ahead)
    batch = splits["train"].batch(np.arange(min(len(splits["train"]), EXAMPLES)))
    target = None if isinstance(batch.targets, Mapping) else batch.targets[1]
    if kind is None and isinstance(batch.inputs[-1], dict):
        raise DataError(f"{source}: examples are dicts, which only a network of your own takes. Give --model.")
    if not any(True for _ in batch.inputs) or batch.inputs == ({},):
        raise ConfigError(f"{scoring}: its forward takes none of {', '.join(batch.targets)}, the entries of {source}.")
    classes = getattr(datasets["train"], "classes", None) or ()
    classes = tuple(map(str, range(classes) if isinstance(classes, int) else classes))
    alone = batch.inputs[0] if len(batch.inputs) == 1 and isinstance(batch.inputs[0], torch.Tensor) else None
    shape = () if alone is None else tuple(alone.shape[1:])
    plain = alone is not None and alone.is_floating_point() and bool(shape) and not has_functions(holders)
    ints = isinstance(target, torch.Tensor) and not target.is_floating_point() and target.dtype != torch.bool
    if plain and ints and target.ndim == 1 and classes:
        return _plain(splits, CLASSIFICATION, shape, len(classes), classes, source)
    if plain and not ints and isinstance(target, torch.Tensor) and target.is_floating_point() and target.ndim < 3:
        made = _plain(splits, REGRESSION, shape, target[0].numel(), None, source)
        return replace(made, own_task=ScoredAsItIs)
    outputs = len(classes) or (target[0].numel() if isinstance(target, torch.Tensor) and not ints else 0)
    facts = OWN, shape, outputs, None, source, "python"
    return Dataset(splits, *facts, own_task=own_task(holders, target, source), example=batch.inputs)


def _plain(splits: Mapping[str, OwnSplit], task: str, shape: tuple[int, ...], outputs: int, *facts: Any) -> Dataset:
    counted = outputs if task == CLASSIFICATION else 0
    made = {name: replace(split, whole=False, shape=shape, classes=counted) for name, split in splits.items()}
    return Dataset(made, task, shape, outputs, *facts, "python")


def _arguments(kind: Any) -> frozenset[str] | None:
    """Return the arguments that a network's forward takes by name; None for all, and where the class is not there."""
    if not hasattr(kind, "forward"):
        return None
    parameters = inspect.signature(kind.forward).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD))
