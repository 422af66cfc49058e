"""A network as the engine sees it: the facts of its table and, if its code is given, its module at
any widths.

A plan does not import torch, so that a login node can make it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from istmpi.engine.axes import ITEMSIZE, Parameter, Pattern
from istmpi.errors import ConfigError
from istmpi.network.joined import Factor, along, as_tensor, changes, segment_factors, vector
from istmpi.network.table import ResidualBlock, Table, Use, split_power

if TYPE_CHECKING:
    import torch
    from torch import nn

    from istmpi.network.norms import Calibrated
    from istmpi.network.user import UserNetwork

Lengths = Mapping[str, int]
Scale = Mapping[str, float]


class Architecture:
    """A network described by its table. It can be built only if its code is given.

    ``lengths`` has the full length of every named axis. The other attributes are described at
    `Table`.
    """

    nodes: tuple[float, int] = (1, 0)
    """The numbers of nodes in a batch's example and in the whole graph. Other attributes count a
    node as an example."""

    def __init__(self, name: str, table: Table, dtype: str, code: UserNetwork | None = None):
        self.name = name
        self.table = table
        self._dtype = dtype
        self._code = code
        self.itemsize = ITEMSIZE[dtype]
        self.lengths = {**table.fixed, **table.groups}
        if table.stages:
            # In the order of the forward pass, which the outline shows.
            self.lengths = {name: self.lengths[name] for name in ("features", *table.stages)}
        self.groups = tuple(table.groups)
        self.uses = table.uses or ()  # None in an earlier version's file
        self.parameters = {
            key: Parameter(Pattern.parse(entry.axes), dtype, entry.bound, entry.centre)
            for key, entry in table.parameters.items()
        }
        self.batch_norms = dict(table.norms)
        self.sums = dict(table.sums)
        self.leaves = dict(table.leaves)
        self.normalised = tuple(map(Pattern.parse, table.normalised))
        self.operators = table.operators
        self.inexact = table.inexact
        self.stochastic = table.stochastic
        self.blocks = table.blocks
        self.head = table.head
        self.stages = table.stages
        self.default_groups = table.dealt

    @property
    def dtype(self) -> torch.dtype:
        import torch

        return getattr(torch, self._dtype)

    @property
    def code(self) -> UserNetwork:
        """The network's class with all its arguments. Raises ConfigError if no code was given."""
        if self._code is None:
            raise ConfigError(f"{self.name} is your network: give its code, --model FILE.py:Class.")
        return self._code

    def with_code(self, code: UserNetwork, tried: bool = True) -> Architecture:
        """Return this network with its code, after `require_usable` (with ``tried``), which raises
        ConfigError."""
        ready = Architecture(self.name, self.table, self._dtype, code)
        ready.require_usable(self.lengths, tried)
        return ready

    @property
    def frozen(self) -> Mapping[str, torch.Tensor]:
        """The values of the frozen parameters by name; empty before this process's first build."""
        return self._code.frozen if self._code else {}

    def give(self, name: str, values: torch.Tensor) -> None:
        """Replace the values that the constructor gave to a frozen parameter."""
        self.frozen[name].copy_(values)
        self.code.given.add(name)

    @property
    def example_shape(self) -> tuple[int, ...]:
        return self.code.inputs

    @cached_property
    def numbers(self) -> int:
        """The values that an output has for an example: `UserNetwork.count_values_an_example`."""
        code = self.code
        if code.example is None:
            return code.numbers
        from istmpi.network.trials import seeded

        with seeded():
            return code.count_values_an_example(self._build_trial().eval(), self.dtype)

    @property
    def outline(self) -> str:
        if self.stages:
            return "-".join(str(self.lengths[name]) for name in ("features", *self.stages))
        widths = ", ".join(f"{name} {length}" for name, length in self.lengths.items())
        return f"with {widths or 'no width that can be dealt out'}"

    @property
    def summed(self) -> set[str]:
        """The groups over whose units the network sums."""
        groups = set(self.blocks)
        sums = [*self.sums.values(), *self.table.folded.values()]
        sums += [use.groups for use in self.uses]
        for summed in chain.from_iterable(sums):
            group, _ = split_power(summed)
            groups.add(group)
        return groups

    def factor(self, groups: Iterable[str], lengths: Lengths, scale: Scale) -> float:
        """Return the factor of a sum over units of ``groups`` at the given lengths. It does not
        apply to a bias.

        ``scale``: the factor of each group's contributions in the full network, 1 by default;
        usually a subnet's share of units, as with dropout. A narrower network gets a larger factor,
        so that its sums are as large. Sums directly before a batch normalisation need no factor.
        """
        product = 1.0
        for summed in groups:
            group, power = split_power(summed)
            product *= (scale.get(group, 1.0) * (self.lengths[group] / lengths[group])) ** power
        return product

    def weight_factor(self, name: str, scale: Scale) -> Factor:
        """Return a parameter's factor in the full network, for sums over units and blocks with its
        layer as an end.

        If the axis that is summed over is a sum of segments, the factor is an array that multiplies
        along this axis.
        """
        module, _, kind = name.rpartition(".")
        sums = self.sums.get(module, ()) if kind == "weight" else ()
        folded = self.table.folded.get(name, ())
        ends = self._ends.get(module, ())
        # Sums are listed by their layer, folded ones by their parameter.
        joined = self.table.joined.get(module if sums else name)
        if joined is None or not (sums or folded):
            return self.factor((*sums, *folded, *ends), self.lengths, scale)
        factor = self._vector(joined.segments, sums or folded, scale)
        factor = factor * self.factor(ends, self.lengths, scale)
        return along(factor, joined.axis, joined.axes)

    def _vector(self, segments: str, groups: Sequence[str], scale: Scale) -> Factor:
        """Return the factors along an axis that is a sum of segments."""
        axis = Pattern.parse(segments).axes[0]

        def factor(summed: tuple[str, ...]) -> float:
            return self.factor(summed, self.lengths, scale)

        return vector(segment_factors(axis, groups, self.lengths, factor))

    @cached_property
    def _ends(self) -> dict[str, tuple[str, ...]]:
        """The layers at the ends of blocks, with the groups that count these blocks."""
        ends: dict[str, tuple[str, ...]] = {}
        for group, blocks in self.blocks.items():
            for end in dict.fromkeys(chain.from_iterable(block.ends for block in blocks)):
                ends[end] = (*ends.get(end, ()), group)
        return ends

    def build(self, lengths: Lengths, scale: Scale | None = None, device: str = "cpu") -> nn.Module:
        """Build the network at the given lengths. Raises ConfigError if this fails or a shape
        differs from its pattern.

        If ``scale`` is given, sums over units and the outputs of blocks' ends are multiplied by
        their `factor`. A block whose unit, such as ``blocks[3]``, has the length 0 becomes the
        identity.
        """
        from istmpi.network.absent import Absent, put
        from istmpi.network.norms import build_module

        widths = {name: lengths[name] for name in self.groups if name not in self.blocks}
        network = build_module(self.code, widths, device=device)
        for block in self._absent(lengths):
            module = network.get_submodule(block.path)
            for parameter in module.parameters():
                # Patterns give this rank no elements of a block that it lacks.
                parameter.data = parameter.data.new_empty(0)
            put(network, block.path, Absent(module, block.outputs))
        network.to(self.dtype)
        for parameter in network.parameters():
            # Rows are sent, stored and checked as contiguous memory.
            parameter.data = parameter.data.contiguous()
        self._require_shapes(network, lengths)
        if scale is not None:
            self.scale_sums(network, lengths, scale)
        return network

    def _require_shapes(self, network: nn.Module, lengths: Lengths) -> None:
        shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
        expected = {}
        for name, parameter in self._without_absent(self.parameters, lengths).items():
            expected[name] = parameter.pattern.shape(lengths)
        # Of both: a parameter may be missing, or be new.
        for name in {**expected, **shapes}:
            if shapes.get(name) != expected.get(name):
                shown = ", ".join(f"{group} = {lengths[group]}" for group in self.groups)
                raise ConfigError(
                    f"{self.name}: with {shown} its parameter {name} has the shape "
                    f"{shapes.get(name)}, but its inferred axes give {expected.get(name)}."
                )

    def without_values(self, scale: Scale | None, lengths: Lengths | None = None) -> nn.Module:
        """Build the network as `build` does. If it has leaves, its trainable parameters are on the
        meta device."""
        if not self.leaves:
            return self.build(lengths or self.lengths, scale)
        from istmpi.network.leaves import without_values

        # Buffers need the CPU. A network with a written table has none, and may exceed the memory.
        device = "cpu" if self.code.is_inspected else "meta"
        with without_values():
            return self.build(lengths or self.lengths, scale, device)

    def plain(self, seed: int = 0) -> nn.Module:
        """Build the full network as its class does, with PyTorch's own batch normalisations."""
        from istmpi.network.trials import seeded

        with seeded(seed):
            return self.code.build().to(self.dtype)

    def batch_norm_layers(self, network: nn.Module) -> dict[str, Calibrated]:
        from istmpi.network.norms import Calibrated

        layers = {}
        for name, layer in network.named_modules():
            if isinstance(layer, Calibrated):
                stage, _, _ = name.partition(".")
                layers[stage if self.stages else name] = layer
        return layers

    def _absent(self, lengths: Lengths) -> list[ResidualBlock]:
        """Return the blocks that a rank with these lengths lacks."""
        absent = []
        for group, blocks in self.blocks.items():
            for number, block in enumerate(blocks):
                if not lengths.get(f"{group}[{number}]", 1):  # all others may be unlisted
                    absent.append(block)
        return absent

    def _without_absent(self, entries: Mapping[str, Any], lengths: Lengths) -> dict[str, Any]:
        left = dict(entries)
        for block in self._absent(lengths):
            left = {name: entry for name, entry in left.items() if not block.has(name)}
        return left

    def multiply(
        self, network: nn.Module, lengths: Lengths, factor: Callable[[tuple[str, ...]], Any]
    ) -> None:
        """Make a network multiply its sums over units, and the outputs of blocks' ends, by
        ``factor(groups)``.

        A float is used in all passes. For a tensor, each pass calls ``factor`` again.
        """
        from istmpi.network.factors import Places, multiply

        uses = self._uses_by_key(lengths)
        axes = {key: joined.segments for key, joined in self.table.joined.items()}
        axes |= {key: use.inner for key, use in uses.items()}
        places = Places(
            layers=self.sums,
            ends=self._ends,
            calls={key: use.groups for key, use in uses.items()},
            weights=self._without_absent(self.table.folded, lengths),
            joined=self.table.joined,
            axes={key: Pattern.parse(text).axes[0] for key, text in axes.items()},
        )
        multiply(network, places, lengths, factor)

    def scale_sums(self, network: nn.Module, lengths: Lengths, scale: Scale) -> None:
        """Make a network multiply its sums by their `factor` at the given lengths."""
        self.multiply(network, lengths, cache(lambda groups: self.factor(groups, lengths, scale)))

    def scaled_calls(self, scale: Scale) -> dict[tuple[Any, ...], float]:
        """Return the full network's factors, other than 1, of the calls in ``uses``, for
        `multiply_sums`."""
        factors: dict[tuple[Any, ...], Any] = {}
        for key, use in self._uses_by_key(self.lengths).items():
            factor = self._vector(use.inner, use.groups, scale)
            if changes(factor):
                factors[key] = as_tensor(factor)
        return factors

    def _uses_by_key(self, lengths: Lengths) -> dict[tuple[Any, ...], Use]:
        uses = {}
        for use in self.uses:
            inner = Pattern.parse(use.inner).shape(lengths)
            uses[use.place + inner] = use
        return uses

    def require_dealable(self, groups: tuple[str, ...], scaled: bool = True) -> None:
        """Raise ConfigError unless ``groups``, at least one, can be dealt out and (if ``scaled``)
        their sums scaled."""
        if not groups:
            why = self.table.describe_undealt()
            raise ConfigError(f"{self.name}: it has no width that can be dealt out {why}")
        cure = "Use another method, such as --method local-sgd"
        # Only method.partition can leave out a default group.
        if not {*self.default_groups}.issubset(groups):
            cure = "Leave it out of method.partition"
        for name in groups:
            if name in self.table.undealt:
                raise ConfigError(
                    f"{self.name}: {name} cannot be dealt out: {self.table.undealt[name]}. {cure}."
                )
        if not scaled:
            return
        for place, names in self.table.unscaled.items():
            for group in names:
                if group in groups:
                    raise ConfigError(
                        f"{self.name}: no factor makes the sums over units of {group} right, in "
                        f"{place}. {cure}, or accept this with --set model.scale=none."
                    )

    def require_usable(self, lengths: Lengths, tried: bool = True) -> None:
        """Raise ConfigError if the network cannot be built at these lengths. A network with a
        written table passes.

        The error is also raised if batch normalisations differ from the table or, with ``tried``,
        if a pass fails.
        """
        # A network with a written table may be too large to be tried.
        if not self.code.is_inspected:
            return
        is_full = lengths == self.lengths
        try:
            network = self._build_trial() if is_full else self.build(lengths)
            network.eval()
            self._require_batch_norms(network, lengths)
            if tried:
                self.code.forward(network, *self.code.examples(2, self.dtype))
        except ConfigError as error:
            if is_full:
                raise
            raise ConfigError(
                f"{error} Subnets are this narrow here. Use fewer ranks, or leave such widths out "
                "of method.partition."
            ) from error

    def _require_batch_norms(self, network: nn.Module, lengths: Lengths) -> None:
        expected = self._without_absent(self.batch_norms, lengths)
        epsilons = {name: norm.epsilon for name, norm in expected.items()}
        layers = self.batch_norm_layers(network)
        if {name: layer.eps for name, layer in layers.items()} != epsilons:
            raise ConfigError(
                f"{self.code.name}: its batch normalisations have changed since its inspection."
            )

    def require_finite(self, *inputs: torch.Tensor) -> torch.Tensor | None:
        """Return the outputs with initial weights; None with a written table.

        Raises ConfigError if the pass fails or an output is not finite.
        """
        if not self.code.is_inspected:
            return None
        from istmpi.network.trials import seeded

        with seeded():
            outputs = self.code.forward(self._build_trial(), *inputs)
        infinite = outputs[~outputs.isfinite()]
        if len(infinite):
            raise ConfigError(
                f"{self.name}: its forward gives {infinite[0].item()} for the first training "
                "examples with initial weights. Look for a logarithm, a root or a quotient that "
                "these examples do not allow."
            )
        return outputs

    def _build_trial(self) -> nn.Module:
        """Build the full network with initial values."""
        from istmpi.network.leaves import draw_values

        network = self.without_values({})
        draw_values(network, self.leaves, self.parameters, self.lengths, self.dtype)
        return network
