"""The figures of a cluster: latency and bandwidth (α, β) of its network, FLOP/s of its ranks.

`istmpi measure` writes them into a file, with the measurements that they were fitted to.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.comm.at_once import count_trips
from istmpi.errors import ConfigError, did_you_mean
from istmpi.files import appearing
from istmpi.foreign import Fields, is_figure, is_file, printable

FORMAT = "istmpi cluster"
VERSION = 1
LEAST = 1e-9


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes ``latency + n · seconds_per_byte``."""

    latency: float
    seconds_per_byte: float

    @property
    def bandwidth(self) -> float:
        """Bytes a second; infinite if a byte takes no time."""
        if not self.seconds_per_byte:
            return float("inf")
        return 1 / self.seconds_per_byte


@dataclass(frozen=True)
class Cluster:
    """A cluster's speeds, measured or assumed; all times are in seconds."""

    name: str
    source: str
    links: Mapping[str, Link]
    """The link ``alltoallv`` gives the time of transfers, the link ``allreduce`` the time of
    all-reduces. The link ``allgather``, in whose messages ranks pass on what others sent, may be
    missing, as in files of earlier versions."""
    flops: tuple[float, ...]
    """FLOP/s in matrix products: one number for all ranks, or one for each."""
    product_seconds: float = 0.0
    """The time of every matrix product in addition to its FLOPs."""
    step_seconds: float = 0.0
    """The time of every local step that does not depend on sizes."""
    touch_seconds_per_byte: float = 0.0
    """The time for each byte that a step moves outside matrix products."""
    handle_seconds_per_byte: float = 0.0
    """The time for each byte that a transfer packs, unpacks or copies."""
    average_seconds_per_byte: float = 0.0
    """The time for each byte of copies that an owner averages, in addition to unpacking."""
    transfer_seconds: float = 0.0
    """The time of every transfer in addition to its messages."""
    deal_seconds: float = 0.0
    """The time of a round to deal units and plan transfers, of waits for late ranks, and of first
    steps, which are slower after a pause."""
    call_seconds: float = 0.0
    """The time of a collective call in which all ranks tell each other a few facts; 0 if it was not
    measured."""
    save_seconds: float = 0.0
    """The time of a save in addition to its messages, in which rank 0 makes, syncs and names a
    file; 0 if it was not measured, as in files of earlier versions."""
    evaluation_seconds: float = 0.0
    """The time of every evaluation on rank 0 that does not depend on sizes."""
    alone_seconds_per_value: float = 0.0
    """The time of each value that a layer returns in an evaluation on rank 0, in addition to
    FLOPs."""
    alone_seconds_per_flop: float = 0.0
    """The time of a FLOP of an evaluation on rank 0 while the other ranks wait, so that cores that
    they share are free; 0 for both if they were not measured."""
    beside: float = 1.0
    """1 if local steps hide transfers; 0 on one host, where the ranks' cores copy the messages."""
    inside: Link = Link(50e-6, 0.5e-9)
    """The network between the members of a replica group: 2 GB/s, assumed."""
    memory: float | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)

    def find_link(self, name: str) -> Link:
        """Return a link; that of transfers if it was not measured."""
        return self.links.get(name, self.links["alltoallv"])

    def speed(self, ranks: range) -> float:
        """Return the FLOP/s of the slowest of some ranks."""
        if len(self.flops) == 1:
            return self.flops[0]
        return min(self.flops[ranks.start : ranks.stop])

    def evaluate_alone(self, flops: float, values: float) -> float:
        """Return the seconds of passes on rank 0 alone, in which layers return ``values``."""
        seconds = flops * self.alone_seconds_per_flop + values * self.alone_seconds_per_value
        return seconds or flops / self.speed(range(1))

    def small_call(self, ranks: int) -> float:
        """Return the seconds of a collective call of small messages."""
        if self.call_seconds:
            return self.call_seconds
        # Messages of the ring of an all-reduce follow each other, so this is the time of one.
        return count_trips(ranks) * self.links["allreduce"].latency

    def check(self, ranks: int) -> None:
        if len(self.flops) not in (1, ranks):
            raise ConfigError(
                f"--flops has {len(self.flops)} numbers for {ranks} ranks; "
                "give one number, or one for each rank."
            )

    def save(self, path: Path) -> None:
        tree = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        with appearing(path) as file:
            file.write(json.dumps(tree, indent=1).encode() + b"\n")


def load(path: Path) -> Cluster:
    """Read a cluster file. Raises ConfigError if a key or a value is wrong."""
    file = Fields.read(path, f"cluster file {path}", "Create it again: mpirun -n P istmpi measure.")
    _require_format(file)
    links = {}
    for name in sorted({*file.inner("links"), "alltoallv", "allreduce"}):
        links[name] = _link(file.inner("links").inner(name))
    flops = file.value("flops")
    if not isinstance(flops, list) or not flops or not all(is_figure(speed, 1) for speed in flops):
        raise file.refused("flops", flops, "must be a list of numbers of at least 1")
    optional: dict[str, Any] = {
        name: file.figure(name, 0) for name in (*_SECONDS, "beside") if name in file
    }
    if "inside" in file:
        optional["inside"] = _link(file.inner("inside"))
    if "memory" in file and file.value("memory") is not None:
        optional["memory"] = file.figure("memory", LEAST)
    measured: Mapping[str, Any] = {}
    if "measured" in file:
        measured = file.value("measured")
    return Cluster(
        name=file.text("name"),
        source=file.text("source"),
        links=links,
        flops=tuple(map(float, flops)),
        measured=measured,
        **optional,
    )


