"""Transfers over real MPI; tests/unit/test_transfer.py compares the plans with whole tensors at length."""

from itertools import product

import numpy as np
import pytest
import torch

from istmpi.engine.axes import Parameter, Pattern
from istmpi.engine.layout import Owners
from istmpi.engine.partition import Partition
from istmpi.engine.transfer import Transfer

pytestmark = pytest.mark.both

LENGTHS = {"labels": 3, "features": 6, "hidden": 13, "mid": 7, "stream": 5, "heads": 6, "blocks": 5, "out": 4}
DEALT = ("hidden", "mid", "stream", "heads", "blocks")
PATTERNS = (
    "labels features",
    "hidden features",
    "mid hidden",
    "mid hidden stream",
    "hidden (2 features)",
    "(3 heads 64) features",
    "(blocks[1] out) features",
    "mid stream 3 3",
)
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64")
NAMES = {f"{text} {dtype}": Parameter(Pattern.parse(text), dtype) for text, dtype in product(PATTERNS, DTYPES)}
STAGING = pytest.mark.parametrize("staging_bytes", [2**28, 5000])


def layouts(ranks):
    return {
        "owners": Owners(LENGTHS, ranks),
        "this round": Partition.draw(LENGTHS, DEALT, ranks, 0, 0),
        "next round": Partition.draw(LENGTHS, DEALT, ranks, 0, 1),
        "nothing dealt": Partition.draw(LENGTHS, (), ranks, 0, 0),
        "shares": Partition.draw(LENGTHS, DEALT, ranks, 0, 0, [2.0, 1.0, 1.0, 1.0, 1.0][:ranks]),
    }


def index(layout, parameter, rank):
    axes = enumerate(parameter.pattern.axes)
    return np.ix_(*(np.asarray(layout.positions(axis, at, rank), dtype=int) for at, axis in axes))


def whole():
    """Tensors that every rank knows: no two elements of one are equal, as far as the dtype can tell them apart."""
    tensors = {}
    for name, parameter in NAMES.items():
        shape = parameter.pattern.shape(LENGTHS)
        tensors[name] = (torch.arange(np.prod(shape)).view(shape) * 7 - 100).to(getattr(torch, parameter.dtype))
    return tensors


def part(tensors, layout, rank):
    return {name: tensors[name][index(layout, NAMES[name], rank)].contiguous() for name in NAMES}


def run(comm, source, target, values, before, staging_bytes=2**28):
    transfer = Transfer(NAMES, source, target, comm.rank, staging_bytes)
    received = {name: tensor.clone() for name, tensor in before.items()}
    sent = comm.traffic.bytes
    transfer.run(values, received, comm)
    assert comm.traffic.bytes - sent == transfer.bytes_sent, "planned bytes are those handed to MPI"
    return received


@STAGING
@pytest.mark.parametrize("there", ["owners", "this round", "next round", "nothing dealt", "shares"])
@pytest.mark.parametrize("here", ["owners", "this round", "nothing dealt", "shares"])
def test_a_transfer_delivers_what_any_rank_has(comm, here, there, staging_bytes):
    """From this round's holders to the next round's, too: the hop."""
    source, target = layouts(comm.size)[here], layouts(comm.size)[there]
    tensors = whole()
    before = {name: torch.full_like(values, 77) for name, values in part(tensors, target, comm.rank).items()}
    received = run(comm, source, target, part(tensors, source, comm.rank), before, staging_bytes)
    for name, parameter in NAMES.items():
        expected = torch.full_like(tensors[name], 77)
        for rank in range(comm.size):
            expected[index(source, parameter, rank)] = tensors[name][index(source, parameter, rank)]
        assert torch.equal(received[name], expected[index(target, parameter, comm.rank)]), name


@STAGING
@pytest.mark.parametrize("kind", ["this round", "nothing dealt", "shares"])
def test_push_after_pull_is_the_identity_bit_for_bit(comm, kind, staging_bytes):
    owners, deal = layouts(comm.size)["owners"], layouts(comm.size)[kind]
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: (torch.randn(tensor.shape, generator=generator) * 1000).to(tensor.dtype)
        for name, tensor in whole().items()
    }
    stored = part(tensors, owners, comm.rank)
    blank = {name: torch.zeros_like(values) for name, values in part(tensors, deal, comm.rank).items()}
    subnet = run(comm, owners, deal, stored, blank, staging_bytes)
    back = run(comm, deal, owners, subnet, stored, staging_bytes)
    for name in NAMES:
        assert (
            back[name].numpy(force=True).tobytes() == stored[name].numpy(force=True).tobytes()
            if (stored[name].dtype != torch.bfloat16)
            else torch.equal(back[name].view(torch.int16), stored[name].view(torch.int16))
        ), name


def test_different_copies_become_their_mean(comm):
    source, target = layouts(comm.size)["nothing dealt"], layouts(comm.size)["owners"]
    values = {
        name: torch.full(parameter.pattern.shape(LENGTHS), comm.rank).to(getattr(torch, parameter.dtype))
        for name, parameter in NAMES.items()
    }
    before = {name: torch.zeros_like(tensor) for name, tensor in part(values, target, comm.rank).items()}
    for name, tensor in run(comm, source, target, values, before).items():
        mean = (comm.size - 1) / 2
        expected = torch.full_like(tensor, int(mean) if tensor.dtype == torch.int64 else mean)
        assert torch.equal(tensor, expected), name
