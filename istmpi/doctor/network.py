"""Checks the network between the hosts: its interfaces, and that every rank hears every other."""

import fcntl
import os
import socket
import struct
from pathlib import Path

from istmpi.comm import Communicator
from istmpi.comm.loopback import INTERFACES, LOOPBACK
from istmpi.doctor.finding import Finding, green, red, yellow

_INFINIBAND = Path("/sys/class/infiniband")
_SIOCGIFADDR = 0x8915  # Linux: the request for an interface's address
CHOICES = (
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_btl_tcp_if_exclude",
    "FI_TCP_IFACE",
    INTERFACES,
)


def check_interfaces(communicator: Communicator) -> list[Finding]:
    """Return the finding on interfaces: yellow if MPI might choose a wrong one. Collective."""
    interfaces = []
    for _, name in socket.if_nameindex():
        address = _address(name)
        if address and not address.startswith("127."):
            interfaces.append(f"{name} ({address})")
    fast = sorted(path.name for path in _INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []
    chosen = {name: os.environ[name] for name in CHOICES if name in os.environ}
    per_rank = communicator.allgather((socket.gethostname(), interfaces, fast))
    by_host = {host: (interfaces, fast) for host, interfaces, fast in per_rank}
    return [judge_interfaces(by_host, chosen)]


def judge_interfaces(
    by_host: dict[str, tuple[list[str], list[str]]], chosen: dict[str, str]
) -> Finding:
    """Return the finding for each host's interfaces and fast devices.

    ``chosen``: the environment variables that choose an interface.
    """
    # The first host stands for all: clusters have like hosts.
    interfaces, fast = next(iter(by_host.values()))
    fact = ", ".join(interfaces) or "loopback only"
    if fast:
        fact += f"; InfiniBand or similar: {', '.join(fast)}"
    # istmpi itself chooses the loopback for ranks of one host.
    ours = len(by_host) == 1 and chosen == {INTERFACES: LOOPBACK}
    if chosen and not ours:
        choices = ", ".join(f"{name}={value}" for name, value in chosen.items())
        return green("network", f"{fact}; chosen by {choices}")
    if len(by_host) == 1:
        return green("network", f"{fact}; all ranks are on one host")
    if len(interfaces) > 1 and not fast:
        cure = (
            f"bin/istmpi-run --interface NAME sets {', '.join(CHOICES[::2])}; "
            "NAME is the interface between the hosts."
        )
        return yellow("network", f"{fact}; MPI may choose a slow or unconnected interface", cure)
    return green("network", fact)


def describe_ring(silent: list[tuple[int, int]]) -> Finding:
    """Return the finding on the handshake of all ranks.

    ``silent``: pairs of a listener and a silent rank.
    """
    if not silent:
        return green("ring", "all ranks can reach each other")
    pairs = []
    for listener, speaker in silent[:8]:
        pairs.append(f"rank {listener} receives nothing from rank {speaker}")
    fact = "; ".join(pairs)
    if len(silent) > 8:
        fact += f" and {len(silent) - 8} more pairs"
    cure = (
        "Open all TCP ports between these hosts, or give the right interface: "
        "bin/istmpi-run --interface NAME. Checks that need all ranks were skipped."
    )
    return red("ring", fact, cure)


def _address(name: str) -> str:
    """Return an interface's IPv4 address; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("256s", name.encode()[:15])  # a struct ifreq: the name, then space
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])  # sin_addr in the sockaddr_in behind the name
