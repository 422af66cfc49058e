"""What a cluster can do: its network as latency and bandwidth (α, β), its ranks as FLOP/s; given, preset or measured.

    {"format": "istmpi cluster", "version": 1, "name": ..., "flops": [...], "links": {"alltoallv": {...}, ...}, ...}

`istmpi calibrate` writes such a file, with the measurements that the figures were fitted to.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from istmpi.errors import ConfigError, DataError, OutputError, did_you_mean

FORMAT = "istmpi cluster"
VERSION = 1


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes ``latency + n · seconds_per_byte``."""

    latency: float
    seconds_per_byte: float

    @property
    def bandwidth(self) -> float:
        """Bytes a second; infinite where nothing is ever sent."""
        return 1 / self.seconds_per_byte if self.seconds_per_byte else float("inf")


@dataclass(frozen=True)
class Cluster:
    """One rank's share of a cluster; all times in seconds."""

    name: str
    source: str
    """Where the figures come from."""
    links: Mapping[str, Link]
    """``alltoallv`` times transfers, ``allreduce`` all-reduces."""
    flops: tuple[float, ...]
    """FLOP/s of a rank in matrix products; one number for all ranks, or one a rank."""
    product_seconds: float = 0.0
    """Every matrix product takes so long beside its FLOPs."""
    step_seconds: float = 0.0
    """Every local step takes so long beside what depends on sizes."""
    touch_seconds_per_byte: float = 0.0
    """Of what passes through memory in a step beside the matrix products."""
    handle_seconds_per_byte: float = 0.0
    """Of what is packed, unpacked or copied in a transfer."""
    average_seconds_per_byte: float = 0.0
    """Of copies that an owner takes the mean of, beside unpacking them."""
    transfer_seconds: float = 0.0
    """Every transfer takes so long beside its messages."""
    deal_seconds: float = 0.0
    """Every round that deals and plans anew takes so long for it."""
    memory: float | None = None
    """Bytes for one rank."""
    price: float | None = None
    """Of one node for an hour; a node is a rank."""
    watts: float | None = None
    """Of one node."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """The measurements, for whoever wants to see them."""

    def speed(self, ranks: range) -> float:
        """FLOP/s of the slowest of these ranks."""
        return self.flops[0] if len(self.flops) == 1 else min(self.flops[ranks.start : ranks.stop])

    def check(self, ranks: int) -> None:
        """Refuse a number of ranks for which FLOP/s are not given."""
        if len(self.flops) not in (1, ranks):
            raise ConfigError(
                f"--flops has {len(self.flops)} numbers but there are {ranks} ranks; give one, or one each."
            )

    def save(self, path: Path) -> None:
        """Write it as a file that `load` reads."""
        tree = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        try:
            path.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror}).") from None


def load(path: Path) -> Cluster:
    """A cluster of a file; DataError for one that is missing, damaged, or of another version."""
    again = "Make it anew: mpirun -n P istmpi calibrate."
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cluster file {path}: cannot be read ({error.strerror}). {again}") from None
    except ValueError:
        raise DataError(f"cluster file {path}: is not JSON. {again}") from None
    if not isinstance(tree, dict) or tree.pop("format", None) != FORMAT:
        raise DataError(f"cluster file {path}: is not a cluster file of istmpi's. {again}")
    version = tree.pop("version", None)
    if version != VERSION:
        raise DataError(f"cluster file {path}: has version {version}, this istmpi reads version {VERSION}. {again}")
    try:
        tree["links"] = {name: Link(**link) for name, link in tree["links"].items()}
        tree["flops"] = tuple(map(float, tree["flops"]))
        cluster = Cluster(**tree)
        positive = all(flops > 0 for flops in cluster.flops) and {"alltoallv", "allreduce"} <= {*cluster.links}
    except (KeyError, TypeError, ValueError, AttributeError):
        positive = False
    if not positive:
        raise DataError(f"cluster file {path}: is damaged. {again}")
    return cluster


def network(latency: float, bandwidth: float) -> dict[str, Link]:
    """The links of a network: seconds a message, bytes a second, in each direction."""
    link = Link(latency, 1 / bandwidth)
    return {"alltoallv": link, "allreduce": link}


def preset(name: str) -> Cluster:
    """A cluster by name; ConfigError with the nearest name when there is none."""
    if name not in PRESETS:
        raise ConfigError(f"cluster {name} is neither a preset nor a file{did_you_mean(name, PRESETS)}")
    return PRESETS[name]


def _preset(
    name: str, source: str, gigabits: float, latency: float, flops: float = 250e9, **settings: float
) -> tuple[str, Cluster]:
    return name, Cluster(name, source, network(latency, gigabits * 1e9 / 8), (flops,), **settings)


PRESETS: dict[str, Cluster] = dict(
    [
        _preset(
            "m5.2xlarge",
            "8 vCPU, 32 GiB; 2.5 Gbit/s baseline, 10 Gbit/s in bursts; FLOP/s assumed; on-demand price recalled",
            2.5,
            100e-6,
            250e9,
            memory=32 * 2**30,
            price=0.384,
        ),
        _preset(
            "p3.2xlarge",
            "one V100 of 16 GB; 2.5 Gbit/s baseline, 10 Gbit/s in bursts; three quarters of 15.7 TFLOP/s assumed; "
            "on-demand price recalled",
            2.5,
            100e-6,
            11.8e12,
            memory=16e9,
            price=3.06,
        ),
        _preset("1gbit", "nominal rate; latency and FLOP/s assumed", 1, 100e-6),
        _preset("10gbit", "nominal rate; latency and FLOP/s assumed", 10, 50e-6),
        _preset("25gbit", "nominal rate; latency and FLOP/s assumed", 25, 20e-6),
        _preset("100gbit", "nominal rate; latency and FLOP/s assumed", 100, 5e-6),
        _preset("home", "40 Mbit/s up, 20 ms, a desktop's FLOP/s: all assumed", 0.04, 20e-3, 200e9),
    ]
)
