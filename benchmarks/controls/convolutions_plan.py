"""The plan of `benchmarks.controls.convolutions`: networks, methods, ranks and seeds, the most valuable cells first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

SEEDS = (0, 1, 2)
TWICE = (0, 1)
ONCE = (0,)
ROUNDS = 40
RATE_ROUNDS = 15
RATES = (0.01, 0.03, 0.1)
ONE_RANK = "one rank"
LOCAL_SGD = "local SGD"
NARROW = "narrow network, local SGD"

SETTINGS = {
    "method.local_steps": "20",
    "train.batch": "64",
    "train.threads": "1",
    "optimizer.momentum": "0.9",
    "optimizer.schedule": "cosine",
    "data.crop": "2",
    "data.flip": "true",
}
"""Of all cells."""

_LOCAL_SGD = {"method.name": "local-sgd"}
# Plain SGD with momentum: what is carried from round to round costs nothing on one rank.
_CARRIED = {"method.optimizer_state": "carry"}
_ALONE = {**_LOCAL_SGD, **_CARRIED}
_TENTH = {"method.redeal": "0.1"}
_NEVER = {"method.redeal": "0"}
_LONGER = {"method.local_steps": "36"}


@dataclass(frozen=True, eq=False)
class Network:
    """A network that ships, and its widths; ``narrow`` are the settings whose numbers a narrow network divides by P."""

    family: str
    name: str
    widths: Mapping[str, tuple[int, ...]]
    narrow: str
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.family} {self.name}".strip()

    def settings(self, divisor: int = 1) -> dict[str, str]:
        widths = {
            key: tuple(width // divisor for width in values) if key == self.narrow else values
            for key, values in self.widths.items()
        }
        written = {f"model.{key}": f"[{','.join(map(str, values))}]" for key, values in widths.items()}
        return {"model.name": self.family, **self.more, **written}


_DROPOUT = {"model.dropout": "0.2"}
THIN = Network("vgg", "thin", {"channels": (16, 32, 64, 64, 64), "dense": (512, 512)}, "dense", _DROPOUT)
RESNET = Network("resnet", "", {"blocks": (1, 1, 5), "channels": (16, 32, 64), "inner": (16, 32, 64)}, "inner")


def dealt(*groups: str) -> dict[str, str]:
    """The setting that deals out these widths."""
    return {"method.partition": "[" + ",".join(f'"{group}"' for group in groups) + "]"}


_DENSE = ("dense1", "dense2")
_LATER = tuple(f"channels{section}" for section in range(2, 6))
BUT_FIRST = dealt(*_LATER, *_DENSE)
BLOCKS = dealt("blocks3")
BOTH = dealt("blocks3", "inner1", "inner2", "inner3")


@dataclass(frozen=True, eq=False)
class Row:
    """A network, a method and a number of ranks: a line of the report. ``narrow``: a P-th of the widths that are dealt.

    A rate is given where it is what is tried; such a row is scored on the validation split.
    """

    network: Network
    method: str
    ranks: int
    given: Mapping[str, str]
    narrow: bool = False
    rate: float | None = None
    seeds: tuple[int, ...] = SEEDS

    @property
    def name(self) -> str:
        words = [self.network.title, self.method, f"p{self.ranks}", *([f"rate{self.rate}"] if self.rate else [])]
        return "-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words)

    @property
    def settings(self) -> dict[str, str]:
        return {**SETTINGS, **self.network.settings(self.ranks if self.narrow else 1), **self.given}


@dataclass(frozen=True)
class Cell:
    """A row with a seed; one run and one file."""

    row: Row
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row.name}-s{self.seed}"


@cache
def rows() -> tuple[Row, ...]:
    """All rows."""
    return (*_vgg(), *_resnet())


def _vgg() -> Iterator[Row]:
    channels = "IST, channels but the first too"
    yield Row(THIN, ONE_RANK, 1, _ALONE)
    yield Row(THIN, LOCAL_SGD, 4, _LOCAL_SGD)
    yield Row(THIN, "IST, dense layers", 4, {})
    yield Row(THIN, "IST, dense layers, a tenth redealt", 4, _TENTH, seeds=ONCE)
    yield Row(THIN, "IST, dense layers, never redealt", 4, _NEVER)
    yield Row(THIN, NARROW, 4, _LOCAL_SGD, narrow=True)
    yield Row(THIN, channels, 4, BUT_FIRST, seeds=ONCE)
    yield Row(THIN, f"{channels}, a tenth redealt", 4, {**BUT_FIRST, **_TENTH}, seeds=ONCE)


def _resnet() -> Iterator[Row]:
    """Of the last section the first block halves the image and is on every rank: four blocks can be dealt out."""
    as_long = {**BLOCKS, "model.scale": "fitted", **_LONGER}
    shallow = {**_LOCAL_SGD, "model.blocks": "[1,1,2]"}
    yield Row(RESNET, ONE_RANK, 1, _ALONE)
    yield Row(RESNET, LOCAL_SGD, 4, _LOCAL_SGD)
    yield Row(RESNET, "IST, inner channels", 4, {}, seeds=ONCE)
    yield Row(RESNET, "IST, inner channels, never redealt", 4, _NEVER, seeds=ONCE)
    yield Row(RESNET, NARROW, 4, _LOCAL_SGD, narrow=True, seeds=ONCE)
    yield Row(RESNET, "IST, blocks", 4, BLOCKS)
    yield Row(RESNET, "IST, blocks and inner channels", 4, BOTH, seeds=ONCE)
    yield Row(RESNET, "IST, blocks, never redealt", 4, {**BLOCKS, **_NEVER}, seeds=ONCE)
    yield Row(RESNET, "IST, blocks, fitted scale, rounds of 36 steps", 4, as_long)
    yield Row(RESNET, "a subnet's blocks alone, local SGD", 4, shallow, seeds=TWICE)
    yield Row(RESNET, "a subnet's blocks alone, local SGD, rounds of 36 steps", 4, {**shallow, **_LONGER}, seeds=TWICE)
    yield Row(RESNET, "local SGD, rounds of 36 steps", 4, {**_LOCAL_SGD, **_LONGER}, seeds=ONCE)


def rate_rows() -> Iterator[Row]:
    """What chooses the rate of each family: the mean accuracy of these on the validation split, seed 0."""
    tried: dict[Network, Mapping[str, tuple[int, Mapping[str, str]]]] = {
        THIN: {
            ONE_RANK: (1, _ALONE),
            LOCAL_SGD: (4, _LOCAL_SGD),
            "IST, dense layers": (4, {}),
            "IST, channels but the first too": (4, BUT_FIRST),
        },
        RESNET: {ONE_RANK: (1, _ALONE), LOCAL_SGD: (2, _LOCAL_SGD), "IST, inner channels": (2, {})},
    }
    for network, methods in tried.items():
        for method, (ranks, given) in methods.items():
            for rate in RATES:
                yield Row(network, method, ranks, given, rate=rate)


def cells() -> Iterator[Cell]:
    """All cells but those of the rates: the first seed of everything before the next."""
    return (Cell(row, seed) for seed in SEEDS for row in rows() if seed in row.seeds)


def best_rate(family: str, accuracy: Callable[[Cell], float | None]) -> float | None:
    """The rate whose mean over the methods tried is the highest; None where some of them are not known yet."""
    found: dict[float, list[float | None]] = {rate: [] for rate in RATES}
    for row in rate_rows():
        if row.network.family == family:
            found[row.rate].append(accuracy(Cell(row, 0)))
    if any(one is None for scores in found.values() for one in scores):
        return None
    return max(found, key=lambda rate: sum(found[rate]) / len(found[rate]))
