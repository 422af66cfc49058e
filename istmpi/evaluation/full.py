"""The full network in an evaluation: the plain module, in which only leaves compute differently.

A gathered leaf has its whole weight on every rank. A sharded leaf's rows stay with their owners:
the leaf's outputs are gathered or added or, if ranks have different examples, the rows are sent in
each pass. `istmpi.cost.evaluation` chooses the sharded leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from istmpi.comm import Communicator
from istmpi.devices import HOST
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.exchanges import OwnExamples, SameExamples
from istmpi.evaluation.spread_units import spread_units
from istmpi.models.architecture import Architecture
from istmpi.models.leaves import leaves_of, prepare
from istmpi.models.norms import BatchNorm, averaged, calibrating, moments_of
from istmpi.models.trials import seeded
from istmpi.trees import call, mapped

if TYPE_CHECKING:
    from istmpi.exits import Outputs

Moments = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


class FullNetwork:
    """The full network of the ranks' stores, with the weights of its last `calibrate` or
    `load_moments`.

    ``sharded``: parameters of leaves whose rows stay with their owners. ``local_examples``: data
    are local, so that each rank passes its own examples. Otherwise, if a parameter is sharded, all
    ranks pass the same examples.
    """

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
    ):
        """``spread``: each rank keeps its outputs (`labels`) of a sharded head.

        ``by_units``: for a graph, each rank has some units of each layer
        (`istmpi.evaluation.spread_units`). ``device``: the network's device. A sharded network, or
        a network for a graph, is on the host.
        """
        self.device = HOST if sharded or by_units or architecture.nodes[1] else device
        self._by_units = by_units
        self._architecture, self._store, self._communicator = architecture, store, communicator
        self._sharded = frozenset(sharded)
        # decision 38: examples that are local stay, and weights travel to them.
        self._local_examples = local_examples
        names = (
            architecture.leaves.get(architecture.head, ()) if spread and not local_examples else ()
        )
        self._spread = architecture.head if names and self._sharded.issuperset(names) else ""
        self._calibrating = False
        self.module: nn.Module | None = None
        self._scale: Mapping[str, float] | None = None
        self._own: OwnExamples | None = None
        self._gathered: dict[str, nn.Parameter] = {}
        self.moments: Moments = {}
        """Mean and variance of every unit of the batch normalisations, as last calibrated or
        loaded."""

    @property
    def same_examples(self) -> bool:
        """True if all ranks run the network together on the same examples; otherwise each rank runs
        its own."""
        return bool(self._sharded) and not self._local_examples

    @property
    def labels(self) -> range | None:
        """The outputs that this rank's forward pass returns; None if it returns all."""
        if not self._spread:
            return None
        store, (weight, *_) = self._store, self._architecture.leaves[self._spread]
        length = store.parameters[weight].pattern.shape(store.owners.lengths)[0]
        return store.owners.rows(length, store.rank)

    @property
    def shares_examples(self) -> bool:
        """True if each rank passes its own part of the examples."""
        return self._local_examples or not (
            self._sharded or self._by_units or self._architecture.nodes[1]
        )

    def calibrate(self, *inputs: Any) -> None:
        """Load the stores' weights, and set the normalisations' moments to those of a batch of
        inputs. Collective."""
        self.calibrate_by(lambda: call(self.module, inputs))

    def calibrate_by(self, run: Callable[[], object]) -> None:
        """Load the stores' weights, and set the normalisations' moments while ``run`` passes a
        batch. Collective.

        If `shares_examples`, moments are over all ranks' batches: in each layer, ranks wait to add
        up their sums.
        """
        layers = self.with_weights()
        self._calibrating = True
        if self._own:
            self._own.moments.clear()
        try:
            with seeded(), torch.no_grad(), calibrating(layers, self._moments_of):
                run()
        finally:
            self._calibrating = False
        self.finish()
        if self._own:  # this rank may have skipped a layer, if the network branches on values
            for name, moments in self._own.moments.items():
                layers[name].moments = averaged(moments)
        self.moments = {
            name: mapped(torch.Tensor.cpu, layer.moments) for name, layer in layers.items()
        }

    def load_moments(self, moments: Moments) -> None:
        """Load the stores' weights, and set these moments in place of a calibration. Collective."""
        for name, layer in self.with_weights().items():
            layer.moments = mapped(self._here, moments[name])
        self.moments = moments

    @torch.no_grad()
    def __call__(self, *inputs: torch.Tensor) -> Outputs:
        with seeded() if self.same_examples else nullcontext():
            return call(self.module, inputs)

    def finish(self) -> None:
        """Serve the other ranks' calls until no rank waits, if ranks have different examples.
        Collective."""
        if self._own:
            self._own.finish()

    def release(self) -> None:
        """Free the memory of gathered weights, until they are loaded again."""
        for parameter in self._gathered.values():
            parameter.data = parameter.data.new_empty(0)

    def with_weights(self) -> dict[str, BatchNorm]:
        """Load the stores' weights, and return the batch normalisations, without moments.
        Collective."""
        if self._scale != self._store.full_scale:  # also true before the first build
            self._build()
        for name, parameter in self._gathered.items():
            parameter.data = self._here(self._store.whole(name, self._communicator))
        layers = self._architecture.batch_norm_layers(self.module)
        for layer in layers.values():
            layer.moments = None
        return layers

    def _here(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.device)

    def _build(self) -> None:
        architecture, store = self._architecture, self._store
        self._scale = store.full_scale
        self.module = architecture.without_values({} if self._by_units else self._scale).eval()
        self._gathered = prepare(self.module, self._sharded)
        if self.device != HOST:
            self.module.to(self.device)
        self._moments_of = moments_of
        for module in self.module.modules():
            module.register_forward_hook(lambda *_: self._communicator.whereabouts.heartbeat())
        if self._by_units:
            spread_units(self.module, architecture, store, self._communicator, self._sharded)
            return
        shared = self.shares_examples and self._communicator.size > 1 and architecture.batch_norms
        self._own = (
            OwnExamples(store, self._communicator) if self._local_examples or shared else None
        )
        exchange = self._own or SameExamples(store, self._communicator)
        leaves = architecture.leaves.items()
        sharded = {path: names for path, names in leaves if self._sharded.issuperset(names)}
        for path, leaf in leaves_of(self.module, sharded).items():
            if path == self._spread:
                rows = exchange.rows_of(leaf)
                leaf.replace(
                    lambda x, rows=rows: x.new_empty(len(x), 0) if self._calibrating else rows(x)
                )
            else:
                leaf.replace(exchange.forward_of(leaf))
        if self._own:
            layers = architecture.batch_norm_layers(self.module).items()
            over_ranks = {
                name: self._own.moments_of(name, layer, architecture.dtype)
                for name, layer in layers
            }
            self._moments_of = lambda x, name, each: over_ranks[name](x)
