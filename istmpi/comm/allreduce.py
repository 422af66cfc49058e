"""Averages tensors over all ranks, in place.

The bytes move while the caller computes, if threads may call MPI. Exact values travel round a ring
(`istmpi.comm.ring`). Chunk c is always summed in the order of ranks c+1, c+2, ..., c, so all ranks,
and two runs, get the same bits. Encoded chunks go straight to rank c, which sums them in the order
c, c-1, ..., c+1; rank c's own copy passes through the codec, too. Rank c encodes the mean once, and
all ranks decode the same bytes. Short chunks go straight, too, and are added in the same orders.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from istmpi import rng
from istmpi.comm import ring
from istmpi.comm.background import BackgroundRunner
from istmpi.comm.backoff import Backoff
from istmpi.comm.codec import CODECS, EXACT, Codec
from istmpi.comm.communicator import FIRST_OWN_TAG, Communicator
from istmpi.comm.host_copies import copy_from_host, to_host
from istmpi.comm.segment import Segment

_TAGS = FIRST_OWN_TAG
"""The number of different tags."""


class MeanOverRanks:
    """Averages named tensors over all ranks.

    Every rank hands over tensors of the same names, in any order. ``nbytes`` has the bytes of each
    tensor; the tensors travel in reverse order. ``forms`` names the codec (`istmpi.comm.codec`) of
    each encoded tensor. Until `finish` the communicator carries no other messages.
    """

    def __init__(
        self,
        nbytes: Mapping[str, int],
        communicator: Communicator,
        forms: ring.Forms = ring.ALL_EXACT,
        key: int = 0,
    ):
        self._communicator = communicator
        self._forms = forms
        self.key = key
        """The key of the random roundings of encoded values. The caller sets a new one for every
        mean."""
        # decision 16: a ring adds in one order, and its bytes are known in advance, unlike MPI's.
        self._buckets = ring.buckets(nbytes, forms)
        self._reset()

    def _reset(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._ready: dict[str, int] = {}
        """The number of elements of each tensor, from its first on, that were handed over."""
        self._flat: list[torch.Tensor] = []
        self._segments = self._segments_in_order()
        self._moving = _Moving(self._communicator)

    def add(self, name: str, tensor: torch.Tensor, ready: int | None = None) -> None:
        """Hand over a contiguous tensor or its first ``ready`` elements.

        It must stay untouched until `finish`.
        """
        if self._communicator.size == 1:
            return
        if ready is None:
            ready = tensor.numel()
        self._tensors[name] = tensor
        self._ready[name] = ready
        # The iterator stops at the first incomplete segment, and goes on from there next time.
        for segment in self._segments:
            if segment is None:  # the next one is incomplete
                self._moving.begin()
                return
            self._moving.put(segment)
        # Now all tensors are here. The caller calls `finish`, or `begin` if it has other work
        # first.

    def has(self, name: str) -> bool:
        """Return True if all values of a tensor were handed over; False on a single rank."""
        return self._communicator.size > 1 and self._complete(name)

    def begin(self) -> None:
        """Let what was handed over travel in the background, if threads may call MPI."""
        self._moving.begin()

    def finish(self) -> None:
        """Wait until all tensors hold their means."""
        if self._communicator.size == 1:
            return
        missing = [name for names in self._buckets for name in names if not self._complete(name)]
        assert not missing, f"missing: {missing}"
        self._moving.finish()
        for names, flat in zip(self._buckets, self._flat, strict=True):
            self._unpack(names, flat)
        self._reset()

    def _segments_in_order(self) -> Iterator["Segment | None"]:
        """Yield the segments in the order in which they travel.

        Yield None while the next segment is incomplete.
        """
        count = 0
        for names in self._buckets:
            while not self._can_begin(names):
                yield None
            flat = self._pack(names)
            self._flat.append(flat)
            # A bucket's tensors have one form, so the first name stands for all.
            codec = CODECS.get(self._forms.get(names[0], EXACT))
            for part in ring.segments(flat.numel(), flat.element_size(), self._communicator.size):
                while self._count_ready(names) < part.stop:
                    yield None
                key = rng.key(self.key, names[0], part.start)
                yield Segment(flat[part], codec, key, count % _TAGS, self._communicator)
                count += 1

    def _can_begin(self, names: Sequence[str]) -> bool:
        """Return True if a bucket is complete, or travels in parts.

        A single tensor in host memory travels in parts, for it needs no copy.
        """
        if all(map(self._complete, names)):
            return True
        if len(names) > 1 or names[0] not in self._tensors:
            return False
        return self._tensors[names[0]].device.type == "cpu"

    def _count_ready(self, names: Sequence[str]) -> int:
        return sum(self._ready[name] for name in names)

    def _complete(self, name: str) -> bool:
        return name in self._tensors and self._ready[name] == self._tensors[name].numel()

    def _pack(self, names: Sequence[str]) -> torch.Tensor:
        """Return a bucket's flat values in host memory: the tensor's own memory if it is alone
        there."""
        flat = [self._tensors[name].view(-1) for name in names]
        if len(flat) == 1:
            return to_host(flat[0])
        return to_host(torch.cat(flat))

    def _unpack(self, names: Sequence[str], flat: torch.Tensor) -> None:
        tensors = [self._tensors[name] for name in names]
        parts = flat.split([tensor.numel() for tensor in tensors])
        targets = {}
        means = {}
        for name, tensor, values in zip(names, tensors, parts, strict=True):
            # A single tensor in host memory was averaged in place.
            if tensor.data_ptr() != values.data_ptr():
                targets[name] = tensor.view(-1)
                means[name] = values
        copy_from_host(means, targets)


def average_together(
    tensors: Sequence[torch.Tensor],
    communicator: Communicator,
    sums: Sequence[torch.Tensor] = (),
) -> None:
    """Average flat tensors in host memory over all ranks, in place, with the bits of one mean
    after the other, and add up those of ``sums``. Their messages travel at the same time."""
    if communicator.size == 1:
        return
    moving = _Moving(communicator)
    count = 0
    for number, flat in enumerate([*tensors, *sums]):
        divides = number < len(tensors)
        for part in ring.segments(flat.numel(), flat.element_size(), communicator.size):
            moving.put(Segment(flat[part], None, 0, count % _TAGS, communicator, divides))
            count += 1
    moving.finish(calls=ring.CALLS * -(-count // ring.SEGMENTS_AT_ONCE))


class EncodedMean:
    """Averages a flat float32 tensor in host memory over all ranks, in place.

    Its messages are encoded.
    """

    def __init__(self, flat: torch.Tensor, codec: Codec, communicator: Communicator):
        self._flat = flat
        self._moving = _Moving(communicator)
        self._moving.put(Segment(flat, codec, 0, 0, communicator))
        self._moving.begin()

    def finish(self) -> torch.Tensor:
        """Wait for the mean, and return it.

        Values pass through the codec twice, even on a single rank.
        """
        self._moving.finish()
        return self._flat


class _Moving:
    """Moves segments, a few at once, in the order of `put`: after `begin`, else in `finish`."""

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self._waiting: list[Segment] = []
        self._under_way: list[Segment] = []
        self._requests: list = []
        self._runner = BackgroundRunner("all-reduce")
        self._in_background = False
        self._called_back = threading.Event()
        self._bytes_sent = 0
        self._calls = 0

    def put(self, segment: "Segment") -> None:
        self._waiting.append(segment)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._under_way)

    def begin(self) -> None:
        if self.busy and not self._in_background:
            self._in_background = True
            self._runner.put(self._move_until_called_back)

    def finish(self, calls: int | None = None) -> None:
        """Move what is left. ``calls``: those that count; by default those of each segment."""
        # The caller waits from now on, so it goes on itself, without a second thread.
        self._called_back.set()
        self._runner.finish()
        backoff = Backoff()
        with self._communicator.waiting("ring all-reduce"):
            while self.busy:
                backoff.wait_unless(self._advance())
        if self._communicator.size > 1:
            self._communicator.count_sent(self._bytes_sent, calls or self._calls)

    def _move_until_called_back(self) -> None:
        backoff = Backoff()
        while not self._called_back.is_set():
            backoff.wait_unless(self._advance())

    def _advance(self) -> bool:
        """Continue the segments under way, and begin more; return True if one of them got on."""
        progress = self._communicator.test_some(self._requests)
        while self._waiting and len(self._under_way) < ring.SEGMENTS_AT_ONCE:
            self._under_way.append(self._waiting.pop(0))
            progress = True
        if not progress:
            return False
        moved = [segment.advance() for segment in self._under_way]
        done = [segment for segment in self._under_way if segment.done]
        self._bytes_sent += sum(segment.bytes_sent for segment in done)
        self._calls += ring.CALLS * len(done)
        self._under_way = [segment for segment in self._under_way if not segment.done]
        self._requests = [request for segment in self._under_way for request in segment.requests]
        return any(moved)


def add_up_together(communicator: Communicator, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the sum over ranks of each array, as `Communicator.allreduce_sum` adds, in one
    message."""
    flat = np.concatenate([array.reshape(-1).view(np.uint8) for array in values])
    ranks = communicator.size
    gathered = communicator.allgatherv(flat, [flat.size] * ranks).reshape(ranks, -1)
    totals = []
    end = 0
    for array in values:
        begin = end
        end += array.nbytes
        part = np.ascontiguousarray(gathered[:, begin:end])
        of_ranks = part.view(array.dtype).reshape(ranks, *array.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # callers name what is not finite
            totals.append(of_ranks.sum(axis=0))
    return totals