def _require_format(file: Fields) -> None:
    format = file.value("format") if "format" in file else None
    if format != FORMAT:
        raise file.refused("format", format, f"must be {FORMAT!r}")
    version = file.value("version")
    if version != VERSION:
        raise file.refused("version", version, f"must be {VERSION}, the version of this istmpi")
    # Files with these keys, which nothing reads any more, stay valid.
    of_earlier_versions = {"price", "watts"}
    keys = {entry.name for entry in fields(Cluster)}
    _require_known(file, {"format", "version", *of_earlier_versions, *keys})


def _link(file: Fields) -> Link:
    _require_known(file, {entry.name for entry in fields(Link)})
    return Link(file.figure("latency", 0), file.figure("seconds_per_byte", 0))


def _require_known(file: Fields, names: set[str]) -> None:
    for key in file:
        if key not in names:
            raise file.refused(printable(key), file.value(key), "is not a key of a cluster file")


_SECONDS = tuple(entry.name for entry in fields(Cluster) if "seconds" in entry.name)


def find_cluster(name: str) -> Cluster:
    """Return the cluster of a file that istmpi measure wrote, or a preset. Raises ConfigError."""
    path = Path(name)
    if name.endswith(".json") or is_file(path):
        return load(path)
    return preset(name)


def network(latency: float, bandwidth: float) -> dict[str, Link]:
    """Return a network's links from the seconds of a message, and the bytes a second in each
    direction."""
    link = Link(latency, 1 / bandwidth)
    return {"alltoallv": link, "allreduce": link}


def preset(name: str) -> Cluster:
    if name not in PRESETS:
        raise ConfigError(
            f"cluster {name} is neither a preset nor a file{did_you_mean(name, PRESETS)}"
        )
    return PRESETS[name]


def _preset(
    name: str,
    source: str,
    gigabits: float,
    latency: float,
    flops: float,
    memory: float | None = None,
) -> Cluster:
    return Cluster(
        name=name,
        source=source,
        links=network(latency, gigabits * 1e9 / 8),  # bits to bytes
        flops=(flops,),
        memory=memory,
    )


_AWS = "2.5 Gbit/s baseline, 10 Gbit/s in bursts"
_NOMINAL = "nominal rate; latency and FLOP/s assumed"
_ALL = (
    _preset(
        name="m5.2xlarge",
        source=f"8 vCPU, 32 GiB; {_AWS}; FLOP/s assumed",
        gigabits=2.5,
        latency=100e-6,
        flops=250e9,
        memory=32 * 2**30,
    ),
    _preset(
        name="p3.2xlarge",
        source=f"one V100 of 16 GB; {_AWS}; 3/4 of 15.7 TFLOP/s assumed",
        gigabits=2.5,
        latency=100e-6,
        flops=11.8e12,
        memory=16e9,
    ),
    _preset("1gbit", _NOMINAL, gigabits=1, latency=100e-6, flops=250e9),
    _preset("10gbit", _NOMINAL, gigabits=10, latency=50e-6, flops=250e9),
    _preset("25gbit", _NOMINAL, gigabits=25, latency=20e-6, flops=250e9),
    _preset("100gbit", _NOMINAL, gigabits=100, latency=5e-6, flops=250e9),
    _preset(
        name="home",
        source="40 Mbit/s up, 20 ms, a desktop's FLOP/s: all assumed",
        gigabits=0.04,
        latency=20e-3,
        flops=200e9,
    ),
)
PRESETS: dict[str, Cluster] = {cluster.name: cluster for cluster in _ALL}


def fit(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], float]:
    """Fit seconds by columns with nonnegative coefficients; return the coefficients and the median
    relative error.

    ``columns``: ``[quantity][point]``. A coefficient is the seconds for one of its quantity: a
    FLOP, a byte, a message. The fit minimises relative errors. A negative coefficient is set to
    zero, and the others are fitted again.
    """
    table = np.array(columns, dtype=float).T
    measured = np.array(seconds, dtype=float)
    used = list(range(table.shape[1]))
    coefficients = np.zeros(table.shape[1])
    while used:
        # Divided by its time, each point should give 1: a long one weighs no more than a short one.
        weighted = table[:, used] / measured[:, None]
        # Columns of bytes and of messages differ by many powers of ten.
        scale = np.abs(weighted).max(axis=0)
        scale[scale == 0] = 1
        solution = np.linalg.lstsq(weighted / scale, np.ones(len(measured)), rcond=None)[0] / scale
        if (solution >= 0).all():
            coefficients[used] = solution
            break
        # The most negative one, where all columns are scaled alike.
        used.pop(int(np.argmin(solution * scale)))
    error = float(np.median(np.abs(table @ coefficients / measured - 1)))
    return coefficients.tolist(), error
