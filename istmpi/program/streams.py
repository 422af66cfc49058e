"""The batches that a program takes from a user's loader, step by step."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, SequentialSampler

from istmpi.code import calling
from istmpi.comm import Communicator
from istmpi.data.batch import Batch
from istmpi.data.batches import Batches, place
from istmpi.data.callable.split import checksum_tensors
from istmpi.data.dataset import Split
from istmpi.errors import DataError
from istmpi.files import appearing
from istmpi.program.loaders import (
    Collated,
    StatefulLoader,
    draws_at_random,
    name_iteration,
    require_no_workers,
)
from istmpi.program.rank_files import fetch_files, name_file, read_rank_file, save_rank_file

FACTOR = 31
MODULUS = 2**61 - 1
"""The checksum of several batches is a polynomial of their checksums, modulo a prime."""


class Rows(Split):
    """A number of examples whose values only the program knows."""

    def __init__(self, count: int, inputs: tuple[Any, ...] = ()):
        """``inputs``: the inputs, tensors or trees of them, that `batch` returns for any
        indices."""
        self._count = count
        self._inputs = inputs

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: np.ndarray, key: int | None = None) -> Any:
        # The program computes the loss itself, so there are no targets.
        return Batch(self._inputs, torch.zeros(0), len(indices))

    @property
    def features_checksum(self) -> int:
        return 0


class Stream(ABC):
    """The batches of a loader, unchanged, on one rank."""

    together = False
    """True if all ranks must take the same batches."""
    examples: int | None = None
    """The number of examples that this rank draws from; None if it is not known."""
    first: int | None = None
    """The checksum of the first batch of a loader that keeps its own order; if all ranks must take
    the same batches, that of all batches so far. None before a batch is taken."""

    def __init__(self, loader: Iterable[Any]):
        self.loader = loader

    @property
    def fingerprint(self) -> tuple[int, int] | None:
        """A map-style data set's length and checksum (0 if examples are random); None for other
        loaders."""
        return None

    @property
    def state(self) -> Any:
        """The loader's own state; None if it has none."""
        if not isinstance(self.loader, StatefulLoader):
            return None
        with calling(f"the loader, {type(self.loader).__name__}: state_dict", DataError):
            return self.loader.state_dict()

    def load(self, state: Any) -> None:
        if isinstance(self.loader, StatefulLoader):
            with calling(f"the loader, {type(self.loader).__name__}: load_state_dict", DataError):
                self.loader.load_state_dict(state)

    @abstractmethod
    def at(self, step: int, in_pass: tuple[int, int] | None = None, ahead: int = 0) -> Any:
        """Return the batch of a local step. ``in_pass``: the pass over the examples, and the
        batch's number in it.

        ``ahead``: the number of following batches that a thread reads meanwhile.
        """


class DrawnStream(Stream):
    """Batches that this rank draws itself from a map-style data set (see `draws_at_random`).

    A batch depends only on (seed, rank, step). A resumed run on as many ranks takes the same
    batches.
    """

    loader: DataLoader[Any]

    def __init__(
        self, loader: DataLoader[Any], seed: int, rank: int, ranks: int, local: bool = False
    ):
        """``local``: True if this rank draws from all examples of its own data set."""
        super().__init__(loader)
        self._split = Collated.from_loader(loader)
        if not len(self._split):
            raise DataError("the loader's data set is empty; it needs at least one example.")
        placement = "local" if local else "sharded"
        # Neither placement reads labels, only their number.
        rows = place(placement, np.zeros(len(self._split)), rank, ranks, seed)
        self._batches = Batches(self._split, rows, loader.batch_size or 1, seed, rank)
        self.examples = self._batches.examples

    @property
    def fingerprint(self) -> tuple[int, int] | None:
        checksum = self._split.labels_checksum
        # Random examples differ when they are read again.
        if checksum != Collated.from_loader(self.loader).labels_checksum:
            checksum = 0
        return len(self._split), checksum

    def at(self, step: int, in_pass: tuple[int, int] | None = None, ahead: int = 0) -> Any:
        # `Collated` hands over the loader's own batch as the targets.
        self._split.ahead = ahead
        if in_pass:
            return self._batches.read_from_pass(*in_pass).targets
        return self._batches.at(step).targets


