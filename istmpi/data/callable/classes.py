"""The attribute ``classes`` of a user's data set: a number of classes, or their names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from istmpi.code import calling, shown
from istmpi.errors import DataError
from istmpi.foreign import printable

MOST = 10**7
"""The most classes that a number may stand for."""


def read_class_names(dataset: Any, name: str) -> tuple[str, ...]:
    """Return the names of the classes of a user's data set; () if it has none. ``name`` begins
    messages.

    A number of classes stands for the names 0, 1 and so on. Raises DataError for anything without
    an order.
    """
    with calling(f"{name}: its attribute classes", DataError):
        classes = getattr(dataset, "classes", None)
        names = _read_names(classes, name)
        if len(set(names)) < len(names):
            twice, _ = Counter(names).most_common(1)[0]
            raise DataError(
                f"{name} has the class {twice} twice in its attribute classes. Give each class its "
                "name."
            )
        return names


def _read_names(classes: Any, name: str) -> tuple[str, ...]:
    if classes is None:
        return ()
    # A bool is an int to Python.
    if isinstance(classes, bool):
        raise _refuse(classes, name)
    if hasattr(classes, "tolist"):  # an array, a tensor, or an index of pandas
        classes = classes.tolist()
    if hasattr(type(classes), "__index__"):
        if not 0 <= index(classes) <= MOST:
            raise _refuse(classes, name)
        return tuple(map(str, range(index(classes))))
    # A set has no order, so its names would have other numbers in another process.
    if not isinstance(classes, Sequence) or isinstance(classes, str | bytes | bytearray | Mapping):
        raise _refuse(classes, name)
    names = [*classes]
    if any(not isinstance(value, str | int) or isinstance(value, bool) for value in names):
        raise _refuse(classes, name)
    return tuple(printable(str(value)) for value in names)


def _refuse(classes: Any, name: str) -> DataError:
    return DataError(
        f"{name} has classes = {shown(classes)}, of type {type(classes).__name__}. Give a list of "
        "names in the order of their numbers, or the number of classes."
    )
