"""The full network in an evaluation: the plain module, in which only leaves compute differently.

A gathered leaf has its whole weight on every rank. A sharded leaf's rows stay with their owners:
the leaf's outputs are gathered or added or, if ranks have different examples, the rows are sent in
each pass. `istmpi.cost.evaluation` chooses the sharded leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from istmpi.comm import Communicator
from istmpi.cost.evaluation_plan import SummedUnits
from istmpi.devices import HOST
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.blocks import Parcel
from istmpi.evaluation.exchanges import OwnExamples, SameExamples
from istmpi.evaluation.spread_units import spread_units
from istmpi.evaluation.summed_units import UnitSums
from istmpi.network.architecture import Architecture
from istmpi.network.leaves import Leaf, find_leaves, prepare
from istmpi.network.norms import Calibrated, average, calibrating, compute_moments
from istmpi.network.norms import Moments as UnitMoments
from istmpi.network.trials import seeded
from istmpi.trees import call, map_tensors

if TYPE_CHECKING:
    from istmpi.outputs import Outputs

Moments = Mapping[str, UnitMoments]
"""Mean and variance of each batch normalisation's units."""


@dataclass(frozen=True)
class _Built:
    """The module, built for one set of factors of the sums over units."""

    module: nn.Module
    scale: Mapping[str, float]
    gathered: Mapping[str, nn.Parameter]
    """The parameters that are whole on each rank; empty until they are loaded."""
    compute_moments: Callable[[torch.Tensor, str, bool], UnitMoments]
    """A function that computes moments in a calibration (`istmpi.network.norms.calibrating`)."""
    exchange: OwnExamples | None = None
    """The exchange, if each rank passes its own examples."""
    sums: UnitSums | None = None
    """The exchange, if ranks add up what their units contribute to the outputs."""


