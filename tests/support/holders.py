"""What the naive oracles share: the batches of all ranks, and the mean over the ranks that hold a value."""

import torch

from istmpi.data.batches import Batches, place


def stream_of(run, split, rank, ranks):
    """The batches of a rank."""
    rows = place(run.data.placement, split.labels(), rank, ranks, run.train.seed, run.data.alpha)
    return Batches(split, rows, run.train.batch, run.train.seed, rank)


class HoldersMean:
    """The sum of what ranks hold of each value, and how many hold it."""

    def __init__(self, like):
        self._sums = {name: torch.zeros_like(values) for name, values in like.items()}
        self._counts = {name: torch.zeros_like(values) for name, values in like.items()}

    def add(self, held, where):
        """``held``: a rank's values by their names; ``where``: their positions among all."""
        for name, values in held.items():
            self._sums[name][where[name]] += values.detach()
            self._counts[name][where[name]] += 1

    def mean(self, stored):
        """The mean over the holders; what nobody held stays as it was stored."""
        return {
            name: torch.where(count > 0, self._sums[name] / count.clamp(min=1), stored[name])
            for name, count in self._counts.items()
        }