class OrderedStream(Stream):
    """Batches of an iterable that keeps its own order; after its end it starts again."""

    def __init__(self, loader: Iterable[Any], rank: int):
        super().__init__(loader)
        require_no_workers(loader)
        self._rank = rank
        self._epoch = 0
        self._iterator: Iterator[Any] | None = None

    def at(self, step: int, in_pass: tuple[int, int] | None = None, ahead: int = 0) -> Any:
        batch = self._read()
        if self.first is None:
            self.first = checksum_tensors(batch)
        elif self.together:
            # All ranks must have the same batches, also after the first one.
            self.first = (self.first * FACTOR + checksum_tensors(batch)) % MODULUS
        return batch

    def _read(self) -> Any:
        """Return the next batch; after the last one, the first batch of a new pass."""
        # A loader may yield None, so an object of our own marks the end.
        end = object()
        with calling(name_iteration(self.loader), DataError):
            if self._iterator is not None:
                batch = next(self._iterator, end)
                if batch is not end:
                    return batch
            self._iterator = self._begin_epoch()
            batch = next(self._iterator, end)
        if batch is end:
            raise DataError(
                f"the loader, {type(self.loader).__name__}, has no batch on rank {self._rank}."
            )
        return batch

    def _begin_epoch(self) -> Iterator[Any]:
        # A DistributedSampler draws another order only in another epoch.
        for name in ("sampler", "batch_sampler"):
            sampler = getattr(self.loader, name, None)
            if sampler is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self._epoch)
        self._epoch += 1
        return iter(self.loader)


def open_stream(
    loader: Iterable[Any],
    seed: int,
    rank: int,
    ranks: int,
    note: Callable[[str], None],
    local: bool = False,
) -> Stream:
    """Return a rank's stream of a loader; ``note`` gets what istmpi ignores of it. Raises
    ConfigError or DataError if it is unusable."""
    if draws_at_random(loader):
        drawn = DrawnStream(loader, seed, rank, ranks, local)
        if type(loader.sampler) is SequentialSampler:
            note("shuffle=False is ignored: batches are drawn at random.")
        if loader.num_workers:
            note(
                f"num_workers = {loader.num_workers} is ignored: processes that fork under MPI may "
                "hang."
            )
        return drawn
    ordered = OrderedStream(loader, rank)
    if not isinstance(loader, StatefulLoader):
        note(
            f"{type(loader).__name__} keeps its own order, so a resumed run starts it again and "
            "differs from an uninterrupted run. A DataLoader of a map-style data set with "
            "shuffle=True avoids that."
        )
    return ordered


