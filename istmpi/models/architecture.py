"""A network as the engine asks for it: the facts of its table, and with its code the module at any widths.

Torch is needed only where a module is built, so that a login node can plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

from istmpi.engine.axes import Parameter, Pattern
from istmpi.errors import ConfigError
from istmpi.models.operators import AGGREGATION
from istmpi.models.table import ResidualBlock, Table, Use
from istmpi.models.tables import has_table
from istmpi.names import class_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from istmpi.models.norms import Calibrated
    from istmpi.models.user import UserNetwork

Lengths, Scale = Mapping[str, int], Mapping[str, float]


class Architecture:
    """A network described by its table; it can be built where its code is given, too.

    ``lengths``: the full length of every axis that has a name. Its other attributes are those of `Table`.
    """

    nodes: tuple[float, int] = (1, 0)
    """The nodes of a graph that a batch's example has, and all of them; other figures count nodes as examples."""

    def __init__(self, name: str, table: Table, dtype: str, code: UserNetwork | None = None):
        self.name, self.table, self._dtype, self._code = name, table, dtype, code
        lengths = {**table.fixed, **table.groups}
        self.lengths = {name: lengths[name] for name in (("features", *table.stages) if table.stages else lengths)}
        self.groups = tuple(table.groups)
        self.parameters = {
            key: Parameter(Pattern.parse(entry.axes), dtype, entry.bound, entry.centre)
            for key, entry in table.parameters.items()
        }
        self.batch_norms, self.sums, self.leaves = dict(table.norms), dict(table.sums), dict(table.leaves)
        self.uses = table.uses or ()
        self.normalised = tuple(map(Pattern.parse, table.normalised))
        self.operators, self.inexact, self.stochastic = table.operators, table.inexact, table.stochastic
        self.blocks, self.exits, self.head, self.stages = table.blocks, table.exits, table.head, table.stages
        self.default_groups = table.dealt

    @property
    def unitwise(self) -> bool:
        """The network is a graph's, and `istmpi.evaluation.spread_units` knows all of it."""
        return any(operator.kind == AGGREGATION for operator in self.operators)

    @property
    def code(self) -> UserNetwork:
        """Its class and all arguments; ConfigError where they were not given."""
        if self._code is None:
            raise ConfigError(f"{self.name} is your network: give its code, --model FILE.py:Class.")
        return self._code

    def with_code(self, code: UserNetwork, tried: bool = True) -> Architecture:
        """This network, ready to be built, and run where it is ``tried``; ConfigError if the code makes another."""
        ready = Architecture(self.name, self.table, self._dtype, code)
        ready.require_usable(self.lengths, tried)
        return ready

    @property
    def frozen(self) -> Mapping[str, torch.Tensor]:
        """The values of frozen parameters, once the network was built here."""
        return self._code.frozen if self._code else {}

    def give(self, name: str, values: torch.Tensor) -> None:
        """Give a frozen parameter other values than the constructor's."""
        self.frozen[name].copy_(values)
        self.code.given.add(name)

    @property
    def frozen_digest(self) -> float:
        """A number that tells frozen parameters apart, on all machines the same but for rounding; 0 without any."""
        total = 0.0
        for number, name in enumerate(sorted(self.frozen), 1):
            flat = self.frozen[name].reshape(-1)
            total += number * float(flat[:: len(flat) // 4096 + 1].double().abs().nan_to_num(posinf=1.0).sum())
        return total

    @property
    def has_its_source(self) -> bool:
        source = self.table.source
        return not source or (class_of(self.code.name), self.code.source.hash) == (class_of(self.name), source)

    @property
    def example_shape(self) -> tuple[int, ...]:
        return self.code.inputs

    @property
    def outline(self) -> str:
        if self.stages:
            return "-".join(str(self.lengths[name]) for name in ("features", *self.stages))
        widths = ", ".join(f"{name} {length}" for name, length in self.lengths.items())
        return f"with {widths}" if widths else "with no width that can be dealt out"

    @property
    def summed(self) -> set[str]:
        uses = (use.groups for use in self.uses)
        return {*self.blocks, *chain.from_iterable((*self.sums.values(), *self.table.folded.values(), *uses))}

    def factor(self, module: str, lengths: Lengths, scale: Scale) -> float:
        """The factor of a module's product (not of its bias) at the given lengths.

        ``scale``: the factor of each group's contributions in the full network, 1 by default: the share of the units
        that a subnet has while it trains, as with dropout. With fewer units it is larger in proportion, so that sums
        are as large in the full network as in any subnet. Behind a batch normalisation nothing is multiplied.
        """
        return self._contributions(self.sums.get(module, ()), lengths, scale)

    def contribution(self, group: str, lengths: Lengths, scale: Scale) -> float:
        """The factor of the contribution of each unit of a group to a sum."""
        return scale.get(group, 1.0) * (self.lengths[group] / lengths[group])

    def weight_factor(self, name: str, lengths: Lengths, scale: Scale) -> float:
        """The factor of a parameter that stands for those of all products with it, and of its block's end."""
        module, _, kind = name.rpartition(".")
        factor = self.factor(module if kind == "weight" else "", lengths, scale)
        folded = prod(
            (self.contribution(group, lengths, scale) for group in self.table.folded.get(name, ())), start=1.0
        )
        return factor * folded * self.end_factor(module, lengths, scale)

    def end_factor(self, module: str, lengths: Lengths, scale: Scale) -> float:
        """The factor of a module's outputs: 1 unless it is the end of a block."""
        groups = (group for group, blocks in self.blocks.items() if any(module in block.ends for block in blocks))
        return self._contributions(groups, lengths, scale)

    def build(self, lengths: Lengths, scale: Scale | None = None, device: str = "cpu") -> nn.Module:
        """The network at the given lengths: every parameter has the shape that its pattern gives.

        Its products are multiplied by their `factor`, and what blocks add by their `contribution`, where ``scale`` is
        given. Where ``blocks[3]`` has the length 0, that block is the identity.
        """
        import torch

        from istmpi.models.residual import Absent, put

        widths = {name: lengths[name] for name in self.groups if name not in self.blocks}
        network = built(self.code, widths, device=device)
        for block in self._absent(lengths):
            module = network.get_submodule(block.path)
            for parameter in module.parameters():
                parameter.data = parameter.data.new_empty(0)
            put(network, block.path, Absent(module, block.outputs))
        network.to(getattr(torch, self._dtype))
        for parameter in network.parameters():
            parameter.data = parameter.data.contiguous()
        shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
        there = self._there(self.parameters, lengths)
        expected = {name: parameter.pattern.shape(lengths) for name, parameter in there.items()}
        if shapes != expected:
            name = next(name for name in {**expected, **shapes} if shapes.get(name) != expected.get(name))
            shown = ", ".join(f"{group} = {lengths[group]}" for group in self.groups)
            raise ConfigError(
                f"{self.name}: with {shown} its parameter {name} has the shape {shapes.get(name)}, but its "
                f"inferred axes give {expected.get(name)}."
            )
        if scale is not None:
            self._scale(network, lengths, scale)
        return network

    def without_values(self, scale: Scale | None, lengths: Lengths | None = None) -> nn.Module:
        """The network as `build` makes it, its parameters on the meta device if it can be."""
        if not self.leaves:
            return self.build(lengths or self.lengths, scale)
        from istmpi.models.leaves import without_values

        with without_values():  # buffers are computed, of which a network with a table written down has none
            return self.build(lengths or self.lengths, scale, "meta" if has_table(self.name) else "cpu")

    def plain(self, seed: int = 0) -> nn.Module:
        """The network as its class makes it, with PyTorch's own batch normalisations."""
        import torch

        from istmpi.models.trials import seeded

        with seeded(seed):
            return self.code.build().to(getattr(torch, self._dtype))

    def constructed(self, seed: int) -> dict[str, torch.Tensor]:
        return {name: parameter.detach() for name, parameter in self.plain(seed).named_parameters()}

    def batch_norm_layers(self, network: nn.Module) -> dict[str, Calibrated]:
        from istmpi.models.norms import Calibrated

        layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, Calibrated)}
        if not self.stages:
            return layers
        return {name.partition(".")[0]: layer for name, layer in layers.items()}

    def _absent(self, lengths: Lengths) -> list[ResidualBlock]:
        units = ((f"{group}[{n}]", block) for group, blocks in self.blocks.items() for n, block in enumerate(blocks))
        return [block for unit, block in units if not lengths.get(unit, 1)]

    def _there(self, entries: Mapping[str, Any], lengths: Lengths) -> dict[str, Any]:
        absent = self._absent(lengths)
        return {name: entry for name, entry in entries.items() if not any(block.has(name) for block in absent)}

    def _scale(self, network: nn.Module, lengths: Lengths, scale: Scale) -> None:
        for name, module in network.named_modules():
            if (factor := self.factor(name, lengths, scale)) != 1:
                module.register_forward_pre_hook(partial(_scaled, factor), with_kwargs=True)
            if (factor := self.end_factor(name, lengths, scale)) != 1:
                module.register_forward_hook(lambda _, __, output, factor=factor: output * factor)
        calls, weights = self.scaled_calls(lengths, scale), self._scaled_weights(lengths, scale)
        if calls or weights:
            scale_sums(network, lambda: (calls, weights))

    def scaled_calls(self, lengths: Lengths, scale: Scale) -> dict[tuple[Any, ...], float]:
        keys = self.keys_of_uses(lengths).items()
        factors = {key: self._contributions(use.groups, lengths, scale) for key, use in keys}
        return {key: factor for key, factor in factors.items() if factor != 1}

    def keys_of_uses(self, lengths: Lengths) -> dict[tuple[Any, ...], Use]:
        return {(*use.place, Pattern.parse(use.inner).shape(lengths)[0]): use for use in self.uses}

    def _scaled_weights(self, lengths: Lengths, scale: Scale) -> dict[str, float]:
        folded = self._there(self.table.folded, lengths)
        factors = {name: self._contributions(groups, lengths, scale) for name, groups in folded.items()}
        return {name: factor for name, factor in factors.items() if factor != 1}

    def _contributions(self, groups: Iterable[str], lengths: Lengths, scale: Scale) -> float:
        return prod((self.contribution(group, lengths, scale) for group in groups), start=1.0)

    def require_dealable(self, groups: tuple[str, ...], scaled: bool = True) -> None:
        """Refuse, with a ConfigError, to deal out these groups, or names, where that cannot be trained."""
        others = [name for name in self.default_groups if name not in groups]
        if not groups:
            problems = self.table.undealt | {
                group: f"its sums in {place} cannot be scaled (model.scale = 'none' skips this)"
                for place, several in self.table.unscaled.items()
                for group in several
            }
            reasons = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
            cure = "Use another method, such as --method local-sgd"
            if not reasons:
                reasons = "its constructor has no integers"
                cure += (
                    "; or write a wrapper with its widths as arguments: class Mine(Net): def __init__(self, features, "
                    "outputs, hidden=64): super().__init__(features, outputs, Config(hidden=hidden))"
                )
            raise ConfigError(f"{self.name}: it has no width that can be dealt out ({reasons}). {cure}.")
        cure = "Leave it out of method.partition" if others else "Use another method, such as --method local-sgd"
        for name in groups:
            if name in self.table.undealt:
                raise ConfigError(f"{self.name}: {name} cannot be dealt out: {self.table.undealt[name]}. {cure}.")
        for place, names in self.table.unscaled.items() if scaled else ():
            if dealt := [group for group in names if group in groups]:
                raise ConfigError(
                    f"{self.name}: sums over units of {dealt[0]} cannot be scaled in {place}, or cannot be "
                    f"separated from others. {cure}, or give --set model.scale=none."
                )

    def require_usable(self, lengths: Lengths, tried: bool = True) -> None:
        """Refuse, with a ConfigError, lengths at which the network cannot be built and, where ``tried``, run."""
        if has_table(self.name):  # it may be too large to be tried
            return
        import torch

        try:
            network = (self._trial() if lengths == self.lengths else self.build(lengths)).eval()
            epsilons = {name: layer.eps for name, layer in self.batch_norm_layers(network).items()}
            there = self._there(self.batch_norms, lengths)
            if epsilons != {name: norm.epsilon for name, norm in there.items()}:
                raise ConfigError(f"{self.code.name}: its batch normalisations have changed since its inspection.")
            if tried:
                self.code.forward(network, *self.code.examples(2, getattr(torch, self._dtype)))
        except ConfigError as error:
            if lengths == self.lengths:
                raise
            raise ConfigError(
                f"{error} Subnets are this narrow here. Use fewer ranks, or leave such widths out of method.partition."
            ) from error

    def require_finite(self, *inputs: torch.Tensor) -> torch.Tensor | None:
        """Refuse, with a ConfigError, first outputs that are not finite; return them, or None where it is not tried."""
        if has_table(self.name):
            return None
        from istmpi.models.trials import seeded

        network = self._trial()
        with seeded():
            outputs = self.code.forward(network, *inputs)
        if not outputs.isfinite().all():
            odd = outputs[~outputs.isfinite()][0].item()
            raise ConfigError(
                f"{self.name}: its forward gives {odd} for the first training examples with initial weights. "
                "Look for a logarithm, a root or a quotient that these examples do not allow."
            )
        return outputs

    def _trial(self) -> nn.Module:
        """The full network with initial values, those of leaves a block at a time."""
        import torch

        from istmpi.models.leaves import leaves_of, prepare

        generator = torch.Generator().manual_seed(0)

        def make(name: str, shape: tuple[int, ...]) -> torch.Tensor:
            bound, centre = self.parameters[name].bound, self.parameters[name].centre
            values = torch.empty(shape, dtype=getattr(torch, self._dtype))
            return values.uniform_(centre - bound, centre + bound, generator=generator)

        network = self.without_values({})
        leaves = leaves_of(network, self.leaves)
        for name, parameter in prepare(network, {name for names in self.leaves.values() for name in names}).items():
            parameter.data = make(name, self.parameters[name].pattern.shape(self.lengths))
        for leaf in leaves.values():
            leaf.replace(leaf.block_by_block(make))
        return network


def _scaled(
    factor: float, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if inputs:
        return (inputs[0] * factor, *inputs[1:]), named
    return inputs, {**named, "input": named["input"] * factor}


def scale_sums(
    network: nn.Module, factors: Callable[[], tuple[Mapping[tuple[Any, ...], Any], Mapping[str, Any]]]
) -> None:
    """Let a network multiply its sums in some calls, and some parameters, by ``factors()``."""
    from istmpi.models.scaling import Scaled, multiplied

    plain = network.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        calls, weights = factors()
        with multiplied(network, weights), Scaled(network, calls).entered() if calls else nullcontext():
            return plain(*inputs, **named)

    network.forward = forward


def built(network: UserNetwork, lengths: Lengths | None = None, seed: int = 0, device: str = "cpu") -> nn.Module:
    """A network as its constructor makes it, but for its batch normalisations; ``seed`` draws its numbers."""
    import torch

    from istmpi.models.norms import convert_batch_norms
    from istmpi.models.trials import seeded

    with seeded(seed), torch.device(device):
        module = network.build(lengths)
    convert_batch_norms(module)
    return module
