"""The kinds of a program's loaders, and the share of their batches that a rank reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from istmpi import rng
from istmpi.code import calling
from istmpi.data.batch import Batch
from istmpi.data.callable.split import OwnSplit, control_random_numbers
from istmpi.errors import ConfigError, DataError
from istmpi.trees import list_tensors


@runtime_checkable
class StatefulLoader(Protocol):
    """A loader that can save its position, such as torchdata's StatefulDataLoader."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> object: ...


class Collated(OwnSplit):
    """A map-style data set whose batches stay as the loader collates them."""

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        return Batch((), self.read_collated(indices, key), len(indices))

    @staticmethod
    def from_loader(loader: DataLoader[Any]) -> Collated:
        return Collated(loader.dataset, "the loader's data set", loader.collate_fn)


def is_map_style(loader: Iterable[Any]) -> TypeGuard[DataLoader[Any]]:
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def draws_at_random(loader: Iterable[Any]) -> TypeGuard[DataLoader[Any]]:
    """Return True if ranks draw at random from a loader's data set, even from a loader without
    shuffling.

    The data set must be map-style, the loader must have one batch size and a sampler of torch that
    takes each example once.
    """
    if not is_map_style(loader) or not loader.batch_size:
        return False
    sampler = loader.sampler
    # A subclass may draw in a way of its own.
    if type(sampler) is RandomSampler:
        dataset: Any = loader.dataset
        return not sampler.replacement and sampler.num_samples == len(dataset)
    return isinstance(sampler, DistributedSampler | SequentialSampler)


def require_no_workers(loader: Iterable[Any]) -> None:
    workers = getattr(loader, "num_workers", 0)
    if workers:
        raise ConfigError(
            f"the loader has num_workers = {workers}: processes that fork under MPI may hang. Give "
            "num_workers=0."
        )


def name_iteration(loader: Iterable[Any]) -> str:
    """Name the iteration over a user's loader, for messages."""
    return f"the iteration over the loader, {type(loader).__name__},"


def count_examples(batch: Any) -> int:
    """Return the number of examples of a batch: the rows of its first tensor; 1 without a tensor,
    or for a scalar."""
    first = next(list_tensors(batch), None)
    if first is None or not first.ndim:
        return 1
    return len(first)


def share_batches(loader: Iterable[Any], rank: int, ranks: int, seed: int) -> Iterator[Any]:
    """Yield a rank's share of the batches of a loader that is the same on all ranks.

    Global random numbers that the loader draws depend on the seed alone. If a `DataLoader` has a
    batch sampler for a map-style data set, a rank reads only its share. Otherwise the rank reads
    all batches, and a loader with workers raises ConfigError.
    """
    if is_map_style(loader) and loader.batch_sampler:
        split = Collated.from_loader(loader)
        # A batch's key has its number in the loader, so it is the same whichever rank reads it.
        for number, rows in enumerate(_draw_rows(loader, seed)[rank::ranks]):
            yield split.read_collated(
                np.asarray(rows), rng.key(seed, "items", rank + number * ranks)
            )
        return
    require_no_workers(loader)
    for number, batch in enumerate(_read_all(loader, seed)):
        if number % ranks == rank:
            yield batch


def _draw_rows(loader: DataLoader[Any], seed: int) -> list[Any]:
    """Return the rows of each batch of a map-style loader."""
    with control_random_numbers() as draw:
        draw(rng.key(seed, "order"))
        with calling(name_iteration(loader), DataError):
            batches: list[Any] = list(loader.batch_sampler or ())
    if isinstance(loader.sampler, DistributedSampler):  # it has only a part of the examples
        dataset: Any = loader.dataset
        rows = np.arange(len(dataset))
        size = loader.batch_size or 1
        return np.split(rows, range(size, len(rows), size))
    return batches


def _read_all(loader: Iterable[Any], seed: int) -> Iterator[Any]:
    """Yield all batches of a loader, with random numbers that are the same on all ranks."""
    end = object()  # a loader may yield None
    batches: Iterator[Any] | None = None
    for number in count():
        with control_random_numbers() as draw:  # an order at random is the same on all ranks
            draw(rng.key(seed, "items", number))
            with calling(name_iteration(loader), DataError):
                if batches is None:
                    batches = iter(loader)
                batch = next(batches, end)
        if batch is end:
            return
        yield batch