class FullNetwork:
    """The full network of the ranks' stores, with the weights that were loaded last.

    `calibrate` and `load_moments` load weights. ``sharded``: parameters of leaves whose rows stay
    with their owners. ``local_examples``: data are local, so that each rank passes its own
    examples (decision 38). Otherwise, if a parameter is sharded, all ranks pass the same examples.
    """

    _loaded = False
    """True while the module has weights."""
    _calibrating = False
    _built: _Built | None = None

    def __init__(
        self,
        architecture: Architecture,
        store: ParameterStore,
        communicator: Communicator,
        sharded: Collection[str] = (),
        local_examples: bool = False,
        spread: bool = False,
        by_units: bool = False,
        device: torch.device = HOST,
        on_one: bool = False,
        summed: SummedUnits | None = None,
    ):
        """``spread``: each rank keeps its outputs (`labels`) of a sharded head.

        ``by_units``: for a graph, each rank has some units of each layer
        (`istmpi.evaluation.spread_units`). ``device``: the network's device. A sharded network, or
        a network for a graph, is on the host. ``on_one``: rank 0 alone gathers the weights, and
        passes all examples. ``summed``: the units whose contributions ranks add up.
        """
        self._of_graph = architecture.nodes[1] > 0
        self.device = device
        if sharded or by_units or self._of_graph:
            self.device = HOST
        self._by_units = by_units
        self._summed = summed
        self._architecture = architecture
        self._store = store
        self._communicator = communicator
        self._sharded = frozenset(sharded)
        self._local_examples = local_examples
        self._spread = ""
        """The name of the head if each rank keeps its outputs, else empty."""
        if spread:
            self._spread = self._find_spread_head()
        self.on_one = on_one
        """True if rank 0 alone has the weights, and passes all examples."""
        self.moments: Moments = {}
        """Mean and variance of normalisations' units, on ranks that compute."""

    def _find_spread_head(self) -> str:
        architecture = self._architecture
        names = architecture.leaves.get(architecture.head, ())
        if self._local_examples or not names or not self._sharded.issuperset(names):
            return ""
        return architecture.head

    @property
    def module(self) -> nn.Module:
        """The module with the weights that were loaded last; there is none before."""
        assert self._built is not None, "no weights were loaded"
        return self._built.module

    @property
    def gathered(self) -> Mapping[str, nn.Parameter]:
        """The parameters that are whole on each rank while they are loaded."""
        assert self._built is not None, "no weights were loaded"
        return self._built.gathered

    @property
    def loaded(self) -> bool:
        """True if the module has weights, and the stores' present factors of sums."""
        return self._loaded and self._is_up_to_date

    @property
    def is_whole(self) -> bool:
        """True if a rank that computes has all weights, and passes examples by itself."""
        return not (self._sharded or self._by_units or self._of_graph)

    @property
    def scale(self) -> Mapping[str, float]:
        """The factors of sums over units with which the module is built."""
        assert self._built is not None, "no weights were loaded"
        return self._built.scale

    @property
    def same_examples(self) -> bool:
        """True if all ranks run the network together on the same examples.

        Otherwise each rank runs its own.
        """
        return bool(self._sharded) and not self._local_examples

    @property
    def labels(self) -> range | None:
        """The outputs that this rank's forward pass returns; None if it returns all."""
        if not self._spread:
            return None
        owners = self._store.owners
        weight, *_ = self._architecture.leaves[self._spread]
        length, *_ = self._store.parameters[weight].pattern.shape(owners.lengths)
        return owners.rows(length, self._store.rank)

    @property
    def shares_examples(self) -> bool:
        """True if each rank passes its own part of the examples."""
        if self._local_examples:
            return True
        return self.is_whole and not self.on_one

    @property
    def computes(self) -> bool:
        """False on a rank that passes no example, because rank 0 alone has the weights."""
        return not self.on_one or self._communicator.rank == 0

    def calibrate(self, *inputs: Any) -> None:
        """Load the stores' weights, and set the normalisations' moments to those of a batch.

        Collective.
        """
        self.calibrate_by(lambda: call(self.module, inputs))

    def pass_at_once(
        self, inputs: Sequence[torch.Tensor], sampled: int, beside: Parcel | None = None
    ) -> torch.Tensor:
        """Load the stores' weights, calibrate on the first ``sampled`` examples of ``inputs``, and
        return the outputs of all examples with these moments. Collective.

        The network must be one whose ranks add up the contributions of their units. ``beside``
        travels with the sums."""
        outputs: list[torch.Tensor] = []
        self.calibrate_by(lambda: outputs.append(call(self.module, tuple(inputs))), sampled, beside)
        return outputs.pop()

    def calibrate_by(
        self, run: Callable[[], object], sampled: int | None = None, beside: Parcel | None = None
    ) -> None:
        """Load the stores' weights, and calibrate while ``run`` passes a batch. ``sampled`` and
        ``beside`` are as for `pass_at_once`.

        The normalisations' moments become those of the batch. Collective. If `shares_examples`,
        moments are over all ranks' batches: in each layer, ranks wait to add up their sums.
        """
        built = self._load()
        layers = self._batch_norms(built)
        self.moments = {}
        if not self.computes:
            return
        self._calibrating = True
        if built.sums:
            built.sums.begin_calibration(sampled, beside)
        if built.exchange:
            built.exchange.moments.clear()
        try:
            with seeded(), torch.no_grad(), calibrating(layers, built.compute_moments):
                run()
        finally:
            self._calibrating = False
            if built.sums:
                built.sums.end_calibration()
        if built.exchange:
            built.exchange.finish()
            # This rank may have skipped a layer, if the network branches on values.
            for name, moments in built.exchange.moments.items():
                layers[name].moments = average(moments)
        self.moments = {
            name: map_tensors(torch.Tensor.cpu, layer.moments) for name, layer in layers.items()
        }

    def collect_moments(self) -> Moments:
        """Return the moments as last calibrated or loaded, which every rank has."""
        return self.moments

    def load_moments(self, moments: Moments) -> None:
        """Load the stores' weights, and set these moments in place of a calibration. Collective."""
        for name, layer in self.load_weights().items():
            if name in moments:
                layer.moments = map_tensors(self._here, moments[name])
        self.moments = moments

    @torch.no_grad()
    def __call__(self, *inputs: torch.Tensor) -> Outputs:
        if not self.same_examples:
            return call(self.module, inputs)
        # Ranks that run the network together must draw the same random numbers.
        with seeded():
            return call(self.module, inputs)

    def finish(self) -> None:
        """Serve the other ranks' calls until no rank waits, if ranks have different examples.

        Collective.
        """
        # Without sharded leaves, ranks call each other only while they calibrate.
        if self._built and self._built.exchange and self._sharded:
            self._built.exchange.finish()

    def release(self) -> None:
        """Free the memory of gathered weights, until they are loaded again."""
        # Each round releases what an evaluation may have left, mostly nothing.
        if self._loaded and self._built:
            for parameter in self._built.gathered.values():
                parameter.data = parameter.data.new_empty(0)
        self._loaded = False

    def load_weights(self) -> dict[str, Calibrated]:
        """Load the stores' weights, and return the batch normalisations, without moments.

        Collective.
        """
        return self._batch_norms(self._load())

    def _load(self) -> _Built:
        if self._built is None or not self._is_up_to_date:
            self._built = self._build()
        gathered = self._built.gathered
        # All ranks load in the same order, since each load is collective.
        for name, values in self._store.gather(list(gathered), self._communicator, self.on_one):
            gathered[name].data = self._here(values)
        self._loaded = True
        return self._built

    @property
    def _is_up_to_date(self) -> bool:
        """True if the network is built for the stores' present factors of sums."""
        # Fitted factors are part of the built network.
        return self._built is not None and self._built.scale == self._store.full_scale

    def _batch_norms(self, built: _Built) -> dict[str, Calibrated]:
        layers = self._architecture.batch_norm_layers(built.module)
        for layer in layers.values():
            layer.moments = None
        return layers

    def _here(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.device)

    def _build(self) -> _Built:
        """Build the module for the store's present factors; its gathered weights are empty."""
        architecture = self._architecture
        store = self._store
        scale = store.full_scale
        # `spread_units` multiplies by the factors itself.
        module = architecture.without_values({} if self._by_units else scale).eval()
        gathered = prepare(module, self._sharded)
        if self.device != HOST:
            module.to(self.device)
        # A pass through a large network may take longer than the hang watch's patience.
        for part in module.modules():
            part.register_forward_hook(lambda *_: self._communicator.whereabouts.heartbeat())
        if self._by_units:
            spread_units(module, architecture, store, self._communicator, self._sharded)
            return _Built(module, scale, gathered, compute_moments)
        if self._summed:
            sums = self._sum_over_units(module, self._summed)
            return _Built(module, scale, gathered, sums.compute_moments, sums=sums)
        shared = self.shares_examples and self._communicator.size > 1 and architecture.batch_norms
        if self._local_examples or shared:
            exchange = OwnExamples(store, self._communicator)
            self._replace_leaves(module, exchange)
            moments = self._moments_over_ranks(module, exchange)
            return _Built(module, scale, gathered, moments, exchange)
        self._replace_leaves(module, SameExamples(store, self._communicator))
        return _Built(module, scale, gathered, compute_moments)

    def _sum_over_units(self, module: nn.Module, units: SummedUnits) -> UnitSums:
        """Make the last two leaves of a module compute with this rank's units."""
        architecture = self._architecture
        paths = (units.hidden, units.outputs)
        leaves = find_leaves(module, {path: architecture.leaves[path] for path in paths})
        sums = UnitSums(
            self._store,
            self._communicator,
            hidden=leaves[units.hidden],
            outputs=leaves[units.outputs],
            norm=architecture.batch_norm_layers(module).get(units.group),
        )
        sums.replace_leaves()
        return sums

    def _replace_leaves(self, module: nn.Module, exchange: OwnExamples | SameExamples) -> None:
        """Make the sharded leaves of a module exchange weights or outputs."""
        leaves = self._architecture.leaves.items()
        sharded = {path: names for path, names in leaves if self._sharded.issuperset(names)}
        for path, leaf in find_leaves(module, sharded).items():
            if path == self._spread and isinstance(exchange, SameExamples):
                leaf.replace(self._keep_rows(leaf, exchange))
            else:
                leaf.replace(exchange.make_forward(leaf))

    def _keep_rows(self, leaf: Leaf, exchange: SameExamples) -> Callable[..., torch.Tensor]:
        """Return a forward function of the head, of which each rank keeps its outputs."""
        compute = exchange.make_row_forward(leaf)

        def forward(x: torch.Tensor) -> torch.Tensor:
            if self._calibrating:  # nobody reads the outputs
                return x.new_empty(len(x), 0)
            return compute(x)

        return forward

    def _moments_over_ranks(
        self, module: nn.Module, exchange: OwnExamples
    ) -> Callable[[torch.Tensor, str, bool], UnitMoments]:
        """Return a function of a layer's input, its name and `Calibrated.each`. Collective."""
        over_ranks = {}
        for name, layer in self._architecture.batch_norm_layers(module).items():
            over_ranks[name] = exchange.make_moments(name, layer, self._architecture.dtype)

        def moments_of_layer(x: torch.Tensor, name: str, each: bool) -> UnitMoments:
            return over_ranks[name](x)

        return moments_of_layer
