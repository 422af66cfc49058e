"""A flat tensor that is averaged over all ranks, step by step (`istmpi.comm.allreduce`)."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from istmpi import rng
from istmpi.comm import ring
from istmpi.comm.codec import Codec
from istmpi.comm.communicator import Communicator

Array = np.ndarray | torch.Tensor


class Segment:
    """A flat tensor on its way between P ranks.

    P-1 steps sum its chunks, and P-1 steps spread the means; a step for each if they are short.
    """

    def __init__(
        self,
        values: torch.Tensor,
        codec: Codec | None,
        key: int,
        tag: int,
        communicator: Communicator,
        divides: bool = True,
    ):
        """``divides``: False for a sum in place of the mean; it has no codec."""
        self._communicator = communicator
        self._divides = divides
        self._tag = tag
        flat = values.detach()
        parts = ring.chunks(len(flat), communicator.size)
        self._steps: Iterator[list]
        longest = max(part.stop - part.start for part in parts)
        if codec:
            exchange = self._encoded_exchanges
            # A single rank passes its values through the codec, without a message.
            if communicator.size > 1 and ring.is_short(codec.nbytes(longest)):
                exchange = self._short_encoded_exchanges
            self._steps = exchange([flat.numpy()[part] for part in parts], codec, key)
        else:
            array: Array = flat
            if flat.dtype != torch.bfloat16:  # NumPy has no such numbers
                array = flat.numpy()
            steps = self._exchanges
            if ring.is_short(longest * flat.element_size()):
                steps = self._short_exchanges
            self._steps = steps([array[part] for part in parts])
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
        if self._divides:
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

    def _short_exchanges(self, chunks: list[Any]) -> Iterator[list]:
        """Yield the requests of both steps; the sums are those of `_exchanges`."""
        rank = self._communicator.rank
        ranks = self._communicator.size
        others = self._others()
        chunks_of_others = {peer: chunks[peer] for peer in others}
        arriving = {peer: _empty_like(chunks[rank]) for peer in others}
        yield self._exchange_all(chunks_of_others, arriving)
        total = arriving[others[0]]
        for peer in others[1:]:
            total += arriving[peer]
        chunks[rank] += total
        if self._divides:
            chunks[rank] /= ranks
        yield self._exchange_all(dict.fromkeys(others, chunks[rank]), chunks_of_others)

    def _short_encoded_exchanges(
        self, chunks: list[np.ndarray], codec: Codec, key: int
    ) -> Iterator[list]:
        """Yield the requests of both steps; the sums are those of `_encoded_exchanges`."""
        rank = self._communicator.rank
        ranks = self._communicator.size
        lengths = [*map(len, chunks)]
        encoded = {}
        for number in range(ranks):
            encoded[number] = codec.encode(chunks[number], rng.key(key, number, rank))
        total = codec.decode(encoded.pop(rank), lengths[rank])
        nbytes = codec.nbytes(lengths[rank])
        arriving = {peer: np.empty(nbytes, np.uint8) for peer in self._others()}
        yield self._exchange_all(encoded, arriving)
        for step in range(1, ranks):
            total += codec.decode(arriving[(rank - step) % ranks], lengths[rank])
        mean = codec.encode(total / ranks, rng.key(key, rank, ranks))
        means = {}
        for peer in self._others():
            means[peer] = np.empty(codec.nbytes(lengths[peer]), np.uint8)
        yield self._exchange_all(dict.fromkeys(self._others(), mean), means)
        means[rank] = mean
        for number, passed in means.items():
            chunks[number][:] = codec.decode(passed, lengths[number])

    def _others(self) -> list[int]:
        """Return all other ranks, the next one first."""
        rank = self._communicator.rank
        ranks = self._communicator.size
        return [(rank + step) % ranks for step in range(1, ranks)]

    def _exchange_all(self, sent: Mapping[int, Array], received: Mapping[int, Array]) -> list:
        """Return the requests of a send to each rank and a receive from each."""
        requests = []
        for sender, values in received.items():
            requests.append(self._communicator.start_receive(_bytes(values), sender, self._tag))
        for receiver, values in sent.items():
            self.bytes_sent += values.nbytes
            requests.append(self._communicator.start_send(_bytes(values), receiver, self._tag))
        return requests

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
