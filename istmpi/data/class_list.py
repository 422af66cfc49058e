"""The classes of a data set: as a user lists them, or as its labels have them."""

from collections.abc import Collection, Sequence

from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import printable
from istmpi.units import list_first

OPTION = (
    "classes",
    "NAME,NAME,...",
    "all classes in the order of their numbers, also those that SRC lacks (a site of several).  "
    "[default: the labels of SRC]",
)
"""The option of `istmpi prepare`, as a `Kind` declares it."""


def class_list(text: str | None) -> tuple[str, ...] | None:
    """Return the names of a list with commas; None for None.

    Raises ConfigError for fewer than two names, an empty name or a name that occurs twice.
    """
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    # A comma too many gives an empty name, and shifts the numbers of all classes behind it.
    if len(names) < 2 or not all(names) or len({*names}) < len(names):
        raise ConfigError(
            f"--classes {printable(text)[:200]}: give at least two different names, separated by "
            "commas."
        )
    return names


def require_listed(labels: Collection[str], classes: Sequence[str], source: object) -> None:
    """Raise DataError if a label is not among the listed ``classes``."""
    unknown = sorted({*labels} - {*classes})
    if unknown:
        raise DataError(
            f"{source}: the label {printable(unknown[0])} is not among the classes"
            f"{did_you_mean(unknown[0], classes)}. Remove its examples, or list it in --classes of "
            "istmpi prepare."
        )


def require_several(classes: Sequence[str], source: object, cure: str) -> None:
    """Raise DataError, with a ``cure``, for a single class: a network has nothing to tell apart."""
    if len(classes) == 1:
        raise DataError(f"{source} has one class, {printable(classes[0])}. {cure}")


def require_trained(
    trained: Collection[str], labels: Collection[str], split: str, source: object
) -> None:
    """Raise DataError if a split has a label that no training example has."""
    unknown = [label for label in labels if label not in trained]
    # A network cannot predict a class that it never saw, and its score would hide that.
    if unknown:
        names = list_first([printable(name) for name in sorted(trained)])
        raise DataError(
            f"{source}: no training example has the {split} label {printable(str(unknown[0]))}; "
            f"training has {names}. Write labels alike in all splits, remove such examples, or "
            "list all --classes."
        )
