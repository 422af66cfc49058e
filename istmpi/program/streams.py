"""The batches that a program takes from a user's loader, step by step."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from istmpi import rng
from istmpi.code import calling
from istmpi.comm import Communicator
from istmpi.data.batch import Batch
from istmpi.data.batches import Batches, place
from istmpi.data.callable.split import OwnSplit, checksum_of, drawing
from istmpi.data.dataset import Split
from istmpi.errors import ConfigError, DataError
from istmpi.files import appearing
from istmpi.trees import tensors_of


class Rows(Split):
    def __init__(self, count: int, inputs: tuple[Any, ...] = ()):
        """``inputs``: the inputs, tensors or trees of them, that `batch` returns for any
        indices."""
        self._count, self._inputs = count, inputs

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: np.ndarray, key: int | None = None) -> Any:
        return Batch(self._inputs, torch.zeros(0), len(indices))

    @property
    def features_checksum(self) -> int:
        return 0


class _Collated(OwnSplit):
    """A map-style data set whose batches stay as the loader collates them."""

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        return Batch((), self.collated(indices, key), len(indices))

    @staticmethod
    def of(loader: DataLoader) -> _Collated:
        return _Collated(loader.dataset, "the loader's data set", loader.collate_fn)


class Stream:
    """The batches of a loader, unchanged.

    From a map-style data set (see `draws_at_random`), this rank draws the batches itself: a batch
    depends only on (seed, rank, step). A resumed run on as many ranks takes the same batches. Any
    other iterable keeps its own order, and starts again after its end.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        seed: int,
        rank: int,
        ranks: int,
        note: Callable[[str], None],
        local: bool = False,
    ):
        """``local``: True if this rank draws from all examples of its own data set."""
        self._loader, self._rank, self._epoch = loader, rank, 0
        self.stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self.first: int | None = None
        """The checksum of the first batch of a loader that keeps its own order; None before the
        batch is taken."""
        self._iterator: Iterator[Any] | None = None
        self._batches: Batches | None = None
        if draws_at_random(loader):
            self._split = _Collated.of(loader)
            if not len(self._split):
                raise DataError("the loader's data set is empty; it needs at least one example.")
            rows = place(
                "local" if local else "sharded", np.zeros(len(self._split)), rank, ranks, seed
            )
            self._batches = Batches(self._split, rows, loader.batch_size, seed, rank)
            if type(loader.sampler) is SequentialSampler:
                note("shuffle=False is ignored: each rank draws at random from its part.")
            if loader.num_workers:
                note(
                    f"num_workers = {loader.num_workers} is ignored: processes that fork under MPI "
                    "may hang."
                )
            return
        _require_no_workers(loader)
        if not self.stateful:
            note(
                f"{type(loader).__name__} keeps its own order, so a resumed run starts it again "
                "and differs "
                "from an uninterrupted run. A DataLoader of a map-style data set with shuffle=True "
                "avoids "
                "that."
            )

    @property
    def fingerprint(self) -> tuple[int, int] | None:
        """A map-style data set's length and checksum (0 if examples are random); None for other
        loaders."""
        if self._batches is None:
            return None
        again = _Collated.of(self._loader)
        checksum = self._split.labels_checksum
        return len(self._loader.dataset), checksum if checksum == again.labels_checksum else 0

    @property
    def state(self) -> Any:
        if not self.stateful:
            return None
        with calling(f"the loader, {type(self._loader).__name__}: state_dict", DataError):
            return self._loader.state_dict()

    @property
    def examples(self) -> int | None:
        return self._batches.examples if self._batches else None

    def at(self, step: int, in_pass: tuple[int, int] | None = None, ahead: int = 0) -> Any:
        """Return the batch of a local step. ``in_pass``: the pass over the examples, and the
        batch's number in it.

        ``ahead``: the number of following batches that a thread reads meanwhile.
        """
        if self._batches is None:
            batch = self._next()
            self.first = checksum_of(batch) if self.first is None else self.first
            return batch
        self._split.ahead = ahead
        return (self._batches.of_pass(*in_pass) if in_pass else self._batches.at(step)).targets

    def _next(self) -> Any:
        with calling(_iteration_of(self._loader), DataError):
            for fresh in (False, True):
                if self._iterator is None or fresh:
                    self._begin_epoch()
                for batch in self._iterator:
                    return batch
        raise DataError(
            f"the loader, {type(self._loader).__name__}, has no batch on rank {self._rank}."
        )

    def _begin_epoch(self) -> None:
        for sampler in (getattr(self._loader, name, None) for name in ("sampler", "batch_sampler")):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self._epoch)
        self._iterator = iter(self._loader)
        self._epoch += 1


