"""A replica group: its members divide each batch, and average their gradients in every step.

PyTorch's DistributedDataParallel takes the mean in buckets: on CPUs with MPI, over NCCL if each
member has a GPU of its own, otherwise over gloo. Members own no rows: before a round they get the
values that their leader begins with. Only this module imports torch.distributed.
"""

from __future__ import annotations

import os
import socket
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn
from torch.futures import Future

from istmpi.comm import Communicator
from istmpi.comm.allreduce import average_together
from istmpi.comm.groups import Membership
from istmpi.comm.loopback import gloo_over_loopback
from istmpi.engine.group_calls import Refresh
from istmpi.engine.layout import cut
from istmpi.errors import ConfigError, DataError, IstmpiError
from istmpi.units import list_first

if TYPE_CHECKING:
    from torch.distributed import GradBucket

TIMEOUT = timedelta(days=100)
"""The longest wait for another member, whose leader may use a slow link. The hang watch finds out
which process stands still."""

READS_ITS_FILE = {"nccl"}
"""Backends with a thread that opens the file in which members met, until the process ends, and
waits for it if it is gone. The store itself removes the file with the last member."""

PACK_BYTES = 2**20
"""Tensors of fewer bytes are broadcast together, up to about as many bytes."""


def join_group(membership: Membership, device: torch.device) -> ReplicaGroup | None:
    """Return this process's group; None if no group of the job has a second member. Collective in
    the job.

    Raises DataError on all processes if members do not find each other.
    """
    inside = membership.inside
    file = ""
    if membership.leads:
        # A file of this user alone, in which members find each other.
        descriptor, file = tempfile.mkstemp(prefix="istmpi-group-")
        os.close(descriptor)
    file = inside.broadcast_from_root(file)
    group = None
    try:
        with membership.world.agreed():
            if not Path(file).is_file():
                raise DataError(
                    f"{file} is not there for all processes of {socket.gethostname()}, which "
                    "meet there as a replica group. Set TMPDIR to a folder that they share."
                )
        # One of several hosts may have a single process: its group has one member, so that all
        # groups take the same steps.
        if membership.largest == 1:
            return None
        group = ReplicaGroup(membership, device, Path(file))
        inside.barrier()
        return group
    finally:
        if membership.leads and (group is None or group.backend not in READS_ITS_FILE):
            Path(file).unlink(missing_ok=True)


