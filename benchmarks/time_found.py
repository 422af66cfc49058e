"""What the cells of `benchmarks/time_to_accuracy.py` say of each contestant in each situation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

from time_analysis import (
    ALGORITHMS,
    averaged,
    highest_common,
    interpolated,
    mean_curve,
    split,
    step_bytes,
    step_seconds,
    steps_to,
)
from time_plan import AS_MEASURED, EVERY_STEP, JOBS, TENTH, Cell, Scale, Task

NAMES = {
    "ist": "IST",
    TENTH: "IST, a tenth redealt",
    "local-sgd": "local SGD",
    "pytorch-local-sgd": "PyTorch local SGD",
    "data-parallel": "data parallel",
    "pytorch-ddp": "PyTorch DDP",
}
ALL_NAMES = {
    **NAMES,
    "diloco": "DiLoCo",
    "streaming-diloco": "Streaming DiLoCo",
    "sparse-loco": "SparseLoCo",
    "fedavg": "FedAvg",
    "dynamic-averaging": "dynamic averaging",
    "codistillation": "codistillation",
}

Records = Callable[[Cell], dict | None]


@dataclass
class Contestant:
    """One method where the network is slow: what a step takes, and what it learns in it."""

    name: str
    turns: dict[str, list[list[dict]]]
    """Rounds of every turn, by the job that it was in."""
    local_steps: int
    curves: list[list[dict]]
    """One a seed."""
    direct: list[dict] | None
    """The points of a whole run on the slow network."""
    curve: list[tuple[int, float]] = field(init=False)
    """Mean over seeds, each point averaged with its neighbours."""

    def __post_init__(self) -> None:
        self.curve = averaged(mean_curve(self.curves)) if self.curves else []

    @property
    def as_measured(self) -> bool:
        return self.name in AS_MEASURED

    @property
    def every_turn(self) -> list[list[dict]]:
        return [rounds for turns in self.turns.values() for rounds in turns]

    def per_turn(self, group: str) -> list[float]:
        """Seconds of a step in every turn of a job."""
        return [step_seconds(rounds, self.local_steps, self.as_measured) for rounds in self.turns[group]]

    @property
    def seconds(self) -> float:
        """Of a step."""
        return median(step for group in self.turns for step in self.per_turn(group))

    @property
    def bytes(self) -> float:
        """That all ranks send in a step."""
        return median(step_bytes(rounds, self.local_steps, self.as_measured) for rounds in self.every_turn)

    def split(self) -> dict[str, float]:
        """Seconds of a step by phase, the mean over all rounds."""
        return split([one for rounds in self.every_turn for one in rounds], self.local_steps, self.as_measured)

    def time_to(self, accuracy: float) -> tuple[float | None, bool]:
        """Seconds of the steps to an accuracy, and whether they are composed; none where it is not reached.

        Else they are the clock's of a whole run when it had taken these steps.
        """
        steps = steps_to(self.curve, accuracy)
        if steps is None:
            return None, True
        measured = interpolated(self.direct, "seconds", steps) if self.direct else None
        return (steps * self.seconds, True) if measured is None else (measured, False)


@dataclass
class Situation:
    """All contestants with one network, P, J and bandwidth."""

    task: Task
    ranks: int
    bandwidth: str
    local_steps: int
    rate: float
    contestants: dict[str, Contestant]

    @property
    def common(self) -> float:
        """The highest accuracy that all reach."""
        return highest_common([one.curve for one in self.contestants.values()])

    @property
    def about(self) -> dict:
        rate = f"{self.rate / 1e6:.0f}" + " (10x)" * (self.bandwidth == "10x")
        return {"network": self.task.title, "P": self.ranks, "J": self.local_steps, "Mbit/s": rate}


def situations(scale: Scale, record: Records) -> Iterator[Situation]:
    """Those of which speeds and curves of IST and of a rival are there."""
    for bandwidth in ("1x", "10x"):
        for task in scale.tasks:
            for local_steps in scale.local_steps:
                for ranks in scale.ranks:
                    found = contestants(scale, record, task, ranks, bandwidth, local_steps)
                    complete = {name: one for name, one in found.items() if one.curves}
                    if "ist" in complete and len(complete) > 1:
                        rate = speed_of(record, task, ranks, bandwidth)["rate"]
                        yield Situation(task, ranks, bandwidth, local_steps, rate, complete)


def contestants(
    scale: Scale, record: Records, task: Task, ranks: int, bandwidth: str, local_steps: int
) -> dict[str, Contestant]:
    """All whose speed is known, in the order of NAMES."""
    turns, result = measured_turns(record, task, ranks, bandwidth), {}
    for name in (name for name in NAMES if name in turns):
        algorithm = ALGORITHMS[name]
        spread = 0 if name in EVERY_STEP else local_steps
        cells = (Cell("curve", ranks, task, method=algorithm, local_steps=spread, seed=seed) for seed in scale.seeds)
        curves = [found["points"] for found in map(record, cells) if found]
        direct = record(Cell("direct", ranks, task, bandwidth, method=name, local_steps=local_steps, seed=0))
        result[name] = Contestant(name, turns[name], local_steps, curves, direct and direct["points"])
    return result


def measured_turns(record: Records, task: Task, ranks: int, bandwidth: str) -> dict[str, dict[str, list[list[dict]]]]:
    """Rounds of every turn of every method, by the job that it was in."""
    turns: dict[str, dict[str, list]] = {}
    for group in JOBS:
        speed = record(Cell("speed", ranks, task, bandwidth, group))
        for name, found in (speed["contestants"] if speed else {}).items():
            turns.setdefault(name, {})[group] = found
    return turns


def speed_of(record: Records, task: Task, ranks: int, bandwidth: str) -> dict:
    return next(filter(None, (record(Cell("speed", ranks, task, bandwidth, group)) for group in JOBS)))
