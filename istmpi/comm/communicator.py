"""A rank's transport: it sends values to a group of ranks, agrees with them, and counts bytes.

Values travel as bytes. `Traffic` counts the bytes of arrays, not of Python objects, that this rank
hands to MPI for other ranks. A transfer never blocks in MPI: a rank tests a request until it is
done, with pauses that leave the core to other ranks. `Whereabouts` has the ranks for which this
rank waits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from istmpi.comm import at_once, mpi, objects
from istmpi.comm.agreement import Agreement, Told, find_shared_error
from istmpi.comm.backoff import Backoff
from istmpi.comm.exchange import Staged, exchange_in_pieces
from istmpi.comm.ledger import Ledger, Traffic
from istmpi.comm.whereabouts import Whereabouts
from istmpi.errors import IstmpiError

if TYPE_CHECKING:
    from istmpi.comm.hang_report import Member

T = TypeVar("T")

STAGING_BYTES = 2**27
"""The most bytes that a rank packs for one exchange.

The limit bounds the memory beside the weights. It keeps counts and displacements far below 2**31,
the limit of MPI libraries before MPI-4.
"""

FIRST_OWN_TAG = 2**14
"""The first tag of `Communicator.take_tag`: transfers use those below it. MPI promises no tag above
2**15 - 1."""

LARGEST_CALL = 2**30
"""The most bytes that one broadcast or all-gather moves, also below 2**31."""


class Communicator:
    """A group of ranks.

    Methods are collective, except for scratch memory, waits, sends, receives and tests.
    """

    def __init__(
        self,
        mpi_communicator: Any,
        name: str = "all",
        ranks: Sequence[int] | None = None,
        whereabouts: Whereabouts | None = None,
        ledger: Ledger | None = None,
        purpose: str = "",
    ):
        """``ranks``: the group's ranks in the job, by default all.

        ``name``: unique, and the same on these ranks. ``purpose``: that of all its messages in the
        ledger; by default the training thread's at that moment.
        """
        self.mpi = mpi_communicator
        """The mpi4py communicator, for a library that takes one."""
        self.rank: int = mpi_communicator.Get_rank()
        self.size: int = mpi_communicator.Get_size()
        self.ranks = tuple(range(self.size) if ranks is None else ranks)
        self.whereabouts = whereabouts or Whereabouts()
        self.traffic = Traffic()
        self.ledger = ledger or Ledger()
        self._purpose = purpose
        self.in_pieces = False
        """True if `alltoallv` sends messages in pieces (the setting comm.exchange)."""
        self.broadcast_slot = objects.BROADCAST_SLOT
        """Bytes of the first message of `broadcast_from_root`, equal on all ranks."""
        self._library = mpi.library_here()
        self._name = name
        self.members: list[Member] | None = None
        """Facts of all ranks (`istmpi.comm.members`); None until they are exchanged."""
        self._duplicates = 0
        self._own_tags = 0
        self._scratch: dict[str, np.ndarray] = {}

    def alltoallv(self, send: Staged, receive: Staged) -> None:
        """Send a message to each rank, and receive one from each."""
        if self.in_pieces:
            with self.waiting("exchange"):
                exchange_in_pieces(self, send, receive)
            self.ledger.add(0, 1, self._purpose)
        else:
            byte = self._library.BYTE
            self._finish(self.mpi.Ialltoallv([*send, byte], [*receive, byte]), "alltoallv")
        _, nbytes, _ = send
        self.count_sent(sum(nbytes) - nbytes[self.rank])

    def allgatherv(self, part: np.ndarray, counts: list[int]) -> np.ndarray:
        """Join all ranks' flat arrays of any one dtype in rank order.

        Rank r's array has ``counts[r]`` elements.
        """
        lengths = [count * part.dtype.itemsize for count in counts]
        result = np.empty(sum(counts), dtype=part.dtype)
        # As bytes, so that MPI needs no datatype for each dtype.
        sent = np.ascontiguousarray(part).view(np.uint8)
        received = result.view(np.uint8)
        if received.nbytes <= LARGEST_CALL:
            request = at_once.gather_to_all(self.mpi, sent, received, lengths, self._library.BYTE)
            self._finish(request, "allgatherv")
            self.count_sent(sent.nbytes * (self.size - 1))
        else:
            # Displacements beyond 2**31 need MPI-4: each rank broadcasts its part instead.
            starts = [*accumulate(lengths, initial=0)][:-1]
            received[starts[self.rank] :][: sent.nbytes] = sent
            for rank, (start, nbytes) in enumerate(zip(starts, lengths, strict=True)):
                self.broadcast(received[start : start + nbytes], rank)
        return result

    def gatherv_to_root(self, part: np.ndarray, counts: list[int]) -> np.ndarray | None:
        """Return what `allgatherv` returns, on rank 0 alone; None on other ranks."""
        if sum(counts) * part.dtype.itemsize > LARGEST_CALL:
            whole = self.allgatherv(part, counts)
            if self.rank > 0:
                return None
            return whole
        sent = [np.ascontiguousarray(part).view(np.uint8), self._library.BYTE]
        if self.rank > 0:
            self._finish(self.mpi.Igatherv(sent, None), "gather")
            self.count_sent(part.nbytes)
            return None
        result = np.empty(sum(counts), dtype=part.dtype)
        lengths = [count * part.dtype.itemsize for count in counts]
        starts = [*accumulate(lengths, initial=0)][:-1]
        target = [result.view(np.uint8), lengths, starts, self._library.BYTE]
        self._finish(self.mpi.Igatherv(sent, target), "gather")
        return result

    def broadcast(self, values: np.ndarray, root: int) -> None:
        """Overwrite the contiguous array ``values`` in place with the root's values."""
        flat = values.reshape(-1).view(np.uint8)
        for start in range(0, flat.nbytes, LARGEST_CALL):
            piece = flat[start : start + LARGEST_CALL]
            request = at_once.broadcast(self.mpi, piece, root, self._library.BYTE)
            self._finish(request, "broadcast")
        if self.rank == root:
            self.count_sent(values.nbytes * (self.size - 1))

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over ranks, added in rank order so that two runs agree bit for bit."""
        # MPI_Allreduce may add in another order in another run.
        gathered = self.allgatherv(values.ravel(), [values.size] * self.size)
        with np.errstate(over="ignore", invalid="ignore"):  # callers name what is not finite
            return gathered.reshape(self.size, *values.shape).sum(axis=0)

    def count_sent(self, nbytes: int, calls: int = 0) -> None:
        """Count bytes of arrays that this rank has handed to MPI for other ranks, and calls that it
        has made of messages between two ranks."""
        self.traffic.add(nbytes)
        self.ledger.add(nbytes, calls, self._purpose)

    # ---- messages between two ranks

    def start_send(self, values: np.ndarray, peer: int, tag: int) -> Any:
        """Begin to send ``values``, which must not change until `all_done`.

        `Traffic` does not count their bytes.
        """
        return self.mpi.Isend([values, self._library.BYTE], peer, tag)

    def start_receive(self, values: np.ndarray, peer: int, tag: int) -> Any:
        return self.mpi.Irecv([values, self._library.BYTE], peer, tag)

    def send(self, values: np.ndarray, peer: int) -> None:
        """Send bytes to a rank that calls `receive` for as many. The caller notes the wait."""
        self._finish_message(self.start_send(values, peer, 0))
        self.count_sent(values.nbytes)

    def receive(self, values: np.ndarray, peer: int) -> None:
        """Overwrite ``values`` with the bytes that a rank sends. The caller notes the wait."""
        self._finish_message(self.start_receive(values, peer, 0))

    def _finish_message(self, request: Any) -> None:
        backoff = Backoff()
        while not request.Test():
            backoff.wait_unless(False)

    def test_some(self, requests: list[Any]) -> bool:
        return bool(requests) and bool(self._library.Request.Testsome(requests))

    def all_done(self, requests: Sequence[Any]) -> bool:
        return all(request == self._library.REQUEST_NULL for request in requests)

    # ---- Python objects, which are small

    def allgather(self, value: T, slot: int = objects.SLOT) -> list[T]:
        """Return the values of all ranks, in their order. Values of more than about ``slot`` bytes
        take a second call."""
        packed = objects.pack(value)
        size = slot
        # All ranks see the same slots, so all repeat the call with the same larger size.
        while True:
            own_slot = objects.make_slot(packed, size)
            slots = bytearray(self.size * size)
            lengths = [size] * self.size
            request = at_once.gather_to_all(self.mpi, own_slot, slots, lengths, self._library.BYTE)
            self._finish(request, "allgather")
            self.ledger.add(size * (self.size - 1), 0, self._purpose)
            needed = objects.find_size(slots, size)
            if needed <= size:
                return objects.unpack(slots, size)
            size = needed

    def gather_to_root(self, value: T) -> list[T] | None:
        """Return the values of all ranks, in their order, on rank 0; None on other ranks."""
        byte = self._library.BYTE
        packed = np.frombuffer(objects.pack(value), dtype=np.uint8)
        lengths = self.allgather(packed.size)
        if self.rank > 0:
            self._finish(self.mpi.Igatherv([packed, byte], None), "gather")
            self.ledger.add(packed.size, 0, self._purpose)
            return None
        starts = [*accumulate(lengths, initial=0)][:-1]
        whole = np.empty(sum(lengths), dtype=np.uint8)
        self._finish(self.mpi.Igatherv([packed, byte], [whole, lengths, starts, byte]), "gather")
        return objects.split(whole, lengths)

    def broadcast_from_root(self, value: T) -> T:
        """Return rank 0's value; the ``value`` of another rank is ignored."""
        packed = b""
        if self.rank == 0:
            packed = objects.pack(value)
        size = self.broadcast_slot
        while True:
            slot = bytearray(objects.make_slot(packed, size))
            request = at_once.broadcast(self.mpi, slot, root=0, byte=self._library.BYTE)
            self._finish(request, "broadcast")
            if self.rank == 0:
                self.ledger.add(size * (self.size - 1), 0, self._purpose)
            # All ranks see the size that rank 0 needs, and repeat the call together.
            needed = objects.find_size(slot, size)
            if needed <= size:
                return objects.unpack(slot, size)[0]
            size = needed

    def allreduce_max(self, value: int) -> int:
        return max(self.allgather(value))

    def start_allreduce_max(self, value: int) -> Callable[[], int]:
        """Begin to find the largest value of all ranks; return a function that waits for it."""
        result = np.array([value], dtype=np.int64)
        request = self.mpi.Iallreduce(self._library.IN_PLACE, result, op=self._library.MAX)
        self.ledger.add(result.nbytes, 0, self._purpose)

        def wait() -> int:
            self._finish(request, "allreduce")
            return int(result[0])

        return wait

    def barrier(self) -> None:
        self._finish(self.mpi.Ibarrier(), "barrier")

    @contextmanager
    def agreed(self, slot: int = objects.SLOT) -> Iterator[Agreement]:
        """Run local work that every rank must complete.

        What a rank sets as the agreement's ``value`` comes to all ranks in the same message;
        ``slot`` is as for `allgather`.

        If ranks fail, all raise the error of the lowest failing rank. The message names that rank
        if another rank succeeded. Ranks agree only on an `IstmpiError`, and on errors of too large
        an input, such as a lack of memory (`past_a_limit`). Any other error ends the job.
        """
        # decision 21: a rank that fails alone would leave the others in a call that never ends.
        error: IstmpiError | None = None
        agreement = Agreement()
        try:
            yield agreement
        except Exception as raised:
            error = find_shared_error(raised)
            if error is None:
                raise
        message = Told(error, agreement.value, agreement.later)
        agreement.settle(self.gather_told(message, slot), self.rank)

    def gather_told(self, message: Told, slot: int) -> list[Told]:
        """Return the messages of all ranks at the end of work that every rank must complete."""
        return self.allgather(message, slot)

    # ---- waits

    def _finish(self, request: Any, call: str) -> None:
        self._count_call(self.size)
        self._complete(request, call)

    def _count_call(self, ranks: int) -> None:
        # A rank alone waits for nobody.
        if ranks > 1:
            self.ledger.add(0, 1, self._purpose)

    def _complete(self, request: Any, call: str) -> None:
        self.whereabouts.arrive(self._name)
        # Most requests are done at once: only a real wait is worth its bookkeeping.
        if not request.Test():
            with self.whereabouts.waits(call, self._name, self.ranks):
                backoff = Backoff()
                while not request.Test():
                    backoff.wait_unless(False)

    def waiting(self, call: str, library: str = "") -> AbstractContextManager[None]:
        """Note a wait for the group's ranks inside a block, whose calls may be those of another
        ``library`` than MPI."""
        group = self._name + library
        self.whereabouts.arrive(group)
        return self.whereabouts.waits(call, group, self.ranks)

    def waiting_for_itself(self, call: str) -> AbstractContextManager[None]:
        """Note a wait for this rank's own work inside a block, such as a write."""
        group = f"{self._name} {call}"
        self.whereabouts.arrive(group)
        return self.whereabouts.waits(call, group, self.ranks, for_itself=True)

    # ---- other groups of ranks

    def take_tag(self) -> int:
        """Return a tag for messages between two ranks that nothing else on this communicator uses.

        All ranks take their tags in the same order; none waits, unlike in `duplicate`.
        """
        tag = FIRST_OWN_TAG + self._own_tags % FIRST_OWN_TAG
        self._own_tags += 1
        return tag

    def duplicate(self, purpose: str = "") -> "Communicator":
        """Return a communicator of the same ranks, whose messages are separate."""
        # Faster than Dup on a link with a long delay. Nothing may create another communicator
        # meanwhile: Open MPI 4.1 ends the process.
        handle, request = self.mpi.Idup()
        self._complete(request, "creation of a communicator")
        self._duplicates += 1
        name = f"{self._name}.{self._duplicates}"
        return self._with(handle, self.ranks, name, purpose)

    def create(self, ranks: Sequence[int]) -> Any:
        """Make an mpi4py communicator of ``ranks``; they alone call this, and spin until all do."""
        everyone = self.mpi.Get_group()
        group = everyone.Incl(ranks)
        # Split is collective over all ranks, and takes several times as long.
        created = self.mpi.Create_group(group)
        group.Free()
        everyone.Free()
        return created

    @contextmanager
    def among(self, ranks: Sequence[int]) -> Iterator["Communicator | None"]:
        """Open a communicator of ``ranks``, in their order; None on other ranks.

        Traffic counts in both groups.
        """
        if self.rank not in ranks:
            yield None
            return
        some = self._with(self.create(ranks), [self.ranks[rank] for rank in ranks])
        try:
            yield some
        finally:
            self.traffic.add(some.traffic.bytes)
            some.mpi.Free()

    def _with(
        self, mpi_communicator: Any, ranks: Sequence[int], name: str = "", purpose: str = ""
    ) -> "Communicator":
        # Its creation was a collective call.
        self._count_call(len(ranks))
        group = Communicator(
            mpi_communicator,
            name or f"{self._name}:{list(ranks)}",
            ranks,
            self.whereabouts,
            self.ledger,
            purpose or self._purpose,
        )
        group.in_pieces = self.in_pieces
        return group

    # ---- memory

    def scratch(self, name: str, nbytes: int) -> np.ndarray:
        """Return a reused buffer of at least ``nbytes`` bytes.

        New memory would cost a page fault for every 4 KiB.
        """
        buffer = self._scratch.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            self._scratch.pop(name, None)  # first, so that never both are in memory
            buffer = self._scratch[name] = np.empty(nbytes, dtype=np.uint8)
        return buffer

    def release_scratch(self) -> None:
        self._scratch.clear()