class Streams:
    """The streams of a program's loaders, in the order of their first use. Collective."""

    def __init__(self, communicator: Communicator, seed: int, note: Callable[[str], None]):
        self._communicator = communicator
        self._seed = seed
        self._note = note
        self._streams: dict[Any, Stream] = {}
        self.states: list[Any] = []
        """The states that the resumed run saved, in the order of the loaders' first use."""
        self._begun: list[Any] = []
        """The loaders' states when the current round began."""
        self._folder: Path | None = None
        """The folder of the states and fingerprints; None before `load`."""
        self._new: list[Stream] = []
        """Streams whose first batches must still be compared between ranks."""

    def find(self, loader: Iterable[Any], local: bool = False, together: bool = False) -> Stream:
        """Return a loader's stream. Raises ConfigError or DataError if unusable.

        ``local``: True if ranks' data differ. ``together``: True if ranks take the same batches.
        """
        key: Any = id(loader)
        if draws_at_random(loader):
            # A new loader of the same data set, as in each round, continues its stream.
            key = id(loader.dataset), loader.batch_size, loader.collate_fn, local
        if key not in self._streams:
            self._streams[key] = self._open(loader, local, together)
        return self._streams[key]

    def _open(self, loader: Iterable[Any], local: bool, together: bool) -> Stream:
        """Return a new stream, once ranks have compared their data sets. Collective."""
        communicator = self._communicator
        rank = communicator.rank
        ranks = communicator.size
        if together:
            # Each rank draws as a single one.
            rank = 0
            ranks = 1
        with communicator.agreed():
            stream = open_stream(loader, self._seed, rank, ranks, self._note, local)
            stream.together = together
            fingerprint = stream.fingerprint
        fingerprint_on_root = communicator.broadcast_from_root(fingerprint)
        with communicator.agreed():
            if fingerprint != fingerprint_on_root and not local:
                cure = ", or write round.take(loader, local=True) for data of each rank."
                if together:
                    cure = ": they add up outputs for the same examples."
                raise DataError(
                    "the loader's data set differs from that on rank 0. Give all ranks the same "
                    f"data set{cure}"
                )
            if self._folder and fingerprint:
                # 0 for a data set of all ranks, which does not depend on their number.
                ranks = communicator.size if local else 0
                self._require_as_before(self._folder, [*fingerprint, ranks])
        # A resumed program uses its loaders in the same order as before, so a number names them.
        number = len(self._streams)
        if number < len(self.states):
            stream.load(self.states[number])
        if fingerprint is None and not local and communicator.size > 1:
            self._new.append(stream)
        return stream

    def compare(self) -> None:
        """Note the loaders that give all ranks the same first batch. Collective."""
        if not self._new:
            return
        # Not when a batch is taken, because ranks take them at different times.
        per_rank = self._communicator.allgather([stream.first for stream in self._new])
        for stream, firsts in zip(self._new, zip(*per_rank)):
            if stream.together:
                _require_same(stream, firsts)
            elif firsts[0] and len(set(firsts)) == 1:
                self._note(
                    f"{type(stream.loader).__name__} gives all ranks the same first batch. Make it "
                    "depend on job.communicator.rank, or write round.take(loader, local=True) if "
                    "you intend that."
                )
        self._new = [stream for stream in self._new if stream.together]

    def _require_as_before(self, folder: Path, fingerprint: list[int]) -> None:
        """Raise DataError if a data set differs after resuming, but not for local data on another
        number of ranks."""
        path = folder / f"data-{self._communicator.rank}.json"
        fingerprints = json.loads(path.read_text()) if path.is_file() else {}
        number = str(len(self._streams))
        # The file of an earlier job may lack a loader that this program has got since.
        before = fingerprints.get(number, fingerprint)
        # The third entry is the number of ranks of local data (`_open`).
        if before != fingerprint and before[2:] == fingerprint[2:]:
            raise DataError(
                f"loader {len(self._streams) + 1} has another data set than before resuming. Give "
                "the same data, or a new folder."
            )
        fingerprints[number] = fingerprint
        folder.mkdir(parents=True, exist_ok=True)
        with appearing(path, follow=False) as file:
            file.write(json.dumps(fingerprints).encode())

    def begin_round(self) -> None:
        """Keep the loaders' states for `save` after a dropped round."""
        # A loader may return an object that it changes later.
        self._begun = [deepcopy(stream.state) for stream in self._streams.values()]

    def save(self, folder: Path, round: int, kept: int, dropped: bool = False) -> None:
        """Save the states, if any, of this rank's loaders after a round, or from before a
        ``dropped`` round.

        Keep the newest ``kept + 1`` files.
        """
        if dropped:
            states = self._begun
        else:
            states = [stream.state for stream in self._streams.values()]
        if all(state is None for state in states):
            return
        save_rank_file(folder, round, self._communicator.rank, states, kept)

    def load(self, folder: Path, round: int, resumed: str = "") -> None:
        """Load the states that this rank saved in ``folder`` after a round. Raises DataError if
        they are unreadable.

        ``resumed``: the run or checkpoint to resume; ``folder`` gets its states and fingerprints if
        it lacks them.
        """
        self._folder = folder
        rank = self._communicator.rank
        fingerprints = folder / f"data-{rank}.json"
        states = folder / name_file(round, rank)
        # A run that starts again may use other data.
        if not round:
            fingerprints.unlink(missing_ok=True)
        elif not fingerprints.exists():
            fetch_files(folder, [fingerprints.name, states.name], resumed)
        if states.is_file():
            self.states = read_rank_file(states, "the loaders' states")


def _require_same(stream: Stream, firsts: Sequence[int | None]) -> None:
    """Raise DataError unless all ranks have taken the same first batch."""
    if len(set(firsts)) > 1:
        error = DataError(
            f"{type(stream.loader).__name__} gives ranks different batches, but they add up "
            "outputs for the same examples. Let it not depend on the rank."
        )
        error.everywhere = True
        raise error
