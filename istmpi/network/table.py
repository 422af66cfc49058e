"""A network's table: all facts that engine, cost model, evaluation and checkpoints use, as plain
values.

A table is written by hand (`istmpi.models.tables`) or found (`istmpi.inspection.examine`).
Checkpoints store it as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from itertools import chain
from typing import Any

from istmpi.engine.axes import Axis, Factor, Pattern, Segment
from istmpi.engine.lengths import Number, product_of, total
from istmpi.outputs import KEY_IN_FILES, name_outputs
from istmpi.settings import convert

AGGREGATION = "Aggregation"
"""The kind of an operator that sums over a node's neighbours in a graph."""
EPSILON = 1e-5
"""The number that a batch normalisation adds to variances, by default."""
_KEYS = {"output_count": KEY_IN_FILES}
"""The keys in files of fields that have another name."""


@dataclass(frozen=True)
class Operator:
    """A product of a forward pass: for each example, a matrix ``rows x inner`` times a matrix
    ``inner x columns``.

    A look-up has the inner length 0.
    """

    shape: Pattern
    """Rows, inner length and columns, such as ``256 (9 channels1) channels2``."""
    module: str
    """The name of the module that computes the product; empty for the network's own ``forward``."""
    kind: str
    parameter: str = ""
    """The name of the weight, if a factor is a weight; otherwise empty."""
    axis: int | None = None
    """The axis of the weight whose positions are the columns."""
    gradients: int = 2
    """The number of products of the same size in the backward pass: one for each factor that needs
    a gradient, and one more with ``block``."""
    of_input: bool = False
    """True if a factor is the network's input, which needs no gradient."""
    calls: int = 1
    examples: int = 1
    """The power of the number of examples with which the product's size grows: 2 if it multiplies
    all examples with each other."""
    lookups: float = 0
    """The mean number of rows that an output adds up: embeddings of a bag, or neighbours of a
    node."""
    block: int = 0
    """The number of columns in memory at a time; 0 means all."""

    def multiply_adds(self, lengths: Mapping[str, Number], examples: Number = 1) -> Number:
        """Return the multiply-adds of a forward pass; the backward pass has ``gradients`` times as
        many."""
        return self._times_examples(product_of(self.shape.shape(lengths)), examples)

    def flops(self, lengths: Mapping[str, Number], examples: Number = 1) -> tuple[Number, Number]:
        """Return the floating-point operations of a forward and of a backward pass."""
        # A multiply-add is two operations.
        forward = 2 * self.multiply_adds(lengths, examples)
        return forward, self.gradients * forward

    def added_up(self, lengths: Mapping[str, Number], examples: Number = 1) -> Number | float:
        """Return the numbers that look-ups add up in a forward pass."""
        return self.outputs(lengths, examples) * self.lookups

    def kept(self, lengths: Mapping[str, Number], examples: Number = 1) -> Number:
        """Return the number of `outputs` that are in memory at a time."""
        _, _, columns = self.shape.shape(lengths)
        in_memory = min(self.block or columns, columns)
        # A fraction, for counts are exact; a rank may have no columns at all.
        return self.outputs(lengths, examples) * Fraction(in_memory, columns or 1)

    def outputs(self, lengths: Mapping[str, Number], examples: Number = 1) -> Number:
        """Return the numbers that the product has as its result, in all its calls."""
        rows, _, columns = self.shape.shape(lengths)
        return self._times_examples(rows * columns, examples)

    def _times_examples(self, number: Number, examples: Number) -> Number:
        return number * self.calls * product_of([examples] * self.examples)


@dataclass(frozen=True)
class ParameterEntry:
    """A parameter's axes, and its initial values: uniform in ``centre ± bound``."""

    axes: str
    bound: float
    centre: float


@dataclass(frozen=True)
class BatchNormalisation:
    units: int
    epsilon: float = EPSILON


@dataclass(frozen=True)
class ResidualBlock:
    """A module that adds the outputs of its ``ends``, layers inside it, to its input."""

    path: str
    ends: tuple[str, ...]
    outputs: int = 0
    """The length of the tuple that the module returns, whose first element counts; 0 if it returns
    a tensor."""

    def has(self, name: str) -> bool:
        return name == self.path or name.startswith(f"{self.path}.")


@dataclass(frozen=True)
class Use:
    """A call that sums over units and is not the call of a layer with its own weight."""

    module: str
    function: str
    parameter: str
    """The parameters among the call's operands, joined by commas; empty if there are none."""
    detail: str
    """The equation of an einsum, or the axes that a sum or norm adds up; empty for other calls."""
    inner: str
    """The axis that is summed over, such as ``(4 hidden)``."""
    groups: tuple[str, ...]
    """The groups whose units are added up, repeated if they are several factors of the axis. Means
    are left out.

    An entry such as ``hidden^0.5`` has another power of the group's share than 1 (`split_power`).
    """

    @property
    def place(self) -> tuple[str, str, str, str]:
        return self.module, self.function, self.parameter, self.detail


