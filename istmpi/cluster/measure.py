"""Measures the speed of a cluster's network and ranks, as a `Cluster` for the cost model.
Collective.

Times are the slowest rank's, usually medians, while all ranks work at once as in training.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from istmpi.cluster.figures import Cluster, Link, fit
from istmpi.comm import Communicator, library
from istmpi.comm.allreduce import MeanOverRanks
from istmpi.config import Run
from istmpi.cost import Cost, cost
from istmpi.cost.counts import PartCost
from istmpi.cost.holdings import Holdings
from istmpi.cost.loads import pull, push
from istmpi.devices import choose_device, choose_threads
from istmpi.engine.layout import Owners, part_shape
from istmpi.engine.partition import Partition
from istmpi.engine.transfer import Transfer
from istmpi.errors import ConfigError, IstmpiError
from istmpi.models import mlp_network
from istmpi.network.architecture import Architecture
from istmpi.optim.optimizers import choose_optimizer
from istmpi.training.loop import Training
from istmpi.units import counted

SECONDS = 0.3
MOST_REPETITIONS = 25
TURN_SECONDS = 0.04
MOST_INNER = 1000
MESSAGE_BYTES = (2**10, 2**16, 2**20, 2**22, 2**24)
TRANSFER_WIDTHS = (256, 768, 1536)
MOST_SHAPES = 24
MOST_ELEMENTS = 2**24
"""The most elements of a measured product's inputs or outputs; it has fewer rows if needed."""
_NOISE = 0.1
"""The least fraction of a time that is left after known parts are subtracted; a fit needs positive
times."""

TINY = {"method.local_steps": 20, "train.batch": 16}
TINY_ROUNDS = 12
STEPS, STEP_ROUNDS = 10, 4


def measure(run: Run, architecture: Architecture, communicator: Communicator) -> Cluster:
    """Measure this job's ranks with the shapes of the run's subnets; return the same result on
    every rank."""
    with communicator.on_this_host() as local:
        with communicator.agreed():
            device = choose_device(run.train.device, local)
        threads = choose_threads(run.train.threads, local)
    ranks, links, measured = communicator.size, {}, {}
    for name, points in (("alltoallv", _alltoallv), ("allreduce", _allreduce)):
        links[name], measured[name] = _link([*points(communicator)] if ranks > 1 else [])
    handle, average, measured["transfer"] = _transfers(run, communicator, links["alltoallv"])
    speed, product, measured["products"] = _products(run, architecture, communicator, device)
    touch, measured["steps"] = _touch(run, architecture, communicator, device, speed, product)
    speed, step, transfer, deal = _overheads(run, communicator, speed, product, touch)
    return Cluster(
        name=f"{counted(ranks, 'rank')} on {counted(len(set(communicator.hosts())), 'host')}",
        source=f"measured on {device} with {library()}, {counted(threads, 'thread')} a rank",
        links=links,
        beside=float(len(set(communicator.hosts())) > 1),
        flops=(speed,),
        product_seconds=product,
        step_seconds=step,
        touch_seconds_per_byte=touch,
        handle_seconds_per_byte=handle,
        average_seconds_per_byte=average,
        transfer_seconds=transfer,
        deal_seconds=deal,
        measured=measured,
    )


def timed(communicator: Communicator, work: Callable[[], object]) -> float:
    """Return the seconds of ``work()`` on the slowest rank. Collective.

    They are those of the first call if it takes over `SECONDS`, otherwise a median over
    repetitions.
    """
    once = _slowest(communicator, work, 1)
    if once > SECONDS:
        return once
    inner = min(max(int(TURN_SECONDS / once), 1), MOST_INNER)
    times: list[float] = []
    while sum(times) * inner < SECONDS and len(times) < MOST_REPETITIONS:
        times.append(_slowest(communicator, work, inner))
    return float(np.median(times))


def _slowest(communicator: Communicator, work: Callable[[], object], times: int) -> float:
    communicator.barrier()
    start = time.perf_counter()
    for _ in range(times):
        work()
    return max(communicator.allgather((time.perf_counter() - start) / times))


Point = tuple[float, float, float]


def _link(points: Sequence[Point]) -> tuple[Link, dict[str, Any]]:
    if not points:
        return Link(0.0, 0.0), {}
    messages, sizes, seconds = zip(*points)
    (latency, each), error = fit([messages, sizes], seconds)
    rows = [{"bytes": size, "seconds": took} for _, size, took in points]
    return Link(latency, each), {"points": rows, "median_relative_error": error}


