"""Latency for benchmarks/cluster: a process that forwards Ethernet frames between pairs of interfaces, later.

    python -m benchmarks.latency --delay 0.0125 --jitter 0.002 --loss 0.001 --counts FILE port0:lag0 port1:lag1

A pair is a host's port and the interface behind which the bridge is. A frame between two hosts passes two pairs, so a
round trip waits four times. Frames of one direction keep their order. Only frames from a port to its bridge are lost,
so a frame is lost at most once. The process ends at SIGTERM; FILE then says what became of the frames, as JSON.

The kernel's own netem does this better; many kernels of small machines are built without it.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import fcntl
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

ALL_PROTOCOLS = 3
LONGEST_FRAME = 70_000
FRAMES_AT_ONCE = 64
"""Frames that are read from an interface before others have their turn."""
BUFFER_BYTES = 256 * 2**20
BETWEEN_COUNTS = 1.0
"""Seconds from one writing of the counts to the next."""
SO_RCVBUFFORCE = 33
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP = 1
PACKET_STATISTICS = 6
PACKET_MR_PROMISC = 1
PACKET_OUTGOING = 4
"""Constants of Linux's packet(7), which Python's socket does not have."""
SIOCETHTOOL = 0x8946
OFFLOADS = {
    "receive checksums": 0x15,
    "send checksums": 0x17,
    "TCP segmentation": 0x1F,
    "generic segmentation": 0x24,
    "generic receive": 0x2C,
}
"""Commands of ethtool that switch a feature on or off."""


def switch_offloads_off(interface: str) -> None:
    """Have an interface of this namespace carry only frames as they are on a wire: not longer than its MTU, with a
    checksum."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS.values():
            value = array.array("B", struct.pack("II", command, 0))
            address, _ = value.buffer_info()
            request = struct.pack("16sP", interface.encode(), address)
            try:
                fcntl.ioctl(control, SIOCETHTOOL, request)
            except OSError as error:
                # Some features cannot be switched on some interfaces; then they are not in use.
                if error.errno not in (95, 22):
                    raise


@dataclass
class Wire:
    """One direction of a pair: frames that have arrived at one interface, and leave by the other one."""

    arrives: socket.socket
    leaves: socket.socket
    may_lose: bool
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    """Frames in order, each with the time at which it leaves."""


class Forwarder:
    """Forwards the frames of pairs of interfaces. Seconds, and a probability of loss."""

    def __init__(self, pairs: list[str], delay: float, jitter: float, loss: float, seed: int):
        self._delay = delay
        self._jitter = jitter
        self._loss = loss
        self._random = random.Random(seed)
        self._counts = dict.fromkeys(("arrived", "forwarded", "lost", "queue full", "overrun"), 0)
        self._wires: dict[int, Wire] = {}
        for pair in pairs:
            port, _, lag = pair.partition(":")
            from_port = tap_interface(port)
            from_bridge = tap_interface(lag)
            self._wires[from_port.fileno()] = Wire(arrives=from_port, leaves=from_bridge, may_lose=True)
            self._wires[from_bridge.fileno()] = Wire(arrives=from_bridge, leaves=from_port, may_lose=False)

    def turn(self) -> None:
        """Wait for a frame, or for the time of one that leaves; then take and send what can be."""
        # select's timeout has microseconds; that of poll has milliseconds, which four waits would show.
        ready, _, _ = select.select(list(self._wires), [], [], self._time_to_wait())
        for number in ready:
            self._take(self._wires[number])
        now = time.monotonic()
        for wire in self._wires.values():
            while wire.waiting and wire.waiting[0][0] <= now:
                _, frame = wire.waiting.popleft()
                self._send(wire, frame)

    def count(self) -> dict[str, int]:
        """Return how many frames arrived, were forwarded, were lost as asked, met a full queue of the line, and were
        overrun: those arrived while a socket's buffer was full, which is a fault of the emulation."""
        for wire in self._wires.values():
            # The kernel counts from one call to the next.
            statistics = wire.arrives.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
            _, dropped = struct.unpack("II", statistics)
            self._counts["overrun"] += dropped
        return dict(self._counts)

    def _time_to_wait(self) -> float:
        first = [wire.waiting[0][0] for wire in self._wires.values() if wire.waiting]
        if not first:
            return 1.0
        return max(min(first) - time.monotonic(), 0.0)

    def _take(self, wire: Wire) -> None:
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame, address = wire.arrives.recvfrom(LONGEST_FRAME)
            except BlockingIOError:
                return
            if address[2] == PACKET_OUTGOING:
                # The socket also sees what this process sends.
                continue
            self._counts["arrived"] += 1
            if wire.may_lose and self._random.random() < self._loss:
                self._counts["lost"] += 1
                continue
            leaves_at = time.monotonic() + self._delay + self._random.uniform(-self._jitter, self._jitter)
            if wire.waiting:
                leaves_at = max(leaves_at, wire.waiting[-1][0])
            wire.waiting.append((leaves_at, frame))

    def _send(self, wire: Wire, frame: bytes) -> None:
        try:
            wire.leaves.send(frame)
        except OSError:
            # The token bucket of the line is full, as a router's queue may be.
            self._counts["queue full"] += 1
        else:
            self._counts["forwarded"] += 1