@dataclass(frozen=True)
class Joined:
    """The axis over which a product with a weight sums, if it is a sum of segments
    (`istmpi.network.joined`)."""

    segments: str
    """The axis, such as ``hidden + 6``."""
    axis: int
    """The number of the weight's axis."""
    axes: int
    """The number of axes that the weight has."""


def split_power(summed: str) -> tuple[str, float]:
    """Split an entry of a sum's groups, ``hidden`` or ``hidden^0.5``, into the group and the power
    of its share."""
    group, _, power = summed.partition("^")
    return group, float(power or 1)


def with_power(groups: Sequence[str], group: str, power: float) -> tuple[str, ...]:
    """Return a sum's groups with this power of one group's share, in place of its other entries."""
    others = tuple(summed for summed in groups if split_power(summed)[0] != group)
    # To the power 0, the share does not change the sum.
    if power == 0:
        return others
    return (*others, group if power == 1 else f"{group}^{power:g}")


Blocks = Mapping[str, Sequence[ResidualBlock]]
"""The residual blocks of each group that counts blocks; a block is a unit."""


@dataclass(frozen=True, kw_only=True)
class Table:
    source: str = ""
    """A hash of the class's files; empty for a table written by hand."""
    settings: Mapping[str, Any]
    """The arguments of the constructor. Objects without a JSON form are replaced by a name."""
    groups: Mapping[str, int]
    """The widths that can be dealt out, with their full lengths."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """The lengths of other axes that have a name."""
    undealt: Mapping[str, str] = field(default_factory=dict)
    """The widths that cannot be dealt out, each with the reason."""
    parameters: Mapping[str, ParameterEntry]
    """Every parameter by its name. A tied parameter has the first of its names."""
    computed: tuple[str, ...] = ()
    """The parameters whose initial values are computed: neither constant nor random."""
    norms: Mapping[str, BatchNormalisation] = field(default_factory=dict)
    """The batch normalisations by the names of their modules, or of their stages if there are
    ``stages``."""
    sums: Mapping[str, tuple[str, ...]]
    """The groups over whose units each module's product sums, unless a batch normalisation directly
    follows."""
    uses: tuple[Use, ...] | None = ()
    """The sums over units in other calls; None in a file of an earlier version."""
    folded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameters that are only used in sums over units of these groups: factors multiply the
    parameter itself."""
    elsewhere: tuple[str, ...] = ()
    """The layers in ``sums`` whose weight the class also uses outside of such layers, so that no
    factor can multiply the weight itself."""
    joined: Mapping[str, Joined] = field(default_factory=dict)
    """The axes that are sums, by the layers in ``sums`` and the parameters in ``folded`` that sum
    over them."""
    unscaled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The groups that break the law of two halves (`istmpi.inspection.halves`), by the place of
    their sums."""
    fading: Mapping[str, float] = field(default_factory=dict)
    """The groups whose deviation from the law fades as 1/n, with the deviation of a half, of 32
    units at most."""
    stochastic: bool
    operators: tuple[Operator, ...]
    normalised: tuple[str, ...]
    """The number of values that each normalisation returns for an example, as axes."""
    residual: Mapping[str, str] = field(default_factory=dict)
    """The groups on a residual stream, each with two layers whose outputs are added."""
    inexact: tuple[str, ...] = ()
    """Modules whose products have unknown sizes at other widths: they count as in the full
    network."""
    preferred: tuple[str, ...] = ()
    """The groups that the class prefers to deal out (``DEALT``)."""
    blocks: Blocks = field(default_factory=dict)
    leaves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The leaves, with the names of their parameters."""
    output_count: int = 1
    """The number of outputs that a forward pass returns (`istmpi.outputs`)."""
    head: str = ""
    """The leaf whose outputs the network returns unchanged; empty if there is none."""
    stages: tuple[str, ...] = ()
    """The child modules, if the network calls one after another; otherwise empty."""

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs that a forward pass returns, the last one's last."""
        return name_outputs(self.output_count)

    @property
    def dealt(self) -> tuple[str, ...]:
        """The groups to deal out by default, whose sums can be scaled: if any, the groups that the
        class prefers.

        Otherwise the groups on no residual stream or, if there are none, all groups. Of several
        groups on one axis, such as heads and their width, only the outermost counts. Groups of
        blocks count only without other groups.
        """
        unscaled = set(chain.from_iterable(self.unscaled.values()))
        groups = tuple(group for group in self.groups if group not in unscaled)
        preferred = tuple(group for group in groups if group in self.preferred)
        if preferred:
            return preferred
        # Blocks are dealt out only if nothing else can be: a rank then lacks whole layers.
        widths = tuple(group for group in groups if group not in self.blocks) or groups
        beside = tuple(group for group in widths if group not in self.residual) or widths
        inner = self._inner_groups(beside)
        return tuple(group for group in beside if group not in inner) or beside

    def _inner_groups(self, groups: tuple[str, ...]) -> set[str]:
        """Return those of some groups that are, on an axis, inside another of them."""
        inner: set[str] = set()
        for entry in self.parameters.values():
            for axis in Pattern.parse(entry.axes).axes:
                for segment in axis.segments:
                    # The outermost factor comes first.
                    names = [factor.name for factor in segment.factors if factor.name in groups]
                    inner.update(name for name in names[1:] if name)
        return inner

    def explain_undealt(self) -> dict[str, str]:
        """Return the reason for each width that cannot be dealt out, or whose sums have no
        factor."""
        reasons = dict(self.undealt)
        for place, groups in self.unscaled.items():
            reason = (
                f"no factor makes its sums right, in {place} (model.scale = 'none' accepts this)"
            )
            reasons |= dict.fromkeys(groups, reason)
        return reasons

    def describe_undealt(self) -> str:
        """Return why no width can be dealt out, and a cure, in words."""
        cure = "Use another method, such as --method local-sgd"
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.explain_undealt().items())
        if not reasons:
            reasons = "its constructor has no integers"
            cure += (
                "; or write a wrapper with its widths as arguments: class Mine(Net): def "
                "__init__(self, features, outputs, hidden=64): super().__init__(features, outputs, "
                "Config(hidden=hidden))"
            )
        return f"({reasons}). {cure}."

    def tree(self) -> dict[str, Any]:
        facts = {_KEYS.get(item.name, item.name): getattr(self, item.name) for item in fields(self)}
        # By way of JSON, so that it equals the tree read from a file: tuples are lists.
        return json.loads(json.dumps(facts, default=plain, skipkeys=True))

    @staticmethod
    def from_tree(tree: Mapping[str, Any]) -> Table:
        """Read a table that `tree` wrote, also in an earlier version. A wrong tree may raise any
        exception."""
        operators = [
            {**entry, "shape": Pattern.parse(entry["shape"])} for entry in tree["operators"]
        ]
        # A file of an earlier version has no entry for uses.
        facts = {"uses": None, **tree, "operators": operators}
        for name, key in _KEYS.items():
            if key in facts:
                facts[name] = facts.pop(key)
        return convert(facts, Table)

    def difference(self, other: Table) -> str:
        """Return the first difference from another table, or "". Source, initial values, leaves
        etc. do not count."""
        compared = (
            "settings",
            "groups",
            "dealt",
            "parameters",
            "norms",
            "sums",
            "uses",
            "stochastic",
            "blocks",
            "output_names",
        )
        tree = self._comparable()
        other_tree = other._comparable()
        for fact in compared:
            value = tree[fact]
            other_value = other_tree[fact]
            # A file of an earlier version says nothing about uses.
            unknown = fact == "uses" and None in (self.uses, other.uses)
            if value == other_value or unknown:
                continue
            if not isinstance(value, dict):
                return f"{fact}: {_show(value)} or {_show(other_value)}"
            for name in {**value, **other_value}:
                entry = value.get(name)
                other_entry = other_value.get(name)
                if entry != other_entry:
                    return f"{fact}, {name}: {_show(entry)} or {_show(other_entry)}"
        return ""

    def _comparable(self) -> dict[str, Any]:
        tree = self.tree()
        # Other initial values make no other network.
        axes = {name: entry["axes"] for name, entry in tree["parameters"].items()}
        computed = {"dealt": list(self.dealt), "output_names": list(self.output_names)}
        return tree | {"parameters": axes} | computed


