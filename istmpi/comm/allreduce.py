"""Averages tensors over all ranks, in place.

The bytes move while the caller computes, if threads may call MPI. Exact values travel round a ring
(`istmpi.comm.ring`). Chunk c is always summed in the order of ranks c+1, c+2, ..., c, so all ranks,
and two runs, get the same bits. Encoded chunks go straight to rank c, which sums them in the order
c, c-1, ..., c+1; rank c's own copy passes through the codec, too. Rank c encodes the mean once, and
all ranks decode the same bytes.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from istmpi import rng
from istmpi.comm import ring
from istmpi.comm.background import BackgroundRunner
from istmpi.comm.backoff import Backoff
from istmpi.comm.codec import CODECS, EXACT, Codec
from istmpi.comm.communicator import FIRST_OWN_TAG, Communicator
from istmpi.comm.host_copies import copy_from_host, to_host

Array = np.ndarray | torch.Tensor

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

    def _segments_in_order(self) -> Iterator["_Segment | None"]:
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
                yield _Segment(flat[part], codec, key, count % _TAGS, self._communicator)
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


class EncodedMean:
    """Averages a flat float32 tensor in host memory over all ranks, in place.

    Its messages are encoded.
    """

    def __init__(self, flat: torch.Tensor, codec: Codec, communicator: Communicator):
        self._flat = flat
        self._moving = _Moving(communicator)
        self._moving.put(_Segment(flat, codec, 0, 0, communicator))
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
        self._waiting: list[_Segment] = []
        self._under_way: list[_Segment] = []
        self._requests: list = []
        self._runner = BackgroundRunner("all-reduce")
        self._in_background = False
        self._called_back = threading.Event()
        self._bytes_sent = 0

    def put(self, segment: "_Segment") -> None:
        self._waiting.append(segment)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._under_way)

    def begin(self) -> None:
        if self.busy and not self._in_background:
            self._in_background = True
            self._runner.put(self._move_until_called_back)

    def finish(self) -> None:
        # The caller waits from now on, so it goes on itself, without a second thread.
        self._called_back.set()
        self._runner.finish()
        backoff = Backoff()
        with self._communicator.waiting("ring all-reduce"):
            while self.busy:
                backoff.wait_unless(self._advance())
        if self._communicator.size > 1:
            self._communicator.count_sent(self._bytes_sent)

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
        self._bytes_sent += sum(segment.bytes_sent for segment in self._under_way if segment.done)
        self._under_way = [segment for segment in self._under_way if not segment.done]
        self._requests = [request for segment in self._under_way for request in segment.requests]
        return any(moved)


class _Segment:
    """A flat tensor on its way between P ranks.

    P-1 steps sum its chunks, and P-1 steps spread the means.
    """

    def __init__(
        self,
        values: torch.Tensor,
        codec: Codec | None,
        key: int,
        tag: int,
        communicator: Communicator,
    ):
        self._communicator = communicator
        self._tag = tag
        flat = values.detach()
        parts = ring.chunks(len(flat), communicator.size)
        self._steps: Iterator[list]
        if codec:
            self._steps = self._encoded_exchanges(
                [flat.numpy()[part] for part in parts], codec, key
            )
        elif flat.dtype == torch.bfloat16:  # NumPy has no such numbers
            self._steps = self._exchanges([flat[part] for part in parts])
        else:
            self._steps = self._exchanges([flat.numpy()[part] for part in parts])
        self.requests: list = []
        self.done = False
        self.bytes_sent = 0

    def advance(self) -> bool:
        """Begin the next step if this one's messages are done; return True if they are."""
        if not self._communicator.all_done(self.requests):
            return False
        self.requests = next(self._steps, [])
        # Each step has requests, so none are left only after the last step.
        self.done = not self.requests
        return True

    def _exchanges(self, chunks: list[Any]) -> Iterator[list]:
        """Yield the requests of each step: the chunks go round the ring twice.

        They are arrays or tensors, whose operators are the same.
        """
        rank = self._communicator.rank
        ranks = self._communicator.size
        arriving = _empty_like(max(chunks, key=len))
        for step in range(1, ranks):
            chunk = chunks[(rank - step - 1) % ranks]
            yield self._pass_on(chunks[(rank - step) % ranks], arriving[: len(chunk)])
            chunk += arriving[: len(chunk)]
        # Every chunk was added in the order of the ring, alike in each run (decision 15).
        chunks[rank] /= ranks
        for step in range(ranks - 1):
            yield self._pass_on(chunks[(rank - step) % ranks], chunks[(rank - step - 1) % ranks])

    def _encoded_exchanges(
        self, chunks: list[np.ndarray], codec: Codec, key: int
    ) -> Iterator[list]:
        """Yield the requests of each step.

        Encoded chunks go straight to their ranks, then means go round the ring.
        """
        rank = self._communicator.rank
        ranks = self._communicator.size
        lengths = [*map(len, chunks)]

        def encode(number: int, sender: int) -> np.ndarray:
            """Encode a chunk. ``sender`` seeds the rounding: this rank, or for a mean ``ranks``."""
            return codec.encode(chunks[number], rng.key(key, number, sender))

        # This rank's own values are rounded, too: else its share of the mean would be exact.
        total = codec.decode(encode(rank, rank), lengths[rank])
        arriving = np.empty(codec.nbytes(lengths[rank]), np.uint8)
        for step in range(1, ranks):
            receiver = (rank + step) % ranks
            sender = (rank - step) % ranks
            sent = encode(receiver, rank)
            yield self._exchange(sent, receiver, arriving, sender)
            total += codec.decode(arriving, lengths[rank])
        chunks[rank][:] = total / ranks
        # Encoded once, and passed on as it is: all ranks decode the same bytes.
        passed = encode(rank, ranks)
        chunks[rank][:] = codec.decode(passed, lengths[rank])
        for step in range(ranks - 1):
            number = (rank - step - 1) % ranks
            arriving = np.empty(codec.nbytes(lengths[number]), np.uint8)
            yield self._pass_on(passed, arriving)
            chunks[number][:] = codec.decode(arriving, lengths[number])
            passed = arriving

    def _pass_on(self, sent: Array, received: Array) -> list:
        """Return the requests of a send to the next rank and a receive from the previous one."""
        rank = self._communicator.rank
        ranks = self._communicator.size
        return self._exchange(sent, (rank + 1) % ranks, received, (rank - 1) % ranks)

    def _exchange(self, sent: Array, receiver: int, received: Array, sender: int) -> list:
        self.bytes_sent += sent.nbytes
        return [
            self._communicator.start_receive(_bytes(received), sender, self._tag),
            self._communicator.start_send(_bytes(sent), receiver, self._tag),
        ]


def _empty_like(values: Array) -> Array:
    if isinstance(values, np.ndarray):
        return np.empty_like(values)
    return torch.empty_like(values)


def _bytes(values: Array) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values.view(np.uint8)
    # NumPy has no bfloat16, but it has its bytes.
    return values.view(torch.uint8).numpy()


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