def _alltoallv(communicator: Communicator) -> Iterator[Point]:
    ranks, others = communicator.size, communicator.size - 1
    for size in MESSAGE_BYTES:
        each = size // others or 1
        counts = [each * (peer != communicator.rank) for peer in range(ranks)]
        starts = [each * peer for peer in range(ranks)]
        staged = [(np.zeros(each * ranks, dtype=np.uint8), counts, starts) for _ in range(2)]
        yield others, each * others, timed(communicator, partial(communicator.alltoallv, *staged))


def _allreduce(communicator: Communicator) -> Iterator[Point]:
    messages = 2 * (communicator.size - 1)
    for size in MESSAGE_BYTES:
        values = torch.zeros(size // 4)
        mean = MeanOverRanks({"values": values.nbytes}, communicator)

        def work(mean=mean, values=values):
            mean.add("values", values)
            mean.finish()

        yield messages, messages / communicator.size * size, timed(communicator, work)


def _transfers(
    run: Run, communicator: Communicator, link: Link
) -> tuple[float, float, dict[str, Any]]:
    handled, averaged, beyond = [], [], []
    for width in TRANSFER_WIDTHS:
        network = mlp_network(width, (max(width, communicator.size),) * 2, 10)
        for groups in (network.groups, ()):
            held = Holdings(network.parameters, network.lengths, groups, communicator.size)
            loads = [pull(held), push(held)]
            seconds = _pull_and_push(communicator, network, groups)
            sent = sum(
                load.messages * link.latency + float(load.busiest) * link.seconds_per_byte
                for load in loads
            )
            handled.append(float(sum(load.handled for load in loads)))
            averaged.append(float(sum(load.averaged for load in loads)))
            beyond.append(max(seconds - sent, _NOISE * seconds))
    (_, each, mean), error = fit([[1.0] * len(handled), handled, averaged], beyond)
    return each, mean, {"median_relative_error": error}


def _pull_and_push(
    communicator: Communicator, network: Architecture, groups: Sequence[str]
) -> float:
    ranks, rank = communicator.size, communicator.rank
    layouts = Owners(network.lengths, ranks), Partition.draw(network.lengths, groups, ranks, 0, 0)
    owned, held = (
        {
            name: torch.zeros(part_shape(layout, parameter, rank))
            for name, parameter in network.parameters.items()
        }
        for layout in layouts
    )
    pull, push = (Transfer(network.parameters, *ends, rank) for ends in (layouts, layouts[::-1]))

    def work() -> None:
        pull.run(owned, held, communicator)
        push.run(held, owned, communicator)

    return timed(communicator, work)


def _products(
    run: Run, architecture: Architecture, communicator: Communicator, device: torch.device
) -> tuple[float, float, dict[str, Any]]:
    rows = []
    for batch, inputs, outputs in _shapes(run, architecture, communicator.size):
        shapes = (batch, inputs), (batch, outputs), (outputs, inputs)
        x, gradient, weight = (torch.ones(shape, device=device) for shape in shapes)

        def work(x=x, gradient=gradient, weight=weight):
            x @ weight.T, gradient.T @ x, gradient @ weight  # noqa: B018
            _finish(device)

        rows.append(
            {
                "batch": batch,
                "inputs": inputs,
                "outputs": outputs,
                "seconds": timed(communicator, work),
            }
        )
    flops = [6.0 * row["batch"] * row["inputs"] * row["outputs"] for row in rows]
    seconds = [row["seconds"] for row in rows]
    (each, product), error = fit([flops, [3.0] * len(rows)], seconds)
    if each * max(flops) < 0.01 * max(
        seconds
    ):  # noise: products so small that their calls seem to take all the time
        (each,), error = fit([flops], seconds)
        product = 0.0
    return 1 / each, product, {"points": rows, "median_relative_error": error}


def _shapes(run: Run, architecture: Architecture, ranks: int) -> list[tuple[int, int, int]]:
    """Return (rows, inputs, outputs) of the run's products with the most FLOPs; rows are limited by
    MOST_ELEMENTS."""
    shapes = []
    for part in _subnets(run, architecture, ranks):
        for operator in architecture.operators:
            rows, inputs, outputs = map(int, operator.shape.shape(part.part.lengths))
            rows *= run.train.batch**operator.examples
            if inputs:  # 0 for a look-up
                shapes.append(
                    (min(rows, max(MOST_ELEMENTS // max(inputs, outputs), 1)), inputs, outputs)
                )
    largest = sorted(dict.fromkeys(shapes), key=prod)[-MOST_SHAPES:]
    return [shape for shape in dict.fromkeys(shapes) if shape in largest]


def _subnets(run: Run, architecture: Architecture, ranks: int) -> Iterator[PartCost]:
    """Yield the costs of the networks to measure: the whole one, and usable largest subnets for
    P/2, P, 2P ranks."""
    groups = architecture.default_groups
    plain = run.override({"method.name": "ist", "method.partition": groups, "method.shares": None})
    most_ranks = min((architecture.lengths[name] for name in groups), default=1)
    for count in sorted({1, max(ranks // 2, 1), ranks, 2 * ranks}):
        if count <= most_ranks:
            part = cost(plain, architecture, count).largest
            with suppress(ConfigError):
                architecture.require_usable(part.part.lengths)
                yield part


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _touch(
    run: Run,
    architecture: Architecture,
    communicator: Communicator,
    device: torch.device,
    speed: float,
    product: float,
) -> tuple[float, dict[str, Any]]:
    """Measure the seconds per byte of memory that a step touches: time subnets' steps, and subtract
    their products.

    Returns 0 for tokens, sparse rows and graphs, because inputs for them cannot be invented. Their
    steps' remaining time then counts as fixed.
    """
    if architecture.nodes[1] or architecture.code.tokens or architecture.code.sparse:
        return 0.0, {}
    sizes, beyond = [], []
    for part in _subnets(run, architecture, communicator.size):
        network = architecture.build(
            {name: int(length) for name, length in part.part.lengths.items()}
        ).to(device)
        optimizer = choose_optimizer(run.optimizer).make(network.parameters())
        shape = run.train.batch, *architecture.example_shape
        x = torch.ones(shape, device=device, dtype=next(network.parameters()).dtype)

        def work(network=network, optimizer=optimizer, x=x):
            optimizer.zero_grad(set_to_none=True)
            network(x).square().mean().backward()
            optimizer.step()
            _finish(device)

        seconds = timed(communicator, work)
        sizes.append(float(part.touched))
        products = float(part.flops.products) / speed + part.flops.product_count * product
        beyond.append(max(seconds - products, _NOISE * seconds))
    (_, each), error = fit([[1.0] * len(sizes), sizes], beyond)
    return each, {"median_relative_error": error}


def _rounds(run: Run, communicator: Communicator, rounds: int) -> tuple[Cost, dict[str, float]]:
    """Train rounds; return the run's cost, and each phase's median seconds on its slowest rank,
    without round 1."""
    training = Training(run, communicator)
    clock, spent = training.clock.seconds, []
    for number in range(rounds):
        communicator.barrier()
        before = dict(clock)
        training.method.run(number)
        took = {phase: seconds - before.get(phase, 0.0) for phase, seconds in clock.items()}
        spent.append(
            {phase: max(communicator.allgather(seconds)) for phase, seconds in sorted(took.items())}
        )
    median = {
        phase: float(np.median([phases[phase] for phases in spent[1:]])) for phase in spent[-1]
    }
    return cost(run, training.architecture, communicator.size), median


def _overheads(
    run: Run, communicator: Communicator, speed: float, product: float, touch: float
) -> tuple[float, float, float, float]:
    """Return FLOP/s and the fixed seconds of a step, a transfer and a round, measured with a tiny
    network.

    If the run itself can train here, FLOP/s and the step's seconds come from it.
    """
    with communicator.agreed():
        tiny = Run().override(
            {**TINY, "train.threads": torch.get_num_threads(), "train.device": run.train.device}
        )
        tiny = tiny.override({"model.hidden": [max(16, communicator.size)]})
    plan, median = _rounds(tiny, communicator, TINY_ROUNDS)
    transfer = float(
        np.mean([median[phase] for phase in ("hop", "pull", "push") if phase in median])
    )
    a_round = median["deal"] + median["wait"]
    with suppress(IstmpiError):  # on all ranks
        steps = {
            "method.name": "ist",
            "method.shares": None,
            "method.local_steps": STEPS,
            "train.epochs": None,
        }
        plan, median = _rounds(run.override(steps), communicator, STEP_ROUNDS)
    took, part = median["compute"] / plan.local_steps, plan.largest
    left = took - part.flops.product_count * product - float(part.touched) * touch
    speed = max(speed, float(part.flops.products) / max(left, _NOISE * took))
    return speed, max(left - float(part.flops.products) / speed, 0.0), transfer, a_round
