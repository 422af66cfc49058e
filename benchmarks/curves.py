"""Accuracy after every so many steps, of P ranks in one process: what no network and no clock can change.

    python benchmarks/curves.py ist --data speech.h5 --hidden 4096 --ranks 8 --local-steps 20 --steps 200

A synchronous method learns the same on any network. So its ranks take their steps one after the other, here, on all
cores, with istmpi's own initial values, deals, batches and evaluation; and time to an accuracy is composed of the steps
that it takes and the seconds that a step takes where the network is slow. tests/mpi/test_curves.py compares this
with real ranks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence

import torch
from settings import add_settings, run_of
from torch import nn
from torch.nn import functional

from istmpi.comm import world
from istmpi.config import Run
from istmpi.data.batches import Batches
from istmpi.data.dataset import Dataset, Split
from istmpi.data.placement import PLACEMENTS, place
from istmpi.data.sources import open_dataset
from istmpi.devices import to_empty
from istmpi.engine.axes import Positions
from istmpi.engine.partition import Partition
from istmpi.engine.slots import Slot
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.evaluator import Evaluator
from istmpi.methods import spec_of
from istmpi.methods.outer import Outer
from istmpi.methods.spec import VELOCITY
from istmpi.models import architecture

METHODS = ("ist", "local-sgd", "diloco", "data-parallel")


class Ranks:
    """All ranks of a run in one process; ``weights`` are the full network's."""

    def __init__(self, run: Run, ranks: int):
        self.run, self.ranks, self.steps = run, ranks, 0
        data: Dataset = open_dataset(run.data.source)
        data = data.reshaped((data.features,))
        self.network = architecture(data.features, data.outputs, data.task, run.model)
        self._store = ParameterStore(self.network.parameters, self.network.lengths, 1, 0)
        self._store.initialise(run.train.seed)
        self.weights = self._store.tensors
        self._subnets: dict[tuple[int, ...], tuple[nn.Sequential, torch.optim.Optimizer]] = {}
        self._evaluator = Evaluator(run, self.network, data, self._store, world())
        self._streams = [self._stream(data.train, rank) for rank in range(ranks)]
        self._outer = Outer(*spec_of(run.method.name).outer(run))
        self._velocity = {Slot(name, VELOCITY): torch.zeros_like(of) for name, of in self.weights.items()}

    def round(self, steps: int) -> None:
        """So many steps of data parallel, or one round of so many local steps."""
        if self.run.method.name == "data-parallel":
            self._together(steps)
        else:
            self._apart(steps)
        self.steps += steps

    def score(self) -> tuple[float, float]:
        """The full network's accuracy and loss on the test split."""
        score = self._evaluator.score()
        return score.score, score.loss

    def _stream(self, train: Split, rank: int) -> Batches:
        """A rank's batches."""
        run, seed = self.run, self.run.train.seed
        rows = place(run.data.placement, train.labels(), rank, self.ranks, seed, run.data.alpha)
        return Batches(train, rows, run.train.batch, seed, rank)

    def _together(self, steps: int) -> None:
        """The mean of all ranks' gradients in every step: one pass over all batches, each normalised by itself."""
        network, optimizer = self._subnet(self.network.lengths)
        if not self.steps:
            for stage in network:
                if hasattr(stage, "norm"):
                    stage.norm = EachBatch(stage.norm, self.run.train.batch)
            for parameter, values in zip(network.parameters(), self.weights.values(), strict=True):
                parameter.data = values
        for step in range(self.steps, self.steps + steps):
            batches = [stream.at(step) for stream in self._streams]
            x, y = (torch.cat([*parts]) for parts in zip(*((*batch.inputs, batch.targets) for batch in batches)))
            self._step(network, optimizer, x, y)

    def _apart(self, steps: int) -> None:
        """Every rank's subnet, or copy of the network, one after the other; then the mean over the holders.

        And then, where every rank has all of it, the outer step.
        """
        lengths, parameters = self.network.lengths, self.network.parameters
        groups = spec_of(self.run.method.name).groups(self.run, self.network)
        number = self.steps // self.run.method.local_steps
        redeal = self.run.method.redeal
        deal = Partition.draw(lengths, groups, self.ranks, self.run.train.seed, number, redeal=redeal)
        self._outer.begin(self.weights)
        per_rank = [name for name, of in parameters.items() if deal.copies(of.pattern.names) > 1]
        totals = {name: torch.zeros_like(self.weights[name]) for name in per_rank}
        for rank, stream in enumerate(self._streams):
            widths = {name: len(units) for name, units in deal.held(rank).items()}
            network, optimizer = self._subnet({**lengths, **widths})
            places = {}
            for name, parameter in network.named_parameters():
                held = [deal.positions(axis, i, rank) for i, axis in enumerate(parameters[name].pattern.axes)]
                places[name] = index(held)
                parameter.data.copy_(self.weights[name][places[name]])
            for step in range(self.steps, self.steps + steps):
                batch = stream.at(step)
                self._step(network, optimizer, *batch.inputs, batch.targets)
            for name, parameter in network.named_parameters():
                if name in totals:
                    totals[name] += parameter.data
                else:  # nobody else reads it in this round
                    self.weights[name][places[name]] = parameter.data
        for name, total in totals.items():
            self.weights[name].copy_(total / self.ranks)
        self._outer.step(self.weights | self._velocity)

    def _subnet(self, lengths: Mapping[str, int]) -> tuple[nn.Sequential, torch.optim.Optimizer]:
        """A network of this shape, with any values, and its optimizer: one for all ranks, as they come in turn."""
        shape = tuple(lengths.values())
        if shape not in self._subnets:
            with torch.device("meta"):
                network = self.network.build(lengths)
            network = to_empty(network, "cpu").train()
            self._subnets[shape] = network, torch.optim.SGD(network.parameters(), lr=self.run.optimizer.lr)
        return self._subnets[shape]

    def _step(self, network: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(network(x), y).backward()
        optimizer.step()


def index(held: Sequence[Positions]) -> tuple[slice | torch.Tensor, ...]:
    """What a tensor is subscripted with for these positions of each of its axes: a view where all are ranges."""
    found: list[slice | torch.Tensor] = []
    later = 0
    for positions in reversed(held):
        if isinstance(positions, range):
            found.append(slice(positions.start, positions.stop))
        else:
            found.append(torch.from_numpy(positions).view(-1, *[1] * later))
            later += 1
    return tuple(reversed(found))


class EachBatch(nn.Module):
    """A batch normalisation that takes the moments of each rank's batch by itself."""

    def __init__(self, norm: nn.Module, batch: int):
        super().__init__()
        self.norm, self.batch = norm, batch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.norm(part) for part in x.split(self.batch)])


