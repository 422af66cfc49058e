"""The two halves of a batch with its outputs, to see whether a user's function is a mean over
rows."""

from typing import Any

import torch

from istmpi.data.batch import Batch
from istmpi.trees import Named


class _Indivisible(Exception):
    """Raised for a leaf without a row for each example."""


def split_rows(outputs: Any, batch: Batch) -> list[list[tuple[Any, Batch]]]:
    """Return (outputs, batch) of two halves of the rows, for each of two ways to halve them; [] if
    there are no such halves.

    Each tensor, and each list of texts or numbers, must have a row for each example.
    """
    # decision 66: a mean over rows may stay one number. The halves of a batch show whether it is
    # one.
    rows = batch.examples
    if rows < 2:
        return []
    # If the rows repeat a pattern, its first and its second half may count the same.
    first_and_last = (slice(0, rows // 2), slice(rows // 2, rows))
    even_and_odd = (slice(0, rows, 2), slice(1, rows, 2))
    try:
        return [
            _take_parts(outputs, batch, first_and_last),
            _take_parts(outputs, batch, even_and_odd),
        ]
    except _Indivisible:
        return []


def _take_parts(outputs: Any, batch: Batch, parts: tuple[slice, slice]) -> list[tuple[Any, Batch]]:
    """Return (outputs, batch) of each part of the rows. Raises _Indivisible if a leaf has another
    number of rows."""
    rows = batch.examples
    taken = []
    for part in parts:
        targets = _take_rows(batch.targets, part, rows)
        examples = len(range(*part.indices(rows)))
        taken.append((_take_rows(outputs, part, rows), Batch((), targets, examples)))
    return taken


def take_part(batch: Batch, part: slice) -> Batch | None:
    """Return some examples of a batch; None if a leaf has no row for each example."""
    rows = batch.examples
    try:
        inputs = _take_rows(batch.inputs, part, rows)
        targets = _take_rows(batch.targets, part, rows)
    except _Indivisible:
        return None
    return Batch(inputs, targets, len(range(*part.indices(rows))))


def join_rows(first: tuple[Any, Batch], second: tuple[Any, Batch]) -> tuple[Any, Batch] | None:
    """Return (outputs, batch) of the rows of two batches; None if they cannot be joined."""
    outputs, batch = first
    more_outputs, more = second
    rows = (batch.examples, more.examples)
    try:
        joined = _join(outputs, more_outputs, *rows)
        targets = _join(batch.targets, more.targets, *rows)
    except _Indivisible:
        return None
    return joined, Batch((), targets, sum(rows))


def _join(first: Any, second: Any, *rows: int) -> Any:
    """Join the rows of two trees. Raises _Indivisible if they differ in form, or a leaf has another
    number of rows."""
    both = first, second
    # Exact types: a class of the user's may not be made from its parts.
    if type(first) is not type(second):
        raise _Indivisible
    if isinstance(first, torch.Tensor):
        if tuple(tensor.shape[:1] for tensor in both) != tuple((count,) for count in rows):
            raise _Indivisible
        if first.shape[1:] != second.shape[1:]:
            raise _Indivisible
        return torch.cat(both)
    if type(first) is dict and first.keys() == second.keys():
        return {name: _join(first[name], second[name], *rows) for name in first}
    if type(first) in (list, tuple) and not any(isinstance(value, str) for value in first):
        return type(first)(_join(*pair, *rows) for pair in zip(first, second, strict=True))
    raise _Indivisible


def _take_rows(tree: Any, part: slice, rows: int) -> Any:
    """Return a part of the rows of each leaf of a tree. Raises _Indivisible if a leaf has another
    number of rows."""
    if isinstance(tree, torch.Tensor):
        if not tree.ndim or len(tree) != rows:
            raise _Indivisible
        return tree[part]
    if type(tree) in (dict, Named):
        return type(tree)((name, _take_rows(value, part, rows)) for name, value in tree.items())
    if type(tree) in (list, tuple):
        # A list of as many tensors as rows may be one tensor for each layer.
        if len(tree) == rows and not any(isinstance(value, torch.Tensor) for value in tree):
            return tree[part]
        return type(tree)(_take_rows(value, part, rows) for value in tree)
    raise _Indivisible
