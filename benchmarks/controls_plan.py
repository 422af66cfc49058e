"""What `benchmarks/controls.py` measures, cell by cell and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log

from time_analysis import final
from time_found import Records
from time_plan import FULL, OF_A_SUBNET, Cell, Task

RANKS, LOCAL_STEPS = FULL.ranks[0], FULL.local_steps[0]
PLACEMENTS = ("shared", "sharded")
METHODS = (*OF_A_SUBNET, "local-sgd")
FACTORS = (1 / 3, 1.0, 3.0)
"""Of the task's learning rate: what is tried."""
VALIDATION_STEPS = 100


def tasks() -> list[Task]:
    """Those of time_to_accuracy.py that are compared; on CIFAR-10, where evaluating takes long, with fewer points."""
    speech, cifar = (task for task in FULL.tasks if task.name in ("speech2", "cifar"))
    return [replace(speech, steps=240), replace(cifar, steps=200, evaluate_every=2)]


def validation(task: Task) -> Task:
    """A task's network on its training data alone."""
    stem = task.data.removesuffix(".h5")
    name, data = f"{task.name}-validation", f"{stem}-validation.h5"
    return replace(task, name=name, data=data, steps=VALIDATION_STEPS, evaluate_every=1)


def rates(task: Task) -> list[float]:
    """The learning rates to try."""
    return [float(f"{factor * task.lr:.1g}") for factor in FACTORS]


def rate_cell(task: Task, method: str, lr: float) -> Cell:
    """A curve on the validation split."""
    return Cell("rate", RANKS, validation(task), method=method, local_steps=LOCAL_STEPS, lr=lr, seed=0)


def rate_cells() -> Iterator[Cell]:
    """All that decide on learning rates."""
    for task in tasks():
        for lr in rates(task):
            for method in OF_A_SUBNET:
                yield rate_cell(task, method, lr)


def on_validation(record: Records, task: Task, method: str) -> dict[float, float]:
    """Accuracy on the validation split, the mean of the last three evaluations, by learning rate."""
    found = {lr: record(rate_cell(task, method, lr)) for lr in rates(task)}
    return {lr: final([one["points"]]).mean for lr, one in found.items() if one}


def chosen(record: Records, task: Task, method: str) -> float | None:
    """A method's learning rate: the most accurate on the validation split, of equals the nearest to the task's.

    None before all are tried. On the whole network, where a step is dear, the task's.
    """
    if method not in OF_A_SUBNET:
        return task.lr
    found = on_validation(record, task, method)
    if len(found) < len(FACTORS):
        return None
    return max(found, key=lambda lr: (round(found[lr], 4), -abs(log(lr / task.lr))))


def control_cell(task: Task, method: str, placement: str, lr: float, seed: int) -> Cell:
    """A curve on the test split."""
    placement = placement.replace("shared", "")
    return Cell("control", RANKS, task, "", "", method, LOCAL_STEPS, seed, placement, lr)


def control_cells(record: Records) -> Iterator[Cell]:
    """All curves of which the learning rate is known: one seed of everything, then the others of one task at a time."""
    first, *others = FULL.seeds
    for task in tasks():
        yield from _curves(record, task, first)
    for task in tasks():
        yield control_cell(task, "local-sgd", "sharded", task.lr, first)
        for seed in others:
            yield from _curves(record, task, seed)


def _curves(record: Records, task: Task, seed: int) -> Iterator[Cell]:
    for placement in PLACEMENTS:
        for method in OF_A_SUBNET:
            if lr := chosen(record, task, method):
                yield control_cell(task, method, placement, lr, seed)


def speed_cells() -> Iterator[Cell]:
    """Seconds and bytes of a step on the slow network, in turns within one job."""
    yield Cell("machine", RANKS)
    for task in tasks():
        yield speed_cell(task)


def speed_cell(task: Task) -> Cell:
    """What computes a subnet's steps, on a task's data."""
    return Cell("speed", RANKS, task, "1x", "controls")
