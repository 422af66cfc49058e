"""What `benchmarks/time_to_accuracy.py` measures, cell by cell and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TENTH = "ist-tenth"
"""IST that deals a tenth of the units anew in each round."""
NEVER = "ist-never"
"""IST that deals once: after the first pull nothing is exchanged any more."""
NARROW = {"narrow-local-sgd": "local-sgd", "narrow-diloco": "diloco"}
"""Methods on a network that is as wide as one rank's subnet, so that a local step has as many FLOPs as one of IST."""
OF_A_SUBNET = ("ist", TENTH, NEVER, *NARROW)
"""Whose local steps are those of a network of a subnet's shape."""
CONTESTANTS = {
    "local": ("local-sgd", "pytorch-local-sgd", "ist", TENTH),
    "synchronous": ("data-parallel", "pytorch-ddp", "ist", TENTH),
}
"""What races in turns in one job."""
OTHERS = ("diloco", "streaming-diloco", "sparse-loco", "fedavg", "dynamic-averaging", "codistillation")
"""What is measured for its samples a second alone."""
JOBS = {**CONTESTANTS, "others": OTHERS, "controls": OF_A_SUBNET}
METHODS = ("ist", TENTH, "local-sgd", "data-parallel")
"""Whose accuracy by step is measured."""
SETTINGS = {
    TENTH: {"method.name": "ist", "method.redeal": 0.1},
    NEVER: {"method.name": "ist", "method.redeal": 0},
    **{name: {"method.name": method} for name, method in NARROW.items()},
    "dynamic-averaging": {"method.threshold": 0},
    "codistillation": {"method.burn_in": 0},
}
"""Of methods that have more to them than their name; these two send in every round."""
PEERS = {"pytorch-local-sgd": "local-sgd", "pytorch-ddp": "ddp"}
IN_ROUNDS = ("ist", "local-sgd")
"""What depends on the number of local steps."""
EVERY_STEP = ("data-parallel", "pytorch-ddp")
"""What sends the whole network in every step."""
AS_MEASURED = (*EVERY_STEP, "fedavg")
"""What has rounds of its own length, so that nothing is spread over another."""


@dataclass(frozen=True)
class Task:
    """A network on a data set."""

    name: str
    widths: tuple[int, ...]
    """From the features to the labels."""
    lr: float
    steps: int
    """Of a curve."""
    seconds: float
    """Of processor time; a curve ends with the round at which it has taken them."""
    data: str
    prepare: tuple[str, str] | None = None
    """Kind and raw file of ``istmpi prepare``; none for data that come with istmpi."""
    kind: str = "digits"
    evaluate_every: int = 1
    """Rounds between two points of a curve."""

    @property
    def hidden(self) -> str:
        """As the command line takes them."""
        return ",".join(map(str, self.widths[1:-1]))

    def hidden_of(self, method: str, ranks: int) -> str:
        """Of the network that a method trains."""
        return ",".join(map(str, hidden_of(method, self.widths[1:-1], ranks)))

    @property
    def title(self) -> str:
        return f"{self.kind} {'-'.join(map(str, self.widths))}"


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    tasks: tuple[Task, ...]
    """The most important first."""
    ranks: tuple[int, ...]
    local_steps: tuple[int, ...]
    seeds: tuple[int, ...]
    longer: int
    """Times a curve's steps and processor time, to see where the methods end."""
    turns: int
    turn_seconds: float
    speed_seconds: float
    direct_seconds: float
    flops_seconds: float
    flops_width: int
    model_ranks: tuple[int, ...]


SPEECH = {"kind": "spoken digits", "lr": 0.01, "data": "speech.h5", "prepare": ("speech", "spoken-digits.tar.gz")}
CIFAR = {"kind": "CIFAR-10", "lr": 0.1, "data": "cifar10.h5", "prepare": ("images", "cifar10.tar")}
FULL = Scale(
    tasks=(
        Task("speech2", (4096, 4096, 10), steps=400, seconds=200, **SPEECH),
        Task("speech3", (4096, 8192, 8192, 10), steps=240, seconds=400, **SPEECH),
        Task("cifar", (3072, 4096, 4096, 10), steps=400, seconds=200, **CIFAR),
    ),
    ranks=(8, 4, 2),
    local_steps=(20, 60),
    seeds=(0, 1, 2),
    longer=4,
    turns=5,
    turn_seconds=8,
    speed_seconds=500,
    direct_seconds=100,
    flops_seconds=4,
    flops_width=4096,
    model_ranks=(1, 2, 4, 8),
)
QUICK = Scale(
    tasks=(Task("digits", (64, 512, 512, 10), lr=0.05, steps=40, seconds=20, data="digits"),),
    ranks=(2,),
    local_steps=(5, 10),
    seeds=(0,),
    longer=2,
    turns=3,
    turn_seconds=0.5,
    speed_seconds=20,
    direct_seconds=10,
    flops_seconds=1,
    flops_width=1024,
    model_ranks=(1, 2),
)
BATCH = 128


