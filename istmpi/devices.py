"""Chooses a rank's device and its share of the host's cores, and moves a network to a device."""

import os
from fractions import Fraction

import torch
from torch import nn

from istmpi.comm import Communicator, list_neighbours
from istmpi.environment import list_cores
from istmpi.errors import ConfigError

HOST = torch.device("cpu")

# A pull fills fresh tensors: with pages of 2 MiB the kernel hands them over in half the time. torch
# reads this when it first allocates; a user's own setting stands.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def find_place(communicator: Communicator) -> int:
    """Return the number of this rank among those of its host. Collective as `find_members`."""
    return [member.rank for member in list_neighbours(communicator)].index(communicator.rank)


def choose_device(choice: str, place: int) -> torch.device:
    """Return this rank's device.

    The ranks of a host take its CUDA devices in turn, by their `find_place`, if there are any.
    ``choice``: auto, cpu or cuda. Raises ConfigError for cuda without a device.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "train.device = 'cuda' but this rank's host has no usable CUDA device. Use cpu or auto."
        )
    if choice == "cpu" or not torch.cuda.is_available():
        return HOST
    return torch.device("cuda", place % torch.cuda.device_count())


def with_room(device: torch.device, nbytes: float) -> torch.device:
    """Return ``device``, or the CPU if ``device`` is a GPU with less than twice ``nbytes`` free."""
    if device.type != "cuda":
        return device
    # Room for the network, and as much again for activations.
    free, _ = torch.cuda.mem_get_info(device)
    if free < 2 * nbytes:
        return HOST
    return device


def fair_threads(communicator: Communicator) -> int:
    """Return this rank's number of cores, at least 1.

    A host's ranks divide shared cores. Collective as `find_members`.
    """
    neighbours = list_neighbours(communicator)
    share = Fraction(0)
    for core in list_cores():
        sharers = [member for member in neighbours if member.cores >> core & 1]
        share += Fraction(1, max(len(sharers), 1))
    return max(int(share), 1)


def choose_threads(choice: int, communicator: Communicator) -> int:
    """Set and return this rank's threads.

    They are ``choice``, else OMP_NUM_THREADS, else a share of the cores. Collective as
    `find_members`.
    """
    shared = fair_threads(communicator)
    threads = choice or _threads_of_openmp() or shared
    torch.set_num_threads(threads)
    return threads


def _threads_of_openmp() -> int:
    # It may be a list: threads of the outermost level, of the next level, ...
    outermost, _, _ = os.environ.get("OMP_NUM_THREADS", "").partition(",")
    outermost = outermost.strip()
    if outermost.isascii() and outermost.isdecimal():
        return int(outermost)
    return 0


def to_empty(network: nn.Module, device: torch.device | str) -> nn.Module:
    """Move a network to a device; tensors from the meta device get memory with undefined values.

    ``Module.to_empty`` is not used, because it imports all of torch's decompositions, which takes
    seconds.
    """
    moved: dict[int, nn.Parameter] = {}
    for module in network.modules():
        for key, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                # A parameter of several modules stays one parameter.
                if id(parameter) not in moved:
                    values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                    moved[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
                # setattr, because a recurrent layer has them in a list as well.
                setattr(module, key, moved[id(parameter)])
        for key, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta:
                module._buffers[key] = torch.empty_like(buffer, device=device)
    return network.to(device)
