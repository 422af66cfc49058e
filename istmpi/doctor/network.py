"""Checks the network between the hosts: its interfaces, and whether every rank hears every
other."""

import fcntl
import os
import socket
import struct
from pathlib import Path

from istmpi.comm import Communicator
from istmpi.doctor.finding import Finding, green, red, yellow

_INFINIBAND = Path("/sys/class/infiniband")
_SIOCGIFADDR = 0x8915
CHOICES = (
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_btl_tcp_if_exclude",
    "FI_TCP_IFACE",
    "UCX_NET_DEVICES",
)


def interfaces(communicator: Communicator) -> list[Finding]:
    """Return the finding on network interfaces: yellow if MPI might choose a wrong interface.
    Collective."""
    addresses = {name: _address(name) for _, name in socket.if_nameindex()}
    here = [f"{name} ({at})" for name, at in addresses.items() if at and not at.startswith("127.")]
    fast = sorted(path.name for path in _INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []
    chosen = {name: os.environ[name] for name in CHOICES if name in os.environ}
    per_rank = communicator.allgather((socket.gethostname(), here, fast))
    return [judged({host: (its, fast) for host, its, fast in per_rank}, chosen)]


def judged(by_host: dict[str, tuple[list[str], list[str]]], chosen: dict[str, str]) -> Finding:
    interfaces, fast = next(iter(by_host.values()))
    fact = ", ".join(interfaces) or "loopback only"
    fact += f"; InfiniBand or similar: {', '.join(fast)}" * bool(fast)
    if chosen:
        return green(
            "network",
            f"{fact}; chosen by {', '.join(f'{name}={value}' for name, value in chosen.items())}",
        )
    if len(by_host) == 1:
        return green("network", f"{fact}; all ranks are on one host")
    cure = (
        "bin/istmpi-run --interface NAME sets "
        + ", ".join(CHOICES[::2])
        + "; NAME is the interface between the hosts."
    )
    if len(interfaces) > 1 and not fast:
        return yellow("network", f"{fact}; MPI may choose a slow or unconnected interface", cure)
    return green("network", fact)


def ring(silent: list[tuple[int, int]]) -> Finding:
    """Return the finding on the handshake of all ranks; ``silent``: pairs of a listener and a
    silent rank."""
    if not silent:
        return green("ring", "all ranks can reach each other")
    pairs = [
        f"rank {listener} receives nothing from rank {speaker}" for listener, speaker in silent[:8]
    ]
    more = f" and {len(silent) - 8} more pairs" * (len(silent) > 8)
    cure = (
        "Open all TCP ports between these hosts, or give the right interface: bin/istmpi-run --interface "
        "NAME. Checks that need all ranks were skipped."
    )
    return red("ring", f"{'; '.join(pairs)}{more}", cure)


def _address(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