@dataclass(frozen=True)
class Cell:
    """One thing to measure; its name is its file's."""

    kind: str
    ranks: int
    task: Task | None = None
    bandwidth: str = ""
    group: str = ""
    method: str = ""
    local_steps: int = 0
    """Zero for a curve of data parallel, which knows no rounds."""
    seed: int | None = None
    placement: str = ""
    """Of the data, where it is not `shared`."""
    lr: float | None = None
    """Where it is not the task's."""

    @property
    def name(self) -> str:
        parts = [self.kind, self.task.name if self.task else "", f"P{self.ranks}", self.bandwidth, self.group]
        parts += [self.method, f"J{self.local_steps}" * bool(self.local_steps)]
        parts += [self.placement, "" if self.lr is None else f"lr{self.lr:g}"]
        parts += ["" if self.seed is None else f"s{self.seed}"]
        return "-".join(filter(None, parts))


def settings_of(method: str) -> dict[str, object]:
    """What makes a run of istmpi one of a method."""
    return {"method.name": method, **SETTINGS.get(method, {})}


def hidden_of(method: str, hidden: Sequence[int], ranks: int) -> list[int]:
    """The hidden widths of the network that a method trains, where IST's are ``hidden``."""
    return [width // ranks if method.startswith("narrow-") else width for width in hidden]


def cells(scale: Scale) -> Iterator[Cell]:
    """All cells, the most valuable first, each after those that it needs."""
    first, *others = scale.tasks
    usual, *longer = scale.local_steps
    for ranks in scale.ranks:
        yield Cell("machine", ranks)
        yield from _speeds(ranks, first, "1x")
        yield from _curves(ranks, first, usual, scale.seeds if ranks == scale.ranks[0] else scale.seeds[:1])
        for method in (*METHODS, *PEERS):
            yield Cell("direct", ranks, first, "1x", method=method, local_steps=usual, seed=0)
    for task in others:
        for ranks in scale.ranks:
            yield from _speeds(ranks, task, "1x")
            yield from _curves(ranks, task, usual, scale.seeds[:1])
    for local_steps in longer:
        for ranks in scale.ranks:
            yield from _curves(ranks, first, local_steps, scale.seeds[:1], IN_ROUNDS)
    for ranks in scale.ranks:
        yield from _speeds(ranks, first, "10x")
    for ranks in scale.model_ranks:
        if ranks not in scale.ranks:
            yield Cell("machine", ranks)
            yield from _speeds(ranks, first, "1x")
        yield Cell("model", ranks, first, "1x")
        yield Cell("speed", ranks, first, "1x", "others")
    for ranks in reversed(scale.ranks):
        for task in scale.tasks:
            if (task, ranks) != (first, scale.ranks[0]):
                yield from _curves(ranks, task, usual, scale.seeds[1:])
    for task in others:
        yield from _curves(scale.ranks[0], task, usual, scale.seeds[:1], ("ist", "data-parallel", "local-sgd"), "long")
    for task in others:
        for ranks in reversed(scale.ranks):
            yield from _speeds(ranks, task, "10x")
            for local_steps in longer:
                yield from _curves(ranks, task, local_steps, scale.seeds[:1], IN_ROUNDS)


def _speeds(ranks: int, task: Task, bandwidth: str) -> Iterator[Cell]:
    for group in CONTESTANTS:
        yield Cell("speed", ranks, task, bandwidth, group)


def _curves(
    ranks: int, task: Task, local_steps: int, seeds: tuple[int, ...], methods=METHODS, kind: str = "curve"
) -> Iterator[Cell]:
    for seed in seeds:
        for method in methods:
            spread = 0 if method in EVERY_STEP else local_steps
            yield Cell(kind, ranks, task, method=method, local_steps=spread, seed=seed)
