"""Checks the network between the hosts: its interfaces, and that every rank hears every other."""

import fcntl
import os
import socket
import struct
from pathlib import Path

from istmpi.comm import Communicator
from istmpi.comm.loopback import INTERFACES, LOOPBACK
from istmpi.doctor.finding import Finding, green, red, yellow
from istmpi.units import list_first

_INFINIBAND = Path("/sys/class/infiniband")
_SIOCGIFADDR = 0x8915  # Linux: the request for an interface's address
EXCLUDE = "OMPI_MCA_btl_tcp_if_exclude"
CHOICES = (
    "OMPI_MCA_btl_tcp_if_include",
    EXCLUDE,
    "FI_TCP_IFACE",
    INTERFACES,
)


def check_interfaces(communicator: Communicator) -> list[Finding]:
    """Return the finding on interfaces: yellow if MPI might choose a wrong one, red if a host lacks
    the chosen one. Collective."""
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
    # Clusters have like hosts, so the first one is described.
    interfaces, fast = next(iter(by_host.values()))
    fact = ", ".join(interfaces) or "loopback only"
    if fast:
        fact += f"; InfiniBand or similar: {', '.join(fast)}"
    # istmpi itself chooses the loopback for ranks of one host.
    ours = len(by_host) == 1 and chosen == {INTERFACES: LOOPBACK}
    cure = (
        f"bin/istmpi-run --interface NAME sets {', '.join(CHOICES[::2])}; "
        "NAME is the interface between the hosts."
    )
    if chosen and not ours:
        choices = ", ".join(f"{name}={value}" for name, value in chosen.items())
        lacking = _find_lacking(by_host, chosen)
        if lacking:
            return red("network", f"{lacking}, but {choices}; {fact}", cure)
        return green("network", f"{fact}; chosen by {choices}")
    if len(by_host) == 1:
        return green("network", f"{fact}; all ranks are on one host")
    for host, (several, fast_here) in by_host.items():
        if len(several) > 1 and not fast_here:
            fact = f"{host}: {', '.join(several)}; MPI may choose a slow or unconnected interface"
            return yellow("network", fact, cure)
    return green("network", fact)


def _find_lacking(by_host: dict[str, tuple[list[str], list[str]]], chosen: dict[str, str]) -> str:
    """Return which hosts lack a chosen interface, in words; empty if none does."""
    for name in _read_names(chosen):
        hosts = []
        for host, (interfaces, fast) in by_host.items():
            if name not in [*fast, *(interface.split()[0] for interface in interfaces)]:
                hosts.append(host)
        if hosts:
            return f"{name} is not on {list_first(hosts)}"
    return ""


def _read_names(chosen: dict[str, str]) -> list[str]:
    """Return the names of interfaces and devices that variables choose."""
    names = []
    for variable, value in chosen.items():
        if variable == EXCLUDE or value.startswith("^"):
            continue
        # UCX adds a device's port to its name.
        names += [name.split(":")[0] for name in value.split(",")]
    # Networks, as 10.0.0.0/24, and UCX's word for all devices are no names.
    return [name for name in names if "/" not in name and name not in ("all", LOOPBACK)]


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
