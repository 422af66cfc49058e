"""A network of one's own as the engine asks for it: from its table, and with its code from its constructor."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from math import prod
from typing import TYPE_CHECKING, Any

from istmpi.engine.axes import Parameter, Pattern
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture, BatchNormalisation
from istmpi.models.blocks import ResidualBlock
from istmpi.models.table import Table
from istmpi.names import DECLARED, UNITWISE, class_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from istmpi.models.norms import BatchNorm
    from istmpi.models.own import OwnNetwork


class InferredNetwork(Architecture):
    """A network of one's own, described by its table; it can be built where its code (``network``) is given, too.

    Moments and products that are scaled have the names of their modules.
    """

    def __init__(self, name: str, table: Table, dtype: str, network: OwnNetwork | None = None):
        self.name, self.table, self._dtype, self._network = name, table, dtype, network
        self.lengths = dict(table.groups)
        self.groups = tuple(table.groups)
        self.blocks = table.blocks
        self._widths = tuple(name for name in table.groups if name not in table.blocks)
        self.parameters = {
            key: Parameter(Pattern.parse(entry.axes), dtype, entry.bound, entry.centre)
            for key, entry in table.parameters.items()
        }
        self.batch_norms = {key: BatchNormalisation(norm.units, norm.epsilon) for key, norm in table.norms.items()}
        self.sums = dict(table.sums)
        self.stochastic = table.stochastic
        self.operators = table.operators
        self.normalised = tuple(map(Pattern.parse, table.normalised))
        self.inexact = table.inexact
        self.leaves = dict(table.leaves)
        self.exits = table.exits
        self.head = table.head
        self.unitwise = name in UNITWISE

    @property
    def default_groups(self) -> tuple[str, ...]:
        return self.table.dealt

    def with_code(self, network: OwnNetwork) -> InferredNetwork:
        """The same network, that can be built; ConfigError where this code makes another one."""
        ready = InferredNetwork(self.name, self.table, self._dtype, network)
        ready.require_usable(self.lengths)
        return ready

    @property
    def code(self) -> OwnNetwork:
        """Its class and all arguments; ConfigError where it was not given."""
        if self._network is None:
            raise ConfigError(f"{self.name} is a network of your own: give --model FILE.py:Class.")
        return self._network

    @property
    def declared(self) -> bool:
        """Whether its table is known beforehand, and a test holds it to what the network is."""
        return self.name in DECLARED

    @property
    def has_its_source(self) -> bool:
        """Whether its code is the class of that name with, to the last byte, the source of which the table tells."""
        given = self._network
        return given is not None and (class_of(given.name), given.source.hash) == (
            class_of(self.name),
            self.table.source,
        )

    def build(self, lengths: Mapping[str, int], scale: Mapping[str, float] | None = None) -> nn.Module:
        """The network at the given lengths, really built whatever the default device: its buffers are computed.

        Where ``blocks[3]`` has the length 0, that block is the identity.
        """
        import torch

        from istmpi.models.residual import Absent, put

        network = built(self.code, {name: lengths[name] for name in self._widths})
        absent = self._absent(lengths)
        for block in absent:
            put(network, block.path, Absent())
        network.to(getattr(torch, self._dtype))
        found = {}
        for name, parameter in network.named_parameters():
            parameter.data = parameter.data.contiguous()
            found[name] = tuple(parameter.shape)
        expected = {
            name: parameter.pattern.shape(lengths)
            for name, parameter in self.parameters.items()
            if not any(block.has(name) for block in absent)
        }
        if found != expected:
            name = next(name for name in {**expected, **found} if found.get(name) != expected.get(name))
            shown = ", ".join(f"{group} = {lengths[group]}" for group in self.groups)
            raise ConfigError(
                f"{self.name}: with {shown} its parameter {name} has the shape {found.get(name)}; its axes, as they "
                f"were found, give {expected.get(name)}."
            )
        if scale is not None:
            self._scale(network, lengths, scale)
        return network

    def _absent(self, lengths: Mapping[str, int]) -> list[ResidualBlock]:
        units = ((f"{group}[{n}]", block) for group, found in self.blocks.items() for n, block in enumerate(found))
        return [block for unit, block in units if not lengths.get(unit, 1)]

    def _scale(self, network: nn.Module, lengths: Mapping[str, int], scale: Mapping[str, float]) -> None:
        """Have products, and the ends of blocks, multiplied by their factors."""
        modules = dict(network.named_modules())
        for module in self.sums:
            if module in modules and (factor := self.factor(module, lengths, scale)) != 1:
                modules[module].register_forward_pre_hook(
                    lambda _, inputs, named, factor=factor: _scaled(inputs, named, factor), with_kwargs=True
                )
        for end in (end for found in self.blocks.values() for block in found for end in block.ends):
            if end in modules and (factor := self.end_factor(end, lengths, scale)) != 1:
                modules[end].register_forward_hook(lambda _, __, output, factor=factor: output * factor)

    def end_factor(self, module: str, lengths: Mapping[str, int], scale: Mapping[str, float]) -> float:
        """What all that a module makes is multiplied by: 1 unless it is the end of a block."""
        groups = (group for group, found in self.blocks.items() if any(module in block.ends for block in found))
        return prod((self.contribution(group, lengths, scale) for group in groups), start=1.0)

    def without_values(self, scale: Mapping[str, float], lengths: Mapping[str, int] | None = None) -> nn.Module:
        from istmpi.models.leaves import without_values

        with without_values() if self.leaves else nullcontext():
            return self.build(lengths or self.lengths, scale)

    @property
    def example_shape(self) -> tuple[int, ...]:
        return self._network.inputs

    def plain(self) -> nn.Module:
        """The network as its class makes it, of the run's dtype, with PyTorch's own batch normalisations."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return self._network.build().to(getattr(torch, self._dtype))

    def batch_norm_layers(self, network: nn.Module) -> dict[str, BatchNorm]:
        from istmpi.models.norms import BatchNorm

        return {name: layer for name, layer in network.named_modules() if isinstance(layer, BatchNorm)}

    @property
    def outline(self) -> str:
        widths = ", ".join(f"{name} {length}" for name, length in self.lengths.items())
        return f"with {widths}" if widths else "with no width that can be dealt out"

    def require_dealable(self, groups: tuple[str, ...]) -> None:
        if not groups:
            reasons = "; ".join(f"{name}: {problem}" for name, problem in self.table.undealt.items())
            raise ConfigError(
                f"{self.name}: it has no width that can be dealt out ({reasons or 'its constructor has no integers'}). "
                f"Use another method, as --method local-sgd."
            )
        for name in groups:
            if name in self.table.undealt:
                raise ConfigError(
                    f"{self.name}: {name} cannot be dealt out: {self.table.undealt[name]}. Leave it out of "
                    f"method.partition."
                )
        for name, names in self.table.unscaled.items():
            if dealt := [group for group in names if group in groups]:
                raise ConfigError(
                    f"{self.name}: its parameter {name} is multiplied outside of nn.Linear and nn.Conv, where istmpi "
                    f"cannot tell whether it sums over units of {dealt[0]}. Use such a layer, or leave {dealt[0]} "
                    f"out of method.partition."
                )

    def require_usable(self, lengths: Mapping[str, int]) -> None:
        import torch

        if self.declared:  # it may be too large to be tried
            if self._network is not None:
                self.without_values({}, lengths)
            return
        try:
            network = (self._trial() if lengths == self.lengths else self.build(lengths)).eval()
            found = {name: layer.eps for name, layer in self.batch_norm_layers(network).items()}
            absent = self._absent(lengths)
            there = {name: norm for name, norm in self.batch_norms.items() if not any(of.has(name) for of in absent)}
            if found != {name: norm.epsilon for name, norm in there.items()}:
                raise ConfigError(
                    f"{self._network.name}: its batch normalisations are others than were found in it before."
                )
            self._network.forward(network, *self._network.examples(2, getattr(torch, self._dtype)))
        except ConfigError as error:
            if lengths == self.lengths:
                raise
            raise ConfigError(
                f"{error} So narrow are subnets here: take fewer ranks, or leave out of method.partition what cannot "
                f"be narrow."
            ) from error

    def _trial(self) -> nn.Module:
        """The full network with initial values; of its leaves they are made in every call, a block at a time."""
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

    def require_finite(self, *inputs: torch.Tensor) -> torch.Tensor | None:
        import torch

        if self.declared:
            return None
        network = self._trial()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            outputs = self._network.forward(network, *inputs)
        if not outputs.isfinite().all():
            odd = outputs[~outputs.isfinite()][0].item()
            raise ConfigError(
                f"{self.name}: its forward makes {odd} of the first training examples, with initial values. Look for "
                f"a logarithm, a root or a quotient in it that these examples do not allow."
            )
        return outputs


def _scaled(inputs: tuple[Any, ...], named: dict[str, Any], factor: float) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if inputs:
        return (inputs[0] * factor, *inputs[1:]), named
    return inputs, {**named, "input": named["input"] * factor}


def built(network: OwnNetwork, lengths: Mapping[str, int] | None = None, seed: int = 0) -> nn.Module:
    """A network as its constructor makes it, on the CPU, with random numbers that depend on ``seed`` alone.

    Its batch normalisations are ours.
    """
    import torch

    from istmpi.models.norms import convert_batch_norms

    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        module = network.build(lengths)
    convert_batch_norms(module)
    return module
