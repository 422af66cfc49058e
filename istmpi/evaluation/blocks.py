"""The subnets of a deal side by side: the forms ``blocks`` and ``sum`` of ``evaluate.form``.

The form ``likelihood`` (`istmpi.evaluation.likelihood`) is built on them.

A subnet is a rank's part of the network. If units are dealt only once (``method.redeal = 0``), no
rank trains a weight between units of two ranks. The full network uses such weights with their
initial values. The subnets side by side leave such weights out. Their outputs become a mean
(blocks), or the sum that subnets of method joint were trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from istmpi.comm import Communicator
from istmpi.comm.allreduce import average_together
from istmpi.cost.moments import count_units_by_subnet
from istmpi.devices import HOST
from istmpi.engine.axes import Parameter, narrow
from istmpi.engine.layout import part_shape
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.engine.transfer import Transfer
from istmpi.evaluation.moments import pack_moments, unpack_moments
from istmpi.network.added import clear, find_added
from istmpi.network.architecture import Architecture, Scale
from istmpi.network.leaves import prepare
from istmpi.network.norms import Calibrated, Moments, calibrating, compute_moments
from istmpi.trees import call, list_tensors, map_tensors

if TYPE_CHECKING:
    from istmpi.outputs import Outputs

ValuesOf = Callable[[int], Mapping[str, torch.Tensor]]
SIDE_BY_SIDE = ("blocks", "sum", "likelihood")
"""The forms in which the network is its subnets side by side."""


class Blocks(nn.Module):
    """A module that holds the subnets ``numbers`` of a deal, without weights."""

    def __init__(
        self,
        architecture: Architecture,
        deal: Partition,
        numbers: Sequence[int],
        scale: Scale | None,
        columns: Sequence[int] = (),
    ):
        """``scale``: the factors of the sums over units that the subnets were trained with; None if
        they were trained on the sum of their outputs, which then is the network's output in place
        of the mean. ``columns``: the number of input columns of each subnet, if each has its own.
        """
        super().__init__()
        self._columns = tuple(columns)
        self._architecture = architecture
        self._divisor = 1
        if scale is not None:
            # Then the sum over all ranks is the mean over all subnets.
            self._divisor = deal.ranks
        self.subnets = nn.ModuleDict()
        self.weights: dict[int, dict[str, nn.Parameter]] = {}
        """The parameters of each subnet, by its number."""
        once: Sequence[str] = ()
        if scale is None and max(numbers) > 0:
            # A sum has them once. Values of parameters come from the caller.
            once = find_added(architecture, deal.held(0), only_fixed=True)
        for number in numbers:
            lengths = narrow(deal.lengths, architecture.parameters, deal.held(number))
            subnet = architecture.without_values(scale, lengths).eval()
            # Empty parameters, which the caller fills.
            self.weights[number] = prepare(subnet, elsewhere=())
            if number > 0:
                clear(subnet, once)
            self.subnets[str(number)] = subnet

    @property
    def layers(self) -> dict[str, Calibrated]:
        """The batch normalisations by SUBNET/NAME: a subnet's number and a layer's name in it."""
        layers = {}
        for number, subnet in self.subnets.items():
            for name, layer in self._architecture.batch_norm_layers(subnet).items():
                layers[f"{number}/{name}"] = layer
        return layers

    def forward(self, *inputs: Any, **named: Any) -> Outputs:
        """Return the sum of these subnets' outputs ``[b, ...]``; for a mean, over the number of all
        subnets."""
        returned = []
        for number, subnet in self.subnets.items():
            returned.append(subnet(*self._select_columns(int(number), inputs), **named))
        sums = []
        for tensors in zip(*map(list_tensors, returned), strict=True):
            sums.append(torch.stack(tensors).sum(0) / self._divisor)
        in_order = iter(sums)
        return map_tensors(lambda _: next(in_order), returned[0])

    def _select_columns(self, number: int, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs of a subnet: other subnets' columns are 0, if each has its own."""
        if not self._columns:
            return inputs
        (x,) = inputs
        first = sum(self._columns[:number])
        stop = first + self._columns[number]
        return (functional.pad(x[:, first:stop], (first, sum(self._columns) - stop)),)


@dataclass(frozen=True)
class Parcel:
    """Outputs of subnets on this rank, as they travel to all ranks."""

    outputs: Sequence[Outputs]
    means: Sequence[torch.Tensor]
    """The outputs, flat and times the number of ranks, for their mean is the sum."""
    sums: Sequence[torch.Tensor]
    """The moments of a calibration before, if other ranks lack them."""


