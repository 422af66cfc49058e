"""Measures the speed of a cluster's network and ranks, as a `Cluster` for the cost model.
Collective.

Times are the slowest rank's, usually medians, while all ranks work at once as in training.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from istmpi.cluster import timing, transfers
from istmpi.cluster.alone import Alone, measure_alone
from istmpi.cluster.figures import Cluster, fit
from istmpi.cluster.links import measure_links
from istmpi.cluster.saving import time_file
from istmpi.comm import Communicator, find_members, library
from istmpi.config import Run
from istmpi.config.method_settings import EVEN_DEAL
from istmpi.config.sections import Optimizer, Train
from istmpi.cost import Cost, cost
from istmpi.cost.counts import PartCost
from istmpi.devices import choose_device, choose_threads, find_place
from istmpi.errors import ConfigError, IstmpiError
from istmpi.network.architecture import Architecture
from istmpi.network.table import Operator
from istmpi.optim.optimizers import choose_optimizer
from istmpi.record import home
from istmpi.training.loop import Training
from istmpi.training.progress import MEASURED
from istmpi.units import counted

MOST_SHAPES = 24
MOST_ELEMENTS = 2**24
"""The most elements of a measured product's inputs or outputs; it has fewer rows if needed."""

TINY = {"method.local_steps": 20, "train.batch": 16}
TINY_ROUNDS = 12
FEW_STEPS = 5
MANY_STEPS = 25
STEP_ROUNDS = 6


def measure(run: Run, architecture: Architecture, communicator: Communicator) -> Cluster:
    """Measure this job's ranks with the shapes of the run's subnets; return the same result on
    every rank."""
    device, threads = choose_device_and_threads(run.train, communicator)
    run = run.override({"train.threads": threads})
    return measure_beside(run, architecture, communicator, communicator, device)


def measure_beside(
    run: Run,
    architecture: Architecture,
    communicator: Communicator,
    everyone: Communicator,
    device: torch.device,
) -> Cluster:
    """Measure ranks with the shapes of the run's subnets; return the same result on every rank.

    ``everyone``: all processes that compute at once. Those that are no ranks of ``communicator``
    call `measure_computing`.
    """
    network = _measure_network(communicator)
    # Each measurement subtracts the known ones: products come before steps, steps before rounds.
    flops_per_second, product_seconds, touch_seconds, computing = measure_computing(
        run, architecture, communicator.size, everyone, device
    )
    flops_per_second, step_seconds, spent, alone = _overheads(
        run, communicator, flops_per_second, product_seconds, touch_seconds
    )
    threads = counted(run.train.threads, "thread")
    of_messages = (communicator.size - 1) * network.links["alltoallv"].latency
    return replace(
        network,
        source=f"measured on {device} with {library()}, {threads} a rank",
        flops=(flops_per_second,),
        product_seconds=product_seconds,
        step_seconds=step_seconds,
        touch_seconds_per_byte=touch_seconds,
        # Both were timed with their messages, of which a share would be added to every round.
        transfer_seconds=max(spent["transfer"] - of_messages, 0.0),
        deal_seconds=max(spent["deal"] - network.call_seconds, 0.0) + spent["begin"],
        save_seconds=spent["save"],
        evaluation_seconds=alone.fixed,
        alone_seconds_per_value=alone.per_value,
        alone_seconds_per_flop=alone.per_flop,
        measured={**network.measured, **computing},
    )


def measure_computing(
    run: Run,
    architecture: Architecture,
    ranks: int,
    everyone: Communicator,
    device: torch.device,
) -> tuple[float, float, float, dict[str, Any]]:
    """Return FLOP/s, the seconds of a product beyond its FLOPs, the seconds for each byte that a
    step touches, and the measurements, of the slowest process of ``everyone``.

    Products are those of ``ranks`` subnets. Collective over ``everyone``.
    """
    parts = list(_subnets(run, architecture, ranks))
    shapes = _shapes(parts, architecture.operators, run.train.batch)
    flops_per_second, product_seconds, products = _products(shapes, everyone, device)
    make_step = partial(_make_step, run.optimizer, run.train.batch, architecture, device)
    touch_seconds, steps = _touch(
        parts, architecture, make_step, everyone, flops_per_second, product_seconds
    )
    return flops_per_second, product_seconds, touch_seconds, {"products": products, "steps": steps}


