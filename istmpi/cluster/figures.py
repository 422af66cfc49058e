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

from istmpi.errors import ConfigError, did_you_mean
from istmpi.files import appearing
from istmpi.foreign import Fields, is_figure, printable

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
        return 1 / self.seconds_per_byte if self.seconds_per_byte else float("inf")


@dataclass(frozen=True)
class Cluster:
    """A cluster's speeds, measured or assumed; all times are in seconds."""

    name: str
    source: str
    links: Mapping[str, Link]
    """The link ``alltoallv`` gives the time of transfers, the link ``allreduce`` the time of
    all-reduces."""
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
    """The time of a round to deal units, plan transfers and let ranks agree."""
    beside: float = 1.0
    """1 if local steps hide transfers; 0 on one host, where the ranks' cores copy the messages."""
    memory: float | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)

    def speed(self, ranks: range) -> float:
        return self.flops[0] if len(self.flops) == 1 else min(self.flops[ranks.start : ranks.stop])

    def check(self, ranks: int) -> None:
        if len(self.flops) not in (1, ranks):
            raise ConfigError(
                f"--flops has {len(self.flops)} numbers for {ranks} ranks; give one number, or one for each rank."
            )

    def save(self, path: Path) -> None:
        tree = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        with appearing(path) as file:
            file.write(json.dumps(tree, indent=1).encode() + b"\n")


def load(path: Path) -> Cluster:
    file = Fields.read(path, f"cluster file {path}", "Create it again: mpirun -n P istmpi measure.")
    if "format" not in file or file.value("format") != FORMAT:
        raise file.refused(
            "format", file.value("format") if "format" in file else None, f"must be {FORMAT!r}"
        )
    if file.value("version") != VERSION:
        raise file.refused(
            "version", file.value("version"), f"must be {VERSION}, the version of this istmpi"
        )
    earlier = {"price", "watts"}  # of earlier versions
    _require_known(
        file, {"format", "version", *earlier, *(entry.name for entry in fields(Cluster))}
    )
    named = {"alltoallv", "allreduce"}
    links = {
        name: _link(file.inner("links").inner(name))
        for name in sorted({*file.inner("links")} | named)
    }
    flops = file.value("flops")
    if not isinstance(flops, list) or not flops or not all(is_figure(speed, 1) for speed in flops):
        raise file.refused("flops", flops, "must be a list of numbers of at least 1")
    extras = {name: file.figure(name, 0) for name in (*_SECONDS, "beside") if name in file}
    if "memory" in file and file.value("memory") is not None:
        extras["memory"] = file.figure("memory", LEAST)
    measured = file.value("measured") if "measured" in file else {}
    return Cluster(
        file.text("name"),
        file.text("source"),
        links,
        tuple(map(float, flops)),
        **extras,
        measured=measured,
    )


def _link(file: Fields) -> Link:
    _require_known(file, {entry.name for entry in fields(Link)})
    return Link(file.figure("latency", 0), file.figure("seconds_per_byte", 0))


def _require_known(file: Fields, names: set[str]) -> None:
    for key in file:
        if key not in names:
            raise file.refused(printable(key), file.value(key), "is not a key of a cluster file")


_SECONDS = tuple(entry.name for entry in fields(Cluster) if "seconds" in entry.name)


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
    return Cluster(name, source, network(latency, gigabits * 1e9 / 8), (flops,), memory=memory)


_AWS, _NOMINAL = (
    "2.5 Gbit/s baseline, 10 Gbit/s in bursts",
    "nominal rate; latency and FLOP/s assumed",
)
_ALL = (
    _preset(
        "m5.2xlarge", f"8 vCPU, 32 GiB; {_AWS}; FLOP/s assumed", 2.5, 100e-6, 250e9, 32 * 2**30
    ),
    _preset(
        "p3.2xlarge",
        f"one V100 of 16 GB; {_AWS}; 3/4 of 15.7 TFLOP/s assumed",
        2.5,
        100e-6,
        11.8e12,
        16e9,
    ),
    _preset("1gbit", _NOMINAL, 1, 100e-6, 250e9),
    _preset("10gbit", _NOMINAL, 10, 50e-6, 250e9),
    _preset("25gbit", _NOMINAL, 25, 20e-6, 250e9),
    _preset("100gbit", _NOMINAL, 100, 5e-6, 250e9),
    _preset("home", "40 Mbit/s up, 20 ms, a desktop's FLOP/s: all assumed", 0.04, 20e-3, 200e9),
)
PRESETS: dict[str, Cluster] = {cluster.name: cluster for cluster in _ALL}


def fit(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], float]:
    """Fit seconds by columns with nonnegative coefficients; return the coefficients and the median
    relative error.

    The fit minimises relative errors. A negative coefficient is set to zero, and the others are
    fitted again.
    """
    table, measured = np.array(columns, dtype=float).T, np.array(seconds, dtype=float)
    used = list(range(table.shape[1]))
    coefficients = np.zeros(table.shape[1])
    while used:
        weighted = table[:, used] / measured[:, None]
        scale = np.abs(weighted).max(axis=0)
        scale[scale == 0] = 1
        solution = np.linalg.lstsq(weighted / scale, np.ones(len(measured)), rcond=None)[0] / scale
        if (solution >= 0).all():
            coefficients[used] = solution
            break
        used.pop(int(np.argmin(solution * scale)))
    error = float(np.median(np.abs(table @ coefficients / measured - 1)))
    return coefficients.tolist(), error