def _iteration_of(loader: Any) -> str:
    """Name the iteration over a user's loader, for messages."""
    return f"the iteration over the loader, {type(loader).__name__},"


class Streams:
    """The streams of a program's loaders, in the order of their first use. Collective."""

    def __init__(self, communicator: Communicator, seed: int, note: Callable[[str], None]):
        self._communicator, self._seed, self._note = communicator, seed, note
        self._streams: dict[Any, Stream] = {}
        self._states: list[Any] = []
        self._begun: list[Any] = []
        self._folder: Path | None = None
        self._new: list[tuple[str, Stream]] = []
        """Streams whose first batches must still be compared between ranks."""

    def of(self, loader: Iterable[Any], local: bool = False) -> Stream:
        """Return a loader's stream; ``local``: ranks' data differ. Raises ConfigError or DataError
        if unusable."""
        key = id(loader)
        if draws_at_random(
            loader
        ):  # a new loader of the same data set, as in each round, continues its stream
            key = id(loader.dataset), loader.batch_size, loader.collate_fn, local
        if key not in self._streams:
            communicator = self._communicator
            with communicator.agreed():
                stream = Stream(
                    loader, self._seed, communicator.rank, communicator.size, self._note, local
                )
                fingerprint = stream.fingerprint
            first = communicator.broadcast_from_root(fingerprint)
            with communicator.agreed():
                if fingerprint != first and not local:
                    raise DataError(
                        "the loader's data set differs from that on rank 0. Give all ranks the "
                        "same data "
                        "set, or write round.take(loader, local=True) for data of each rank."
                    )
                if self._folder and fingerprint:
                    self._require_as_before([*fingerprint, communicator.size if local else 0])
            if stream.stateful and len(self._streams) < len(self._states):
                with calling(f"the loader, {type(loader).__name__}: load_state_dict", DataError):
                    loader.load_state_dict(self._states[len(self._streams)])
            self._streams[key] = stream
            if fingerprint is None and not local and communicator.size > 1:
                self._new.append((type(loader).__name__, stream))
        return self._streams[key]

    def compare(self) -> None:
        if self._new:
            per_rank = self._communicator.allgather([stream.first for _, stream in self._new])
            for (loader, _), firsts in zip(self._new, zip(*per_rank)):
                if firsts[0] and len({*firsts}) == 1:
                    self._note(
                        f"{loader} gives all ranks the same first batch. Make it depend on "
                        "job.communicator.rank, or write round.take(loader, local=True) if you "
                        "intend that."
                    )
            self._new.clear()

    def _require_as_before(self, fingerprint: list[int]) -> None:
        """Raise DataError if a data set differs after resuming, but not for local data on another
        number of ranks."""
        path = self._folder / f"data-{self._communicator.rank}.json"
        fingerprints = json.loads(path.read_text()) if path.is_file() else {}
        number = str(len(self._streams))
        before = fingerprints.get(number, fingerprint)
        if before != fingerprint and before[2:] == fingerprint[2:]:
            raise DataError(
                f"loader {len(self._streams) + 1} has another data set than before resuming. Give "
                "the same "
                "data, or a new folder."
            )
        fingerprints[number] = fingerprint
        self._folder.mkdir(parents=True, exist_ok=True)
        with appearing(path, follow=False) as file:
            file.write(json.dumps(fingerprints).encode())

    def begin_round(self) -> None:
        self._begun = [deepcopy(stream.state) for stream in self._streams.values()]

    def save(self, folder: Path, round: int, kept: int, dropped: bool = False) -> None:
        """Save the states, if any, of this rank's loaders after a round, or from before a
        ``dropped`` round.

        Keep the newest ``kept + 1`` files.
        """
        states = self._begun if dropped else [stream.state for stream in self._streams.values()]
        if any(state is not None for state in states):
            folder.mkdir(parents=True, exist_ok=True)
            with appearing(folder / f"{round}-{self._communicator.rank}.pt", follow=False) as file:
                torch.save(states, file)
            files = folder.glob(f"*-{self._communicator.rank}.pt")
            for path in sorted(files, key=lambda path: int(path.stem.split("-")[0]))[: -kept - 1]:
                path.unlink(missing_ok=True)

    def load(self, folder: Path, round: int, resumed: str = "") -> None:
        """Load the states that this rank saved in ``folder`` after a round. Raises DataError if
        they are unreadable.

        ``resumed``: the run or checkpoint to resume; ``folder`` gets its states and fingerprints if
        it lacks them.
        """
        self._folder = folder
        data, path = (
            folder / f"data-{self._communicator.rank}.json",
            folder / f"{round}-{self._communicator.rank}.pt",
        )
        if not round:
            data.unlink(missing_ok=True)
        elif not data.exists():
            for earlier in (Path(resumed), *Path(resumed).resolve().parents[:2]):
                for file in (data, path):
                    if (earlier / "loaders" / file.name).is_file():
                        folder.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(earlier / "loaders" / file.name, file)
        if path.is_file():
            try:
                self._states = torch.load(path, weights_only=True)
            except (OSError, RuntimeError, pickle.UnpicklingError) as error:
                raise DataError(
                    f"{path}: the loaders' states cannot be read ({type(error).__name__}): only "
                    "tensors, "
                    "numbers, text, lists and dicts are allowed. Remove the file to start the "
                    "loaders again."
                ) from None


