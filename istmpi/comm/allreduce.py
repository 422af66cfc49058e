"""The mean of tensors over all ranks, in place, moved in the background while the caller still computes.

They travel round a ring (`istmpi.comm.ring`). Chunk c is added up in the order of ranks c+1, c+2, ..., c, whatever the
timing: two runs agree bit for bit, and so do all ranks. What is encoded is added up in the order c, c-1, ..., c+1;
every rank's copy is, and so is the mean, which all decode from the same bytes.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from istmpi import rng
from istmpi.comm import Backoff, Communicator, ring, threads_may_call
from istmpi.comm.codec import CODECS, EXACT, Codec

Array = np.ndarray | torch.Tensor

_TAGS = 2**15


@dataclass(frozen=True)
class Traveller:
    """A segment: a part of a bucket, or a whole flat tensor."""

    values: torch.Tensor
    codec: Codec | None
    """None: it travels as it is."""
    key: int
    """Of its roundings."""


class MeanOverRanks:
    """The mean of named tensors over all ranks; every rank hands over the same names in any order.

    ``nbytes``: bytes of each tensor; they travel in the reverse of this order. ``forms``: of tensors that are encoded,
    how (`istmpi.comm.codec`). No other point-to-point messages may be under way on the communicator.
    """

    def __init__(
        self, nbytes: Mapping[str, int], communicator: Communicator, forms: ring.Forms = ring.ALL_EXACT, key: int = 0
    ):
        self._communicator, self._forms = communicator, forms
        self.key = key
        """Of the roundings of what is encoded; another one for every mean."""
        self._buckets = ring.buckets(nbytes, forms)
        self._reset()

    def _reset(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._made: dict[str, int] = {}
        self._flat: list[torch.Tensor] = []
        self._journey = self._travellers()
        self._runner = Background(self._communicator)
        self._count = 0

    def add(self, name: str, tensor: torch.Tensor, made: int | None = None) -> None:
        """Hand over a contiguous tensor, not to be touched until `finish`; begins with what there is by now.

        ``made``: so many of its elements, in their order, have their values; to be called again with more, and with all
        at last (the default).
        """
        if self._communicator.size == 1:
            return
        self._tensors[name], self._made[name] = tensor, tensor.numel() if made is None else made
        for segment in self._journey:
            if segment is None:
                break
            self._runner.put(_Segment(segment, self._count % _TAGS, self._communicator))
            self._count += 1
        else:
            return  # everything is there: `finish` comes next, or `begin` says that it does not
        self._runner.begin()

    def begin(self) -> None:
        """Begin to move everything, all of it being there, while the caller goes on with something else."""
        self._runner.begin()

    def finish(self) -> None:
        """Until all tensors hold their means."""
        if self._communicator.size == 1:
            return
        missing = [name for names in self._buckets for name in names if not self._complete(name)]
        assert not missing, f"missing: {missing}"
        self._runner.finish()
        for names, flat in zip(self._buckets, self._flat, strict=True):
            self._unpack(names, flat)
        self._reset()

    def _travellers(self) -> Iterator[Traveller | None]:
        """All segments in the order in which they travel; None as long as the next one is not there."""
        for names in self._buckets:
            while self._there(names) is None:
                yield None
            flat = self._packed(names)
            self._flat.append(flat)
            for segment in ring.segments(flat.numel(), flat.element_size(), self._communicator.size):
                while self._there(names) < segment.stop:
                    yield None
                codec = CODECS.get(self._forms.get(names[0], EXACT))
                yield Traveller(flat[segment], codec, rng.key(self.key, names[0], segment.start))

    def _there(self, names: Sequence[str]) -> int | None:
        if all(map(self._complete, names)):
            return sum(self._tensors[name].numel() for name in names)
        only = self._tensors.get(names[0]) if len(names) == 1 else None
        return None if only is None or only.device.type != "cpu" else self._made[names[0]]

    def _complete(self, name: str) -> bool:
        return name in self._tensors and self._made[name] == self._tensors[name].numel()

    def _packed(self, names: Sequence[str]) -> torch.Tensor:
        flat = [self._tensors[name].view(-1) for name in names]
        return (flat[0] if len(flat) == 1 else torch.cat(flat)).cpu()

    def _unpack(self, names: Sequence[str], flat: torch.Tensor) -> None:
        tensors = [self._tensors[name] for name in names]
        for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            if tensor.data_ptr() != values.data_ptr():
                tensor.view(-1).copy_(values)


class EncodedMean:
    """The mean over ranks of a flat float32 tensor in host memory, in a codec's bytes; making it begins to move.

    No other point-to-point messages may be under way on the communicator, and nobody touches the values.
    """

    def __init__(self, flat: torch.Tensor, codec: Codec, communicator: Communicator):
        self._runner = Background(communicator)
        self._runner.put(_Segment(Traveller(flat, codec, key=0), 0, communicator))
        self._runner.begin()

    def finish(self) -> None:
        """Until the values are their mean; on one rank, too, they have passed through the codec twice."""
        self._runner.finish()


class Background:
    """Moves journeys, a few at a time, in the order in which they were put: in a thread from `begin` to `finish`.

    A journey has requests, says when it is done and how many bytes it has sent, and takes its next step in `advance`.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self._waiting: list = []
        """Another thread appends to it."""
        self._under_way: list = []
        self._requests: list = []
        self._thread: threading.Thread | None = None
        self._called_back = threading.Event()
        self._failure: BaseException | None = None
        self._bytes_sent = 0
        self._began = self._ended = 0.0
        """When the first journey was put, and the last one done."""

    def put(self, journey: Any) -> None:
        """One that nobody touches until it is done."""
        self._began = self._began or time.perf_counter()
        self._waiting.append(journey)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._under_way)

    def begin(self) -> None:
        """Move what was put, and will be, while the caller computes; nothing where threads may not call MPI."""
        if self.busy and not self._thread and threads_may_call():
            self._thread = threading.Thread(target=self._run_meanwhile, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Until everything that was put is done."""
        if self._thread:
            self._called_back.set()
            self._thread.join()
        if self._failure:
            raise self._failure
        self._communicator.meet()
        backoff = Backoff()
        with self._communicator.waiting("ring all-reduce"):
            while self.busy:
                backoff.wait_unless(self._advance())
        if self._communicator.size > 1:
            self._communicator.traffic.add(self._bytes_sent, "ring all-reduce", self._began, self._ended)

    def _run_meanwhile(self) -> None:
        """In a thread, until it is called back."""
        backoff = Backoff()
        try:
            while not self._called_back.is_set():
                backoff.wait_unless(self._advance())
        except BaseException as failure:  # raised where the result is waited for
            self._failure = failure

    def _advance(self) -> bool:
        """Do what can be done now; whether that was anything."""
        # Most looks find nothing, and ranks share cores: such a look does no more than that.
        found = self._communicator.test_some(self._requests)
        while self._waiting and len(self._under_way) < ring.SEGMENTS_AT_ONCE:
            self._under_way.append(self._waiting.pop(0))
            found = True
        if not found:
            return False
        moved = [journey.advance() for journey in self._under_way]
        self._bytes_sent += sum(journey.bytes_sent for journey in self._under_way if journey.done)
        self._under_way = [journey for journey in self._under_way if not journey.done]
        self._requests = [request for journey in self._under_way for request in journey.requests]
        if not self.busy:
            self._ended = time.perf_counter()
        return any(moved)


class _Segment:
    """A flat tensor on its way round the ring: P-1 steps in which chunks are added up, P-1 in which they are spread."""

    def __init__(self, traveller: Traveller, tag: int, communicator: Communicator):
        self._communicator, self._tag = communicator, tag
        self._key = traveller.key
        flat = _array(traveller.values.detach())
        self._chunks = [flat[chunk] for chunk in ring.chunks(len(flat), communicator.size)]
        self._steps = self._encoded_exchanges(traveller.codec) if traveller.codec else self._exchanges()
        self.requests: list = []
        self.done = False
        self.bytes_sent = 0

    def advance(self) -> bool:
        """Take the next step if this one's requests are over."""
        if not self._communicator.all_done(self.requests):
            return False
        self.requests = next(self._steps, [])
        self.done = not self.requests
        return True

    def _exchanges(self) -> Iterator[list]:
        """Every step's requests; between two of them their messages have arrived."""
        rank, ranks = self._communicator.rank, self._communicator.size
        arriving = max(self._chunks, key=len)
        arriving = arriving.clone() if isinstance(arriving, torch.Tensor) else np.empty_like(arriving)
        for step in range(1, ranks):
            mine = self._chunks[(rank - step - 1) % ranks]
            yield self._pass_on(self._chunks[(rank - step) % ranks], arriving[: len(mine)])
            mine += arriving[: len(mine)]
        self._chunks[rank] /= ranks
        for step in range(ranks - 1):
            yield self._pass_on(self._chunks[(rank - step) % ranks], self._chunks[(rank - step - 1) % ranks])

    def _encoded_exchanges(self, codec: Codec) -> Iterator[list]:
        """The same of what is encoded: each chunk straight to its rank, and its mean round the ring."""
        rank, ranks, chunks = self._communicator.rank, self._communicator.size, self._chunks
        lengths = [*map(len, chunks)]

        def encoded(number: int, sender: int) -> np.ndarray:
            """A chunk's bytes; those of the mean have the number of ranks as their ``sender``."""
            return codec.encode(chunks[number], rng.key(self._key, number, sender))

        total = codec.decode(encoded(rank, rank), lengths[rank])
        arriving = np.empty(codec.nbytes(lengths[rank]), np.uint8)
        for step in range(1, ranks):
            to, from_ = (rank + step) % ranks, (rank - step) % ranks
            sent = encoded(to, rank)
            yield self._exchange(sent, to, arriving, from_)
            total += codec.decode(arriving, lengths[rank])
        chunks[rank][:] = total / ranks
        passed = encoded(rank, ranks)
        chunks[rank][:] = codec.decode(passed, lengths[rank])
        for step in range(ranks - 1):
            number = (rank - step - 1) % ranks
            arriving = np.empty(codec.nbytes(lengths[number]), np.uint8)
            yield self._pass_on(passed, arriving)
            passed, chunks[number][:] = arriving, codec.decode(arriving, lengths[number])

    def _pass_on(self, sent: Array, received: Array) -> list:
        rank, ranks = self._communicator.rank, self._communicator.size
        return self._exchange(sent, (rank + 1) % ranks, received, (rank - 1) % ranks)

    def _exchange(self, sent: Array, to: int, received: Array, from_: int) -> list:
        self.bytes_sent += sent.nbytes
        return [
            self._communicator.start_receive(_bytes(received), from_, self._tag),
            self._communicator.start_send(_bytes(sent), to, self._tag),
        ]


def _array(values: torch.Tensor) -> Array:
    return values if values.dtype == torch.bfloat16 else values.numpy()


def _bytes(values: Array) -> np.ndarray:
    return values.view(np.uint8) if isinstance(values, np.ndarray) else values.view(torch.uint8).numpy()