def choose_device_and_threads(train: Train, communicator: Communicator) -> tuple[torch.device, int]:
    """Return this rank's device, and its number of threads, which is set. Collective."""
    place = find_place(communicator)
    with communicator.agreed():
        device = choose_device(train.device, place)
    return device, choose_threads(train.threads, communicator)


def _measure_network(communicator: Communicator) -> Cluster:
    """Return a cluster with the figures of its network alone."""
    links, measured = measure_links(communicator)
    call_seconds = _time_small_call(communicator)
    hosts = len({member.host for member in find_members(communicator)})
    handle, average, measured["transfer"] = transfers.measure(
        communicator, links["alltoallv"], between_hosts=hosts > 1
    )
    return Cluster(
        name=f"{counted(communicator.size, 'rank')} on {counted(hosts, 'host')}",
        source="",
        links=links,
        flops=(),
        beside=float(hosts > 1),
        handle_seconds_per_byte=handle,
        average_seconds_per_byte=average,
        call_seconds=call_seconds,
        measured=measured,
    )


def _subtract(seconds: float, part: float) -> float:
    """Return what is left of a time without a known part of it."""
    return max(seconds - part, timing.NOISE * seconds)


def _time_small_call(communicator: Communicator) -> float:
    """Return the seconds in which all ranks tell each other as much as after a round; 0 for one
    rank."""
    if communicator.size == 1:
        return 0.0
    # As many facts as a rank's measurements of a round.
    facts = tuple(range(20))
    return timing.time_slowest(communicator, partial(communicator.allgather, facts, slot=MEASURED))


def _products(
    shapes: Sequence[tuple[int, int, int]], everyone: Communicator, device: torch.device
) -> tuple[float, float, dict[str, Any]]:
    """Measure products of (rows, inputs, outputs) forward and backward; return FLOP/s, and the
    seconds of each product beyond its FLOPs."""
    rows: list[dict[str, Any]] = []
    flops: list[float] = []
    seconds: list[float] = []
    for batch, inputs, outputs in shapes:
        x = torch.ones((batch, inputs), device=device)
        gradient = torch.ones((batch, outputs), device=device)
        weight = torch.ones((outputs, inputs), device=device)

        def work(
            x: torch.Tensor = x, gradient: torch.Tensor = gradient, weight: torch.Tensor = weight
        ) -> None:
            x @ weight.T  # noqa: B018
            gradient.T @ x  # noqa: B018
            gradient @ weight  # noqa: B018
            _finish(device)

        flops.append(6.0 * batch * inputs * outputs)  # three products; a multiply-add is 2
        seconds.append(timing.time_slowest(everyone, work))
        rows.append({"batch": batch, "inputs": inputs, "outputs": outputs, "seconds": seconds[-1]})
    (seconds_per_flop, product_seconds), error = fit([flops, [3.0] * len(rows)], seconds)
    # Noise: products so small that their calls seem to take all the time.
    if seconds_per_flop * max(flops) < 0.01 * max(seconds):
        (seconds_per_flop,), error = fit([flops], seconds)
        product_seconds = 0.0
    return 1 / seconds_per_flop, product_seconds, {"points": rows, "median_relative_error": error}