def evaluated(steps: int, between: int) -> list[int]:
    """The steps at which a curve is evaluated: multiples of ``between``, every one at first, then ever fewer."""
    found, step = [0], between
    while step <= steps:
        found.append(step)
        step += max(step // 10 // between, 1) * between
    return found


def curve(run: Run, ranks: int, steps: int, between: int, seconds: float) -> Iterator[dict]:
    """Points of accuracy and loss by step; ends after so many steps, or a round after so much processor time."""
    all_ranks = Ranks(run, ranks)
    for step in evaluated(steps, between):
        while all_ranks.steps < step:
            all_ranks.round(run.method.local_steps)
            if time.process_time() > seconds:
                break
        accuracy, loss = all_ranks.score()
        samples = all_ranks.steps * ranks * run.train.batch
        yield {"step": all_ranks.steps, "samples": samples, "accuracy": accuracy, "loss": loss}
        if time.process_time() > seconds:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=METHODS)
    add_settings(parser)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--redeal", type=float, default=1.0, help="share of the units that IST deals anew (1.0)")
    parser.add_argument("--placement", choices=PLACEMENTS, default="shared", help="who draws which examples (shared)")
    parser.add_argument("--evaluate-every", type=int, default=1, help="rounds between evaluations (1)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of processor time, which end it early")
    options = parser.parse_args()
    settings = {"method.name": options.method, "method.redeal": options.redeal, "data.placement": options.placement}
    run, between = run_of(options, settings), options.evaluate_every * options.local_steps
    for point in curve(run, options.ranks, options.steps, between, options.seconds):
        print(json.dumps(point), flush=True)


if __name__ == "__main__":
    main()
