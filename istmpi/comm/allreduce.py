"""The mean of tensors over all ranks, in place, moved in the background while the caller still computes.

They travel round a ring (`istmpi.comm.ring`). Chunk c is added up in the order of ranks c+1, c+2, ..., c, whatever the
timing: two runs agree bit for bit, and so do all ranks.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from istmpi.comm import Backoff, Communicator, ring, threads_may_call

Array = np.ndarray | torch.Tensor

_TAGS = 2**15


class MeanOverRanks:
    """The mean of named tensors over all ranks; every rank hands over the same names in any order.

    ``nbytes``: bytes of each tensor; they travel in the reverse of this order. No other point-to-point messages may be
    under way on the communicator.
    """

    def __init__(self, nbytes: Mapping[str, int], communicator: Communicator):
        self._communicator = communicator
        self._buckets = ring.buckets(nbytes)
        self._background = threads_may_call()
        self._reset()

    def _reset(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._made: dict[str, int] = {}
        self._flat: list[torch.Tensor] = []
        self._journey = self._travellers()
        self._runner = _Runner(self._communicator)
        self._thread: threading.Thread | None = None

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
            self._runner.put(segment)
        else:
            return  # everything is there: `finish` comes next
        if self._runner.busy and self._background and not self._thread:
            self._thread = threading.Thread(target=self._runner.run_meanwhile, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Until all tensors hold their means."""
        if self._communicator.size == 1:
            return
        missing = [name for names in self._buckets for name in names if not self._complete(name)]
        assert not missing, f"missing: {missing}"
        if self._thread:
            self._runner.come_back()
            self._thread.join()
        self._runner.run()
        for names, flat in zip(self._buckets, self._flat, strict=True):
            self._unpack(names, flat)
        runner = self._runner
        self._communicator.traffic.add(runner.bytes_sent, "ring all-reduce", runner.began, runner.ended)
        self._reset()

    def _travellers(self) -> Iterator[torch.Tensor | None]:
        """All segments in the order in which they travel; None as long as the next one is not there."""
        for names in self._buckets:
            while self._there(names) is None:
                yield None
            flat = self._packed(names)
            self._flat.append(flat)
            for segment in ring.segments(flat.numel(), flat.element_size(), self._communicator.size):
                while self._there(names) < segment.stop:
                    yield None
                yield flat[segment]

    def _there(self, names: Sequence[str]) -> int | None:
        """So many elements of a bucket can leave by now: of a single tensor, from where it is, those that are made."""
        if all(map(self._complete, names)):
            return sum(self._tensors[name].numel() for name in names)
        only = self._tensors.get(names[0]) if len(names) == 1 else None
        return None if only is None or only.device.type != "cpu" else self._made[names[0]]

    def _complete(self, name: str) -> bool:
        return name in self._tensors and self._made[name] == self._tensors[name].numel()

    def _packed(self, names: Sequence[str]) -> torch.Tensor:
        """A bucket as one flat tensor in host memory: the very tensor where it is one already."""
        flat = [self._tensors[name].view(-1) for name in names]
        return (flat[0] if len(flat) == 1 else torch.cat(flat)).cpu()

    def _unpack(self, names: Sequence[str], flat: torch.Tensor) -> None:
        tensors = [self._tensors[name] for name in names]
        for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            if tensor.data_ptr() != values.data_ptr():
                tensor.view(-1).copy_(values)


class _Runner:
    """Moves segments round the ring, a few at a time, in the order in which they were put."""

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self._waiting: list[_Segment] = []
        """Another thread appends to it."""
        self._under_way: list[_Segment] = []
        self._requests: list = []
        self._count = 0
        self._called_back = threading.Event()
        self._failure: BaseException | None = None
        self.bytes_sent = 0
        self.began = self.ended = 0.0
        """When the first segment was put, and the last one done."""

    def put(self, flat: torch.Tensor) -> None:
        """A segment, not to be touched until it is done."""
        self.began = self.began or time.perf_counter()
        self._waiting.append(_Segment(flat, self._count % _TAGS, self._communicator))
        self._count += 1

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._under_way)

    def run(self) -> None:
        """Until everything that was put is done."""
        if self._failure:
            raise self._failure
        backoff = Backoff()
        while self.busy:
            backoff.wait_unless(self._advance())

    def run_meanwhile(self) -> None:
        """In a thread, until it is called back."""
        backoff = Backoff()
        try:
            while not self._called_back.is_set():
                backoff.wait_unless(self._advance())
        except BaseException as failure:  # raised where the result is waited for
            self._failure = failure

    def come_back(self) -> None:
        self._called_back.set()

    def _advance(self) -> bool:
        """Do what can be done now; whether that was anything."""
        # Most looks find nothing, and ranks share cores: such a look does no more than that.
        found = self._communicator.test_some(self._requests)
        while self._waiting and len(self._under_way) < ring.SEGMENTS_AT_ONCE:
            self._under_way.append(self._waiting.pop(0))
            found = True
        if not found:
            return False
        moved = [segment.advance() for segment in self._under_way]
        self.bytes_sent += sum(segment.bytes_sent for segment in self._under_way if segment.done)
        self._under_way = [segment for segment in self._under_way if not segment.done]
        self._requests = [request for segment in self._under_way for request in segment.requests]
        if not self.busy:
            self.ended = time.perf_counter()
        return any(moved)


class _Segment:
    """A flat tensor on its way round the ring: P-1 steps in which chunks are added up, P-1 in which they are spread."""

    def __init__(self, values: torch.Tensor, tag: int, communicator: Communicator):
        self._communicator, self._tag = communicator, tag
        flat = _array(values.detach())
        self._chunks = [flat[chunk] for chunk in ring.chunks(len(flat), communicator.size)]
        self._steps = self._exchanges()
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

    def _pass_on(self, sent: Array, received: Array) -> list:
        communicator = self._communicator
        rank, ranks = communicator.rank, communicator.size
        self.bytes_sent += sent.nbytes
        return [
            communicator.start_receive(_bytes(received), (rank - 1) % ranks, self._tag),
            communicator.start_send(_bytes(sent), (rank + 1) % ranks, self._tag),
        ]


def _array(values: torch.Tensor) -> Array:
    """The same memory for additions by one thread, which NumPy does; it has no bfloat16."""
    return values if values.dtype == torch.bfloat16 else values.numpy()


def _bytes(values: Array) -> np.ndarray:
    """The same memory as bytes."""
    return values.view(np.uint8) if isinstance(values, np.ndarray) else values.view(torch.uint8).numpy()