def _shapes(
    parts: Sequence[PartCost], operators: Sequence[Operator], batch: int
) -> list[tuple[int, int, int]]:
    """Return (rows, inputs, outputs) of the subnets' products with the most FLOPs; rows are limited
    by MOST_ELEMENTS."""
    shapes: list[tuple[int, int, int]] = []
    for part in parts:
        for operator in operators:
            rows, inputs, outputs = map(int, operator.shape.shape(part.part.lengths))
            rows *= batch**operator.examples
            if inputs:  # 0 for a look-up
                most_rows = max(MOST_ELEMENTS // max(inputs, outputs), 1)
                shapes.append((min(rows, most_rows), inputs, outputs))
    largest = sorted(dict.fromkeys(shapes), key=prod)[-MOST_SHAPES:]
    return [shape for shape in dict.fromkeys(shapes) if shape in largest]


def _subnets(run: Run, architecture: Architecture, ranks: int) -> Iterator[PartCost]:
    """Yield the costs of the networks to measure: the whole one, and usable largest subnets for
    P/2, P, 2P ranks."""
    groups = architecture.default_groups
    plain = run.override({"method.name": "ist", "method.partition": groups, **EVEN_DEAL})
    most_ranks = min((architecture.lengths[name] for name in groups), default=1)
    for count in sorted({1, max(ranks // 2, 1), ranks, 2 * ranks}):
        if count <= most_ranks:
            part = cost(plain, architecture, count).largest
            with suppress(ConfigError):
                architecture.require_usable(_whole_lengths(part))
                yield part


def _whole_lengths(part: PartCost) -> dict[str, int]:
    """Return the lengths of a subnet that can be built; expected lengths become integers."""
    return {name: int(length) for name, length in part.part.lengths.items()}


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _touch(
    parts: Sequence[PartCost],
    architecture: Architecture,
    make_step: Callable[[PartCost], Callable[[], None]],
    everyone: Communicator,
    flops_per_second: float,
    product_seconds: float,
) -> tuple[float, dict[str, Any]]:
    """Measure the seconds per byte of memory that a step touches: time subnets' steps, and subtract
    their products.

    Returns 0 for tokens, sparse rows and graphs, because inputs for them cannot be invented. Their
    steps' remaining time then counts as fixed.
    """
    if architecture.nodes[1] or architecture.code.tokens or architecture.code.sparse:
        return 0.0, {}
    touched: list[float] = []
    seconds_left: list[float] = []
    for part in parts:
        seconds = timing.time_slowest(everyone, make_step(part))
        touched.append(float(part.touched))
        seconds_of_products = float(part.flops.products) / flops_per_second
        seconds_of_products += part.flops.product_count * product_seconds
        seconds_left.append(_subtract(seconds, seconds_of_products))
    (_, seconds_per_byte), error = fit([[1.0] * len(touched), touched], seconds_left)
    return seconds_per_byte, {"median_relative_error": error}


def _make_step(
    settings: Optimizer,
    batch: int,
    architecture: Architecture,
    device: torch.device,
    part: PartCost,
) -> Callable[[], None]:
    """Return a function that takes a local step of a subnet on a batch of ones."""
    network = architecture.build(_whole_lengths(part)).to(device)
    optimizer = choose_optimizer(settings).make(network.parameters())
    dtype = next(network.parameters()).dtype
    x = torch.ones((batch, *architecture.example_shape), device=device, dtype=dtype)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        network(x).square().mean().backward()
        optimizer.step()
        _finish(device)

    return step


def _rounds(run: Run, communicator: Communicator, rounds: int) -> tuple[Training, dict[str, float]]:
    """Train rounds; return the training, and each phase's median seconds without round 1.

    Seconds of steps are the slowest rank's. Those of other phases are means over ranks, because a
    late rank waits less.
    """
    training = Training(run, communicator)
    clock = training.clock.seconds
    spent: list[dict[str, float]] = []
    for number in range(rounds):
        communicator.barrier()
        before = dict(clock)  # the clock adds up over rounds
        training.method.run(number)
        of_ranks = {}
        # Sorted, because all ranks take part in each exchange of a phase.
        for phase in sorted(clock):
            seconds = communicator.allgather(clock[phase] - before.get(phase, 0.0))
            of_ranks[phase] = float(np.mean(seconds))
            if phase == "compute":
                of_ranks[phase] = max(seconds)
        spent.append(of_ranks)
    medians = {}
    for phase in spent[-1]:
        medians[phase] = float(np.median([phases[phase] for phases in spent[1:]]))
    return training, medians


def _find_cost(training: Training) -> Cost:
    return cost(training.run, training.architecture, training.communicator.size)


def _time_save(training: Training) -> float:
    """Return the seconds of rank 0 for the file of a save."""
    run = training.run
    return time_file(home(run.output.folder, run.name), training, training.communicator)


def _make_tiny(device: str, folder: str, ranks: int) -> Run:
    """Return a run of a tiny network, with train.device and output.folder of the measured run."""
    changes = {
        **TINY,
        "train.threads": torch.get_num_threads(),
        "train.device": device,
        "output.folder": folder,
        "model.hidden": [max(16, ranks)],
    }
    return Run().override(changes)


def _time_steps(run: Run, communicator: Communicator) -> tuple[Cost, float, float, float]:
    """Train rounds of few and of many local steps; return the cost of the latter, and the seconds
    of a step, those in which a round's first steps are slower, and those of a save.

    After a pause, such as a wait for a distant rank, caches have other values.
    """
    run = run.override({"method.name": "ist", "method.shares": None, "train.epochs": None})
    short = run.override({"method.local_steps": FEW_STEPS})
    long = run.override({"method.local_steps": MANY_STEPS})
    _, few = _rounds(short, communicator, STEP_ROUNDS)
    training, many = _rounds(long, communicator, STEP_ROUNDS)
    mean = many["compute"] / MANY_STEPS
    of_step = (many["compute"] - few["compute"]) / (MANY_STEPS - FEW_STEPS)
    # Noise: a step takes some time, and no more than the mean of all.
    of_step = min(max(of_step, timing.NOISE * mean), mean)
    begin = many["compute"] - MANY_STEPS * of_step
    return _find_cost(training), of_step, begin, _time_save(training)


def _overheads(
    run: Run,
    communicator: Communicator,
    flops_per_second: float,
    product_seconds: float,
    touch_seconds_per_byte: float,
) -> tuple[float, float, dict[str, float], Alone]:
    """Return FLOP/s, the fixed seconds of a step, those of a transfer, a deal, a save and a round's
    first steps by name, and those of evaluations, measured with a tiny network.

    If the run itself can train here, FLOP/s and the seconds of steps and saves come from it.
    """
    with communicator.agreed():
        folder = str(home(run.output.folder, run.name))
        tiny = _make_tiny(run.train.device, folder, communicator.size)
    training, seconds = _rounds(tiny, communicator, TINY_ROUNDS)
    plan = _find_cost(training)
    transfers = [seconds[phase] for phase in ("hop", "pull", "push") if phase in seconds]
    alone = measure_alone(tiny, communicator)
    spent = {"transfer": float(np.mean(transfers)), "deal": seconds["deal"] + seconds["wait"]}
    step_seconds = seconds["compute"] / plan.local_steps
    begin = 0.0
    save = _time_save(training)
    # A run that cannot train here fails on all ranks; then the tiny network's step counts.
    with suppress(IstmpiError):
        plan, step_seconds, begin, save = _time_steps(run, communicator)
    spent["save"] = save
    spent["begin"] = begin
    part = plan.largest
    flops = float(part.flops.products)
    seconds_left = step_seconds - part.flops.product_count * product_seconds
    seconds_left -= float(part.touched) * touch_seconds_per_byte
    # A step takes no less time than its products: if it seems so, they are faster than measured.
    flops_per_second = max(flops_per_second, flops / max(seconds_left, timing.NOISE * step_seconds))
    fixed_seconds = max(seconds_left - flops / flops_per_second, 0.0)
    return flops_per_second, fixed_seconds, spent, alone
