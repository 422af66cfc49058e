"""What istmpi has found out about a network of one's own, as plain values: checkpoints have it as JSON.

With it a checkpoint can be read, listed and compared without running the code of the network.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from istmpi.engine.axes import Pattern
from istmpi.models.blocks import Blocks, ResidualBlock
from istmpi.models.operators import Operator


@dataclass(frozen=True)
class ParameterEntry:
    """A parameter's axes, and its initial values: uniform in ``centre ± bound``."""

    axes: str
    bound: float
    centre: float


@dataclass(frozen=True)
class NormEntry:
    """A batch normalisation's units, and what is added to a variance."""

    units: int
    epsilon: float


@dataclass(frozen=True)
class Table:
    """Everything that the engine asks of a network but how to build it; `istmpi.models.examination` makes it."""

    source: str
    """A hash of the files that the class is made from: its own, and what that imports from its own folder."""
    settings: Mapping[str, Any]
    """The arguments of the constructor, defaults included; of what JSON does not know the name."""
    groups: Mapping[str, int]
    """The widths that can be dealt out, with their full lengths."""
    undealt: Mapping[str, str]
    """Why each of the other widths cannot be dealt out."""
    parameters: Mapping[str, ParameterEntry]
    """Every parameter by its name in the network; a tied one has the first of its names."""
    norms: Mapping[str, NormEntry]
    """The batch normalisations by the names of their modules."""
    sums: Mapping[str, tuple[str, ...]]
    """The modules whose product sums over units of these groups, with no batch normalisation directly behind it."""
    unscaled: Mapping[str, tuple[str, ...]]
    """The parameters that may be multiplied where nobody sees it, with the groups on their axes."""
    stochastic: bool
    """Training draws random numbers."""
    operators: tuple[Operator, ...]
    """The products of a forward pass."""
    normalised: tuple[str, ...]
    """The axes of what its normalisations make for an example, of any kind."""
    residual: Mapping[str, str]
    """The groups that a residual addition joins layers of, with two such layers: not dealt out by default."""
    inexact: tuple[str, ...]
    """The modules whose products are told as large as in the full network, for they do not grow by whole widths."""
    preferred: tuple[str, ...] = ()
    """The groups that the class itself says to deal out by default (its attribute ``DEALT``)."""
    blocks: Blocks = field(default_factory=dict)
    """Of the groups whose units are residual blocks, these."""
    leaves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The modules that compute alike wherever the rows of their parameters lie, and the names of these."""
    exits: int = 1
    """How many outputs a forward pass returns, the full network's included."""
    head: str = ""
    """The leaf whose outputs are the network's, if there is one: they need not be gathered."""

    @property
    def dealt(self) -> tuple[str, ...]:
        """The groups that are dealt out by default; `dealt_by_default`."""
        patterns = (Pattern.parse(entry.axes) for entry in self.parameters.values())
        return dealt_by_default(patterns, self.groups, self.residual, self.preferred, self.blocks)

    def tree(self) -> dict[str, Any]:
        """The table as JSON has it."""
        facts = {item.name: getattr(self, item.name) for item in fields(self)}
        return json.loads(json.dumps(facts, default=plain, skipkeys=True))

    @staticmethod
    def from_tree(tree: Mapping[str, Any]) -> Table:
        """The inverse of `tree`; whatever exception its values lead to where they are none."""
        return Table(
            source=str(tree["source"]),
            settings=dict(tree["settings"]),
            groups={name: int(length) for name, length in tree["groups"].items()},
            undealt=dict(tree["undealt"]),
            parameters={name: ParameterEntry(**entry) for name, entry in tree["parameters"].items()},
            norms={name: NormEntry(**entry) for name, entry in tree["norms"].items()},
            sums={name: tuple(groups) for name, groups in tree["sums"].items()},
            unscaled={name: tuple(groups) for name, groups in tree["unscaled"].items()},
            stochastic=bool(tree["stochastic"]),
            operators=tuple(
                Operator(**{**entry, "shape": Pattern.parse(entry["shape"])}) for entry in tree["operators"]
            ),
            normalised=tuple(tree["normalised"]),
            residual=dict(tree["residual"]),
            inexact=tuple(tree["inexact"]),
            preferred=tuple(tree.get("preferred", ())),
            blocks={
                name: tuple(ResidualBlock(block["path"], tuple(block["ends"])) for block in found)
                for name, found in tree.get("blocks", {}).items()
            },
            # A checkpoint of before has none: then every rank puts the whole network together.
            leaves={path: tuple(names) for path, names in tree.get("leaves", {}).items()},
            exits=int(tree.get("exits", 1)),
            head=str(tree.get("head", "")),
        )

    def difference(self, other: Table) -> str:
        """The first fact that another table has otherwise; empty where both describe the same network.

        The source may differ, and the initial values, and what is said of widths that are not dealt out, and of
        products.
        """
        mine, theirs = self.tree(), other.tree()
        for tree in (mine, theirs):
            tree["parameters"] = {name: entry["axes"] for name, entry in tree["parameters"].items()}
        for tree, table in ((mine, self), (theirs, other)):
            tree["dealt"] = list(table.dealt)
        compared = ("settings", "groups", "dealt", "parameters", "norms", "sums", "unscaled", "stochastic", "blocks")
        for fact in (*compared, "exits"):
            if mine[fact] == theirs[fact]:
                continue
            if not isinstance(mine[fact], dict):
                return f"{fact}: {_shown(mine[fact])} or {_shown(theirs[fact])}"
            names = [name for name in {**mine[fact], **theirs[fact]} if mine[fact].get(name) != theirs[fact].get(name)]
            return f"{fact}, {names[0]}: {_shown(mine[fact].get(names[0]))} or {_shown(theirs[fact].get(names[0]))}"
        return ""


def dealt_by_default(
    patterns: Iterable[Pattern],
    groups: Collection[str],
    residual: Mapping[str, str],
    preferred: Collection[str] = (),
    blocks: Collection[str] = (),
) -> tuple[str, ...]:
    """The groups to deal out where a run does not say: those that the class prefers, of those that there are.

    Else those of no residual stream, or all if there is no other; and of several that lie on one axis (heads and their
    width) the outermost alone: with both, a rank would have a P-th of a P-th of it, and most of it no trainer. Whole
    ``blocks`` only where there is nothing else.
    """
    if chosen := tuple(group for group in groups if group in preferred):
        return chosen
    widths = tuple(group for group in groups if group not in blocks) or tuple(groups)
    open_to = tuple(group for group in widths if group not in residual) or widths
    inside = set()
    for axis in (axis for pattern in patterns for axis in pattern.axes):
        inside |= {*[factor.name for factor in axis.factors if factor.name in open_to][1:]}
    return tuple(group for group in open_to if group not in inside) or open_to


def plain(value: Any) -> Any:
    """An entry as a dict, and any other object by a name that is the same in every process."""
    if isinstance(value, ParameterEntry | NormEntry | ResidualBlock):
        return asdict(value)
    if isinstance(value, Operator):
        return {**asdict(value), "shape": str(value.shape)}
    return getattr(value, "__qualname__", type(value).__qualname__)


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value)