def _is_map_style(loader: Iterable[Any]) -> bool:
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def _require_no_workers(loader: Iterable[Any]) -> None:
    if workers := getattr(loader, "num_workers", 0):
        raise ConfigError(
            f"the loader has num_workers = {workers}: processes that fork under MPI may hang. Give "
            "num_workers=0."
        )


def draws_at_random(loader: Iterable[Any]) -> bool:
    """Return True if ranks draw at random from a loader's data set, even from a loader without
    shuffling.

    The data set must be map-style, the loader must have one batch size and a sampler of torch that
    takes each example once.
    """
    if not _is_map_style(loader) or not loader.batch_size:
        return False
    sampler = loader.sampler
    whole = (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(loader.dataset)
    )
    return whole or isinstance(sampler, DistributedSampler | SequentialSampler)


def own_batches(loader: Iterable[Any], rank: int, ranks: int, seed: int) -> Iterator[Any]:
    """Yield a rank's share of the batches of a loader that is the same on all ranks.

    Global random numbers that the loader draws depend on the seed alone. If a `DataLoader` has a
    batch sampler for a map-style data set, a rank reads only its share. Otherwise the rank reads
    all batches, and a loader with workers raises ConfigError.
    """
    if _is_map_style(loader) and loader.batch_sampler:
        split = _Collated.of(loader)
        with drawing() as draw:
            draw(rng.key(seed, "order"))
            with calling(_iteration_of(loader), DataError):
                batches = list(loader.batch_sampler)
        if isinstance(loader.sampler, DistributedSampler):  # it has only a part of the examples
            rows = np.arange(len(loader.dataset))
            batches = np.split(rows, range(loader.batch_size, len(rows), loader.batch_size))
        for number, rows in enumerate(batches[rank::ranks]):
            yield split.collated(np.asarray(rows), rng.key(seed, "items", rank + number * ranks))
    else:
        _require_no_workers(loader)
        batches = end = object()
        for number in count():
            with drawing() as draw:  # an order at random is the same on all ranks
                draw(rng.key(seed, "items", number))
                with calling(_iteration_of(loader), DataError):
                    batches = iter(loader) if batches is end else batches
                    batch = next(batches, end)
            if batch is end:
                return
            if number % ranks == rank:
                yield batch


def examples_in(batch: Any) -> int:
    """Return the number of examples of a batch: the rows of its first tensor; 1 without a tensor,
    or for a scalar."""
    first = next(tensors_of(batch), None)
    return len(first) if first is not None and first.ndim else 1