def tap_interface(name: str) -> socket.socket:
    """Return a socket that reads and sends all frames of an interface."""
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    tap.bind((name, 0))
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    membership = struct.pack("iHHQ", socket.if_nametoindex(name), PACKET_MR_PROMISC, 0, 0)
    tap.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, membership)
    tap.setblocking(False)
    return tap


def measure_round_trips(address: str, times: int = 9) -> list[float]:
    """Return the seconds in which a host answers ICMP echo requests, sorted. Needs root.

    Requests that get no answer within 2 s are left out. Raises TimeoutError if none gets one.
    """
    seconds = []
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as icmp:
        icmp.settimeout(2)
        for number in range(times):
            request = _echo_request(os.getpid() & 0xFFFF, number)
            start = time.perf_counter()
            icmp.sendto(request, (address, 0))
            with contextlib.suppress(TimeoutError):
                _wait_for_answer(icmp, request)
                seconds.append(time.perf_counter() - start)
    if not seconds:
        raise TimeoutError(f"{address} answers no ICMP echo request")
    return sorted(seconds)


def _wait_for_answer(icmp: socket.socket, request: bytes) -> None:
    while True:
        answer = icmp.recv(2048)
        # After the IP header: the kind, 0 for an answer; then the request's identifier and number.
        if answer[20] == 0 and answer[24:28] == request[4:8]:
            return


def _echo_request(identifier: int, number: int) -> bytes:
    payload = bytes(48)
    unsigned = struct.pack("!BBHHH", 8, 0, 0, identifier, number) + payload
    words = struct.unpack(f"!{len(unsigned) // 2}H", unsigned)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBHHH", 8, 0, ~total & 0xFFFF, identifier, number) + payload


def run_before_others() -> None:
    """Have this process run before others, if it may: ranks that compute would delay frames by their time slices."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def write_counts(file: Path, forwarder: Forwarder) -> None:
    """Write the counts so that whoever reads the file meanwhile has all of them."""
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(forwarder.count()), encoding="utf-8")
    beside.replace(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", metavar="PORT:LAG", help="interfaces of this namespace")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that a frame waits at a pair (0)")
    parser.add_argument("--jitter", type=float, default=0.0, help="seconds more or less, evenly distributed (0)")
    parser.add_argument("--loss", type=float, default=0.0, help="probability that a frame from a port is lost (0)")
    parser.add_argument("--seed", type=int, default=0, help="of jitter and loss (0)")
    parser.add_argument("--counts", type=Path, help="the file for what became of the frames")
    parser.add_argument("--no-offloads", metavar="INTERFACE", nargs="*", help="only switch their offloads off")
    parser.add_argument(
        "--ping", metavar="ADDRESS", help="only print the milliseconds of round trips: least, middle, most"
    )
    options = parser.parse_args()
    if options.no_offloads is not None:
        for interface in options.no_offloads:
            switch_offloads_off(interface)
        return
    if options.ping:
        milliseconds = [1000 * seconds for seconds in measure_round_trips(options.ping)]
        print(milliseconds[0], milliseconds[len(milliseconds) // 2], milliseconds[-1])
        return
    stopped = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_before_others()
    forwarder = Forwarder(options.pairs, options.delay, options.jitter, options.loss, options.seed)
    print("ready", flush=True)
    next_count = time.monotonic()
    while not stopped:
        forwarder.turn()
        if options.counts and time.monotonic() >= next_count:
            next_count = time.monotonic() + BETWEEN_COUNTS
            write_counts(options.counts, forwarder)
    if options.counts:
        write_counts(options.counts, forwarder)


if __name__ == "__main__":
    sys.exit(main())