def flops(operators: Iterable[Operator], lengths: Mapping[str, Number]) -> Number:
    return total(total(operator.flops(lengths)) for operator in operators)


def find_unit(blocks: Blocks, name: str) -> Factor | None:
    """Return the unit, such as ``blocks[3]``, that a module or parameter is part of; None if there
    is none."""
    for group, several in blocks.items():
        for number, block in enumerate(several):
            if block.has(name):
                return Factor(group, unit=number)
    return None


def inside(pattern: Pattern, unit: Factor | None) -> Pattern:
    """Put ``unit``, if any, outermost in a pattern's first axis: a rank without the unit has no
    elements."""
    if unit is None:
        return pattern
    first, *others = pattern.axes
    segments = tuple(Segment((unit, *segment.factors)) for segment in first.segments)
    return Pattern((Axis(segments), *others))


def plain(value: Any) -> Any:
    """Return an entry of a table as a dict, and any other object as its name."""
    if isinstance(value, ParameterEntry | BatchNormalisation | ResidualBlock | Use | Joined):
        return asdict(value)
    if isinstance(value, Operator):
        return {**asdict(value), "shape": str(value.shape)}
    return getattr(value, "__qualname__", type(value).__qualname__)


def _show(value: Any) -> str:
    return "none" if value is None else json.dumps(value)
