"""Keeps a job of one host on the loopback: its ranks listen to nobody on the network.

MPICH's library listens on every interface of a host, and asks nobody who connects for a secret.
Ranks of one host send their messages through memory, so they lose nothing.
"""

import os
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from istmpi.comm.launcher import LAUNCHERS

INTERFACES = "UCX_NET_DEVICES"
"""The variable with the interfaces of UCX, which MPICH's library sends and listens through."""
LOOPBACK = "lo"
_OTHER_LAUNCHERS = ("PMI", "PALS_", "MPI_")
"""Beginnings of the variables of launchers that do not tell how many ranks started on this host."""


def stay_on_loopback(environment: MutableMapping[str, str] = os.environ) -> None:
    """Choose the loopback for MPI if all ranks of the job are on this host.

    An interface that is chosen stays.
    """
    if INTERFACES not in environment and all_on_this_host(environment) and _has_loopback():
        environment[INTERFACES] = LOOPBACK


def all_on_this_host(environment: MutableMapping[str, str]) -> bool:
    """Return True if the launcher started all ranks on this host.

    Without a launcher there is one process, so it is True, too.
    """
    for rank, size, local in LAUNCHERS.values():
        if rank in environment and size in environment:
            return environment.get(local) == environment[size]
    return not any(name.startswith(_OTHER_LAUNCHERS) for name in environment)


def _has_loopback() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.bind(("127.0.0.1", 0))
        except OSError:  # a container without one
            return False
    return True


@contextmanager
def gloo_over_loopback() -> Iterator[None]:
    """Let gloo connect processes of a host by its loopback interface, unless the user names
    another."""
    name = "GLOO_SOCKET_IFNAME"
    loopback = [interface for _, interface in socket.if_nameindex() if interface.startswith("lo")]
    if name in os.environ or not loopback:
        yield
        return
    os.environ[name] = loopback[0]
    try:
        yield
    finally:
        del os.environ[name]
