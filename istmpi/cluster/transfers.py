"""Measures what a transfer takes in addition to its messages: copies and means."""

from collections.abc import Sequence
from typing import Any

import torch

from istmpi.cluster import timing
from istmpi.cluster.figures import Link, fit
from istmpi.comm import Communicator
from istmpi.cost.holdings import Holdings
from istmpi.cost.loads import pull, push
from istmpi.engine.layout import Owners, part_shape
from istmpi.engine.partition import Cut, Partition
from istmpi.engine.transfer import Transfer
from istmpi.models import mlp_network
from istmpi.network.architecture import Architecture

TRANSFER_WIDTHS = (256, 768, 1536)


def measure(
    communicator: Communicator, link: Link, between_hosts: bool
) -> tuple[float, float, dict[str, Any]]:
    """Measure the seconds that a transfer takes for each byte it handles, and for each that it
    averages, beyond its messages.

    Between hosts, copies would be lost in the noise of messages, and are measured apart.
    """
    if between_hosts:
        copy = _copy_seconds(communicator)
        return copy, copy, {"copies": True}
    handled: list[float] = []
    averaged: list[float] = []
    seconds_left: list[float] = []
    for width in TRANSFER_WIDTHS:
        network = mlp_network(width, (max(width, communicator.size),) * 2, 10)
        # Dealt units need packing; whole tensors need the mean.
        for groups in (network.groups, ()):
            cut = Cut(communicator.size)
            held = Holdings(network.parameters, network.lengths, groups, cut)
            loads = [pull(held), push(held)]
            seconds = _pull_and_push(communicator, network, groups)
            seconds_of_messages = sum(
                load.messages * link.latency + float(load.busiest) * link.seconds_per_byte
                for load in loads
            )
            handled.append(float(sum(load.handled for load in loads)))
            averaged.append(float(sum(load.averaged for load in loads)))
            seconds_left.append(max(seconds - seconds_of_messages, timing.NOISE * seconds))
    # The column of ones takes up the fixed time of a transfer, which `_overheads` measures.
    (_, handle, average), error = fit([[1.0] * len(handled), handled, averaged], seconds_left)
    return handle, average, {"median_relative_error": error}


def _copy_seconds(communicator: Communicator) -> float:
    """Return the seconds in which a rank packs or unpacks a byte of rows, without any message."""
    values = torch.zeros(TRANSFER_WIDTHS[-1], TRANSFER_WIDTHS[-1])
    rows = torch.arange(len(values)).flip(0)

    def work() -> None:
        values.index_copy_(0, rows, values.index_select(0, rows))

    return timing.time_slowest(communicator, work) / (2 * values.nbytes)


def _pull_and_push(
    communicator: Communicator, network: Architecture, groups: Sequence[str]
) -> float:
    rank = communicator.rank
    parameters = network.parameters
    owners = Owners(network.lengths, communicator.size)
    deal = Partition.draw(network.lengths, groups, communicator.size, 0, 0)
    owned: dict[str, torch.Tensor] = {}
    held: dict[str, torch.Tensor] = {}
    for name, parameter in parameters.items():
        owned[name] = torch.zeros(part_shape(owners, parameter, rank))
        held[name] = torch.zeros(part_shape(deal, parameter, rank))
    pull = Transfer(parameters, owners, deal, rank)
    push = Transfer(parameters, deal, owners, rank)

    def work() -> None:
        pull.run(owned, held, communicator)
        push.run(held, owned, communicator)

    return timing.time_slowest(communicator, work)