class ReplicaGroup:
    """This member's place in its group. Creation is collective.

    ``file``: the file in which they find each other.
    """

    _is_open: ClassVar[bool] = False
    """True if this process is in a group."""

    def __init__(self, membership: Membership, device: torch.device, file: Path):
        # decision 86: torch.distributed takes 1.4 s to import, which only groups pay.
        import torch.distributed

        _leave_earlier_group()
        ReplicaGroup._is_open = True
        self.membership = membership
        self.member = membership.inside.rank
        self.size = membership.inside.size
        self._inside = membership.inside
        self.has_part = True
        """False if the batch had no example for this member, which computes another one's."""
        self._made = 0
        self._gradient_bytes = 0
        self._on_host = device.type == "cpu"
        if self._on_host:
            self._values = self._inside.duplicate()
        self.backend = self._choose_backend(device)
        device_of_nccl = None
        if self.backend == "nccl":
            # NCCL connects at once then, and not in the first step.
            device_of_nccl = device
        with gloo_over_loopback():
            torch.distributed.init_process_group(
                self.backend,
                store=torch.distributed.FileStore(str(file), self.size),
                rank=self.member,
                world_size=self.size,
                device_id=device_of_nccl,
                timeout=TIMEOUT,
            )
        # The first wrapper imports a compiler, for which no round shall wait.
        self.wrap(nn.Linear(1, 1).to(device), may_skip=False)

    def close(self) -> None:
        """Leave the group, so that this process may join another one."""
        torch.distributed.destroy_process_group()
        ReplicaGroup._is_open = False

    def _choose_backend(self, device: torch.device) -> str:
        identity = ""
        if device.type == "cuda":
            # A scheduler may show each process one GPU, which then has the number 0.
            identity = str(torch.cuda.get_device_properties(device).uuid)
        identities = self._inside.allgather(identity)
        if all(identities) and len(set(identities)) == self.size:
            return "nccl"
        return "gloo"

    @property
    def leads(self) -> bool:
        return self.membership.leads

    def take_part(self, examples: int) -> slice:
        """Return the examples of a batch that this member takes; parts differ by one at most."""
        part = cut(examples, self.size, self.member)
        self.has_part = bool(part)
        return slice(part.start, part.stop)

    def find_place(self, rank: int, ranks: int) -> tuple[int, int]:
        """Return the number of this member's first batch, and the distance to its next one, if
        ``ranks`` groups divide batches, of which this is number ``rank``. Groups may be unequal."""
        return rank + ranks * self.member, ranks * self.size

    @property
    def processes(self) -> int:
        """The number of processes of all groups."""
        return self.membership.world.size

    def refresh(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Give members the leader's values of some weights."""
        self.membership.tell(Refresh(tuple(tensors)))
        self.share(tensors.values())

    def count_method(self) -> int:
        """Return the number of methods that were counted before."""
        self._made += 1
        return self._made - 1

    def wrap(self, network: nn.Module, may_skip: bool) -> nn.Module:
        """Return a module that computes as ``network`` and averages its gradients over members.

        ``may_skip``: True if a forward may leave parameters out.
        """
        from torch.nn.parallel import DistributedDataParallel

        # A rank lacks some residual blocks, whose parameters are empty.
        empty = [name for name, values in network.named_parameters() if not values.numel()]
        if len(empty) == len(list(network.parameters())):
            return network
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(network, empty)
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._gradient_bytes = sum(parameter.nbytes for parameter in trained)
        with warnings.catch_warnings():
            # The names of arguments change with torch's version.
            warnings.simplefilter("ignore", FutureWarning)
            module = DistributedDataParallel(
                network,
                broadcast_buffers=False,
                find_unused_parameters=may_skip,
                gradient_as_bucket_view=True,
                init_sync=False,
            )
        if self._on_host:  # a lambda, as PyTorch refuses annotations that are strings
            module.register_comm_hook(self._values, lambda *bucket: average_bucket(*bucket))
        return module

    @contextmanager
    def averaging(self) -> Iterator[None]:
        """Open a context for a backward pass, which averages gradients over members."""
        with self.exchanging("all-reduce"):
            yield
        self.count_averaging()

    def count_averaging(self) -> None:
        """Count the bytes with which members average the gradients of a backward pass."""
        self._count_all_reduce(self._gradient_bytes)

    def average(self, values: torch.Tensor) -> None:
        """Overwrite flat values by their mean over the members. Collective."""
        with self.exchanging("all-reduce"):
            if self._on_host:
                average_together([values], self._values)
            else:
                torch.distributed.all_reduce(values)
                values /= self.size
        self._count_all_reduce(values.nbytes)

    def _count_all_reduce(self, nbytes: int) -> None:
        # Each of N members sends 2 (N-1) / N of all values.
        self.membership.count(2 * (self.size - 1) * nbytes)

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite tensors with the leader's values. Collective."""
        small: list[torch.Tensor] = []
        with self.exchanging("broadcast"):
            for tensor in tensors:
                if tensor.nbytes >= PACK_BYTES:
                    # All members send as many messages, however their tensors lie in memory.
                    self._broadcast_large(tensor)
                    continue
                if small and (
                    tensor.dtype != small[0].dtype
                    or sum(other.nbytes for other in small) >= PACK_BYTES
                ):
                    self._broadcast_packed(small)
                    small = []
                small.append(tensor)
            self._broadcast_packed(small)

    def _broadcast_large(self, tensor: torch.Tensor) -> None:
        if tensor.is_contiguous():
            self._broadcast(tensor)
        else:
            self._broadcast_packed([tensor])

    def _broadcast(self, tensor: torch.Tensor) -> None:
        # As bytes, because gloo and NumPy lack some dtypes.
        values = tensor.detach().view(-1).view(torch.uint8)
        if self._on_host:
            self._values.broadcast(values.numpy(), root=0)
        else:
            torch.distributed.broadcast(values, src=0)
        self.membership.count((self.size - 1) * tensor.nbytes)

    def _broadcast_packed(self, tensors: list[torch.Tensor]) -> None:
        if not sum(tensor.numel() for tensor in tensors):
            return
        pack = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._broadcast(pack)
        if self.leads:
            return
        parts = pack.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))

    @contextmanager
    def exchanging(self, call: str) -> Iterator[None]:
        """Note a wait for the group's members in a block that exchanges with them.

        Raises IstmpiError if a member is gone.
        """
        with self._inside.waiting(call, library="torch"), self.naming_lost_member():
            yield

    @contextmanager
    def naming_lost_member(self) -> Iterator[None]:
        """Raise IstmpiError in place of PyTorch's error in a block if a member is gone."""
        try:
            yield
        except RuntimeError as error:
            if not _is_lost_connection(error):
                raise
            others = [rank for rank in self._inside.ranks if rank != self.membership.world.rank]
            raise IstmpiError(
                f"a process of its replica group is gone ({list_first(others)}): its connection "
                "broke. See its error message, or the launcher's."
            ) from error


def _leave_earlier_group() -> None:
    """Leave the group of a program's earlier job. Raises ConfigError if the program made one."""
    if ReplicaGroup._is_open:
        torch.distributed.destroy_process_group()
    elif torch.distributed.is_initialized():
        raise ConfigError(
            "init_process_group was called, and istmpi makes the process group of a replica "
            "group. Leave this call out."
        )


LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",  # NCCL
)
"""Words of PyTorch's errors if a member is gone."""


def _is_lost_connection(error: RuntimeError) -> bool:
    return any(words in str(error) for words in LOST)


def average_bucket(members: Communicator, bucket: GradBucket) -> Future[torch.Tensor]:
    """Return a bucket of gradients, averaged over the members of a group."""
    # decision 86: the backward pass waits; a thread that moved bytes would take a member's core.
    gradients = bucket.buffer()
    average_together([gradients], members)
    averaged: Future[torch.Tensor] = Future()
    averaged.set_result(gradients)
    return averaged
