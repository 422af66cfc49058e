"""Transfers on simulated ranks, and what they move: patterns, layouts, whole tensors of any bits."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from istmpi.engine.axes import Parameter, Pattern
from istmpi.engine.layout import Layout, Owners, part_shape
from istmpi.engine.partition import Partition
from istmpi.engine.transfer import Transfer
from istmpi.simulated import simulate

LENGTHS = {"labels": 3, "features": 6, "hidden": 9, "mid": 5, "stream": 7, "heads": 6, "blocks": 5, "out": 4}
GROUPS = ("hidden", "mid", "stream", "heads", "blocks")
PATTERNS = (
    "labels features",
    "labels",
    "hidden features",
    "hidden",
    "labels hidden",
    "mid hidden",
    "mid hidden stream",
    "hidden hidden",
    "hidden (2 features)",
    "mid (hidden 4)",
    "(3 heads 2) features",
    "(blocks[1] out) features",
    "mid stream 3 3",
    "labels hidden + 2",
    "hidden + 3",
    "(2 hidden) + mid features + (stream 2)",
    "2 + mid + 1 hidden + 4",
    "(blocks[1] 3) + (blocks[1] hidden) features + mid",
)
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64")
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def parameters(texts=PATTERNS, dtypes=DTYPES):
    return {f"{text} {dtype}": Parameter(Pattern.parse(text), dtype) for text, dtype in product(texts, dtypes)}


def layout(kind: str, ranks: int, lengths=LENGTHS) -> Layout:
    """``owners``, or a deal: ``all 3`` is round 3's, ``some``, ``none``, ``shares``."""
    if kind == "owners":
        return Owners(lengths, ranks)
    what, _, round = kind.partition(" ")
    groups = {"some": GROUPS[:2], "none": ()}.get(what, GROUPS)
    shares = [3.0, 1.0, 1.0, 2.0, 1.0][:ranks] if what == "shares" else None
    holders = {"pairs": 2 - ranks % 2, "clubs": ranks}.get(what, 1)
    return Partition.draw(lengths, groups, ranks, 1, int(round or 0), shares, holders=holders)


def belong_together(*layouts: Layout) -> bool:
    """Return whether layouts deal out the same groups, or none: a transfer of a run has no others."""
    return len({frozenset(layout.units) for layout in layouts if layout.units}) <= 1


KINDS = ("owners", "all 0", "all 1", "some", "none", "shares", "pairs", "clubs")


def bits(tensor):
    return tensor.view(BITS[tensor.element_size()]).numpy()


def any_values(names, lengths, seed=0):
    """Whole tensors of random bit patterns, with every NaN and infinity that a dtype has."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, parameter in names.items():
        values = random.integers(0, 256, (*parameter.pattern.shape(lengths), parameter.itemsize), dtype=np.uint8)
        tensors[name] = torch.from_numpy(values).view(getattr(torch, parameter.dtype)).squeeze(-1)
    return tensors


def index(layout: Layout, parameter: Parameter, rank: int):
    return np.ix_(
        *(np.asarray(layout.positions(axis, at, rank), dtype=int) for at, axis in enumerate(parameter.pattern.axes))
    )


def parts_of(whole, names, layout, rank):
    return {name: whole[name][index(layout, parameter, rank)].contiguous() for name, parameter in names.items()}


def all_parts(whole, names, layout):
    return [parts_of(whole, names, layout, rank) for rank in range(layout.ranks)]


def on_ranks(ranks, work):
    """``[work(communicator) for each rank]``, all at the same time."""
    return simulate(work, ranks).require()


@dataclass
class Moved:
    tensors: list
    bytes: list
    calls: list
    largest_message: int


def move(names, source, target, values, before, staging_bytes=2**28, exclude=None, shared=True):
    """Run the transfer on all ranks: ``values[rank]`` are moved into copies of ``before[rank]``."""

    def work(communicator):
        rank, largest, alltoallv = communicator.rank, [0], communicator.alltoallv
        communicator.alltoallv = lambda send, receive: (largest.append(max(send[1])), alltoallv(send, receive))
        transfer = Transfer(names, source, target, rank, staging_bytes, exclude=exclude, shared=shared)
        received = {name: tensor.clone() for name, tensor in before[rank].items()}
        transfer.run(values[rank], received, communicator)
        assert communicator.traffic.bytes == transfer.bytes_sent
        calls = sum(sent.calls for sent in communicator.ledger.sent.values())
        return received, communicator.traffic.bytes, calls, max(largest)

    tensors, nbytes, calls, largest = zip(*on_ranks(source.ranks, work))
    return Moved(list(tensors), list(nbytes), list(calls), max(largest))


def blank(names, layout, rank):
    return {
        name: torch.full(part_shape(layout, parameter, rank), -1).to(getattr(torch, parameter.dtype))
        for name, parameter in names.items()
    }


def normal(names, layout, random):
    """Normal values of all ranks' parts, from a generator."""
    return [
        {
            name: torch.randn(part_shape(layout, parameter, rank), generator=random).to(getattr(torch, parameter.dtype))
            for name, parameter in names.items()
        }
        for rank in range(layout.ranks)
    ]


def blanks(names, layout):
    return [blank(names, layout, rank) for rank in range(layout.ranks)]


def assert_same_bits(found, expected, names):
    for mine, theirs in zip(found, expected, strict=True):
        for name in names:
            np.testing.assert_array_equal(bits(mine[name]), bits(theirs[name]), err_msg=name)