class AddedUp(nn.Module):
    """The whole network as a module, for a user's score: its ``forward`` is collective."""

    def __init__(self, network: SharedBlocks):
        super().__init__()
        self.subnets = network.module
        self._network = network
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Outputs:
        return self._network(*inputs, **named)


class SharedBlocks:
    """The subnets of a deal, spread over the ranks; used like a `FullNetwork`. Collective.

    All ranks pass the same examples, each through its own subnets.
    """

    labels = None
    same_examples = True
    computes = True
    on_one = False
    build: type[Blocks] = Blocks
    """The class of the subnets of a rank."""

    def __init__(
        self,
        architecture: Architecture,
        store: ParameterStore,
        communicator: Communicator,
        deal: Partition,
        device: torch.device = HOST,
        values_of: ValuesOf | None = None,
        columns: Sequence[int] = (),
        summed: bool = False,
    ):
        """``values_of``: a function that returns the values that this rank has of a subnet, by the
        subnet's number; the others come from their owners. It has the same names on all ranks.
        ``summed``: True if the subnets were trained on the sum of their outputs. ``columns`` are as
        for `Blocks`."""
        self.device = device
        self.values_of = values_of
        self._store = store
        self.communicator = communicator
        self.deal = deal
        self.architecture = architecture
        self.counts = communicator.rank < deal.ranks
        """False if the subnet of this rank is a copy, whose outputs must not count."""
        numbers = self._list_numbers(communicator.rank)
        scale = None
        if not summed:
            scale = store.scale
        self.module = self.build(architecture, deal, numbers, scale, columns).to(device)
        self.loaded = False
        """True if the subnets have weights."""
        self.moments: dict[str, Moments] = {}
        """Mean and variance of the units of batch normalisations: of the subnets here as last
        calibrated, or of all subnets as loaded or as ranks have told them."""
        self._tells_moments = False
        """True if the next message brings the moments of this calibration to all ranks."""

    def _list_numbers(self, rank: int) -> Sequence[int]:
        """Return the numbers of the subnets that a rank builds."""
        if rank < self.deal.ranks:
            return range(rank, self.deal.ranks, self.communicator.size)
        # A rank beyond the last subnet repeats one, for it passes the examples, too.
        return [rank % self.deal.ranks]

    def calibrate(self, *inputs: Any) -> None:
        """Take the weights, and calibrate the subnets on a batch. Collective."""
        self.calibrate_by(lambda: call(self.module, inputs))

    def calibrate_by(self, run: Callable[[], object]) -> None:
        """Take the weights, and calibrate the subnets while ``run`` passes a batch. Collective."""
        self._take_weights()
        layers = self.module.layers
        for layer in layers.values():
            layer.moments = None
        with torch.no_grad(), calibrating(layers, compute_moments):
            run()
        self.moments = {}
        for name, layer in layers.items():
            self.moments[name] = map_tensors(torch.Tensor.cpu, layer.moments)
        self._tells_moments = bool(self.architecture.batch_norms)

    def collect_moments(self) -> dict[str, Moments]:
        """Return the moments of all subnets on every rank; None for a layer that no pass called.
        Collective if no pass has followed the calibration."""
        if self._tells_moments:
            self.add_up_together([])
        return self.moments

    @cached_property
    def _units(self) -> dict[str, int]:
        """The units of each batch normalisation of each subnet, by SUBNET/NAME."""
        units = {}
        for number, layers in enumerate(count_units_by_subnet(self.architecture, self.deal)):
            for name, units_of_layer in layers.items():
                units[f"{number}/{name}"] = units_of_layer
        return units

    def load_moments(self, moments: Mapping[str, Moments]) -> None:
        self._take_weights()
        if moments is not self.moments:
            self._tells_moments = False
        self.moments = dict(moments)
        for name, layer in self.module.layers.items():
            layer.moments = map_tensors(lambda values: values.to(self.device), moments[name])

    @torch.no_grad()
    def __call__(self, *inputs: Any, **named: Any) -> Outputs:
        outputs = call(partial(self.module, **named), inputs)
        return self.add_up_together([outputs]).pop()

    def finish(self) -> None:
        """Do nothing: no rank needs anything of other ranks between two passes."""

    def release(self) -> None:
        """Free the memory of the weights, until they are taken again."""
        self.loaded = False
        for weights in self.module.weights.values():
            for parameter in weights.values():
                parameter.data = parameter.data.new_empty(0)

    @torch.no_grad()
    def pass_here(self, *inputs: Any) -> Outputs:
        """Return this rank's outputs, which `add_up_together` adds to those of other ranks. Not
        collective."""
        return call(self.module, inputs)

    def add_up_together(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        """Return the sums over ranks of the outputs of several passes; their messages travel at
        the same time, with the moments of a calibration before. Collective."""
        parcel = self.pack(outputs)
        average_together(parcel.means, self.communicator, sums=parcel.sums)
        return self.unpack(parcel)

    def pack(self, outputs: Sequence[Outputs]) -> Parcel:
        """Return this rank's outputs of several passes, which `average_together` takes. Local."""
        # Recorded scores have the rounding of such a mean.
        factor = self.counts * self.communicator.size
        tensors = [tensor for output in outputs for tensor in list_tensors(output)]
        means = [(tensor * factor).reshape(-1).cpu() for tensor in tensors]
        sums = []
        if self._tells_moments:
            moments = pack_moments(self.moments, self._units, self.architecture.dtype)
            # A mean would round what only one rank has.
            sums.append(moments * self.counts)
        return Parcel(outputs=outputs, means=means, sums=sums)

    def unpack(self, parcel: Parcel) -> list[Outputs]:
        """Return the sums over ranks of the outputs in a parcel, which has arrived. Local."""
        if parcel.sums:
            self.moments = unpack_moments(parcel.sums[0], self._units)
            self._tells_moments = False
        in_order = iter(parcel.means)

        def place(tensor: torch.Tensor) -> torch.Tensor:
            return next(in_order).view(tensor.shape).to(self.device)

        return [map_tensors(place, output) for output in parcel.outputs]

    def _take_weights(self) -> None:
        """Take the subnets' weights from the owners, one subnet for each rank at a time."""
        ranks = self.communicator.size
        parameters = dict(self.architecture.parameters)
        if self.values_of:
            for number, weights in self.module.weights.items():
                values = self.values_of(number)
                for name, weight in weights.items():
                    if name in values:
                        weight.data = values[name].to(self.device)
            # Every subnet has values of the same parameters.
            parameters = {name: parameters[name] for name in parameters if name not in values}
        self.loaded = True
        if not parameters:
            return
        for first in range(0, self.deal.ranks, ranks):
            # Transfers are collective: a rank without a subnet in this turn takes part with
            # another one.
            numbers = [(first + rank) % self.deal.ranks for rank in range(ranks)]
            self._take_turn(numbers, parameters)

    def _take_turn(self, numbers: Sequence[int], parameters: Mapping[str, Parameter]) -> None:
        """Take weights from the owners: those of subnet ``numbers[i]`` on rank i. Collective."""
        store = self._store
        layout = _choose_subnets(self.deal, numbers)
        tensors = {}
        for name, parameter in parameters.items():
            shape = part_shape(layout, parameter, store.rank)
            tensors[name] = torch.empty(shape, dtype=self.architecture.dtype)
        transfer = Transfer(parameters, store.owners, layout, store.rank)
        transfer.run(store.tensors, tensors, self.communicator)
        weights = self.module.weights.get(numbers[store.rank], {})
        for name in tensors.keys() & weights:
            weights[name].data = tensors[name].to(self.device)


def _choose_subnets(deal: Partition, numbers: Sequence[int]) -> Partition:
    """Return the deal in which rank i has the units of subnet ``numbers[i]``."""
    units = {}
    for name, parts in deal.units.items():
        units[name] = tuple(parts[number] for number in numbers)
    return replace(deal, units=units, ranks=len(numbers))


def with_values(
    architecture: Architecture,
    deal: Partition,
    store: ParameterStore,
    values_of: ValuesOf | None = None,
    columns: Sequence[int] = (),
    build: type[Blocks] = Blocks,
) -> Blocks:
    """Return all subnets of a deal in one process, with weights taken from a store of whole
    parameters. ``values_of``, ``columns`` and ``build`` are as for `SharedBlocks`."""
    scale = None
    if values_of is None:
        scale = store.scale
    blocks = build(architecture, deal, range(deal.ranks), scale, columns)
    for number, weights in blocks.weights.items():
        values_of_subnet: Mapping[str, torch.Tensor] = {}
        if values_of:
            values_of_subnet = values_of(number)
        for name, parameter in weights.items():
            if name in values_of_subnet:
                parameter.data = values_of_subnet[name]
                continue
            axes = enumerate(architecture.parameters[name].pattern.axes)
            positions = [deal.positions(axis, place, number) for place, axis in axes]
            at = np.ix_(*positions)
            parameter.data = store.tensors[name][at].contiguous()
    return blocks
