"""Values that travel in fewer bits have the same bits on all ranks, and what is rounded away is not lost."""

import numpy as np
import pytest
import torch
from small import assert_near, small_run, trained, whole

from istmpi.comm import mpi, ring
from istmpi.comm.allreduce import MeanOverRanks
from istmpi.comm.codec import BFLOAT16, CODECS, EXACT, INT8
from istmpi.config.methods import METHODS
from istmpi.engine import sparse_mean
from istmpi.training.loop import Training

FORMS = {"weight": INT8, "bias": BFLOAT16, "wide": INT8, "double": EXACT, "last": INT8}
OUTER = [(name, "int8") for name, spec in METHODS.items() if spec.encodes and spec.outer_step]


@pytest.mark.ranks(also=5)
@pytest.mark.parametrize("background", [pytest.param(True, marks=pytest.mark.real), False])
def test_a_mean_in_fewer_bits_has_the_same_bits_on_every_rank(comm, background, monkeypatch):
    monkeypatch.setattr(ring, "CHUNK_BYTES", 1600)
    monkeypatch.setattr(ring, "BUCKET_BYTES", 4000)
    monkeypatch.setattr(mpi, "threads_may_call", lambda: background)
    sizes = {"weight": 700, "bias": 30, "wide": 9001, "double": 50, "last": 3}
    draws = [np.random.default_rng(rank) for rank in range(comm.size)]
    types = {name: torch.float64 if FORMS[name] == EXACT else torch.float32 for name in sizes}
    per_rank = [
        {n: torch.from_numpy(draw.normal(size=size)).to(types[n]) for n, size in sizes.items()} for draw in draws
    ]
    runs = []
    for key in (1, 1, 2):
        mine = {name: values.clone() for name, values in per_rank[comm.rank].items()}
        sent = comm.traffic.bytes
        mean = MeanOverRanks({name: values.nbytes for name, values in mine.items()}, comm, FORMS, key)
        for name, values in reversed(mine.items()):
            mean.add(name, values)
        mean.finish()
        runs.append({name: values.numpy().tobytes() for name, values in mine.items()})
        single = {name: size for name, size in sizes.items() if name != "double"}
        expected = ring.count_sent_bytes(single, 4, comm.size, FORMS)[comm.rank]
        expected += ring.count_sent_bytes({"double": sizes["double"]}, 8, comm.size)[comm.rank]
        assert comm.traffic.bytes - sent == expected
    assert comm.broadcast_from_root(runs) == runs
    assert runs[0] == runs[1] and (runs[0] != runs[2] or comm.size == 1)
    for name, values in mine.items():
        exact = sum(one[name].double() for one in per_rank) / comm.size
        most = 2 * 4 * 2 / 127 if FORMS[name] == INT8 else 2 * 4 * 2**-7
        assert (values.double() - exact).abs().max() < (most if FORMS[name] != EXACT else 1e-14)


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize("method, wire", [*OUTER, *(("ist", wire) for wire in CODECS if wire != "int8")])
def test_an_outer_step_makes_no_momentum_of_roundings(comm, method, wire):
    """Weights that steps do not change stay where they are, however often they travel; a trained change arrives."""
    run = {"method__name": method, "method__wire": wire, "model__dtype": "float32", "train__rounds": 6}
    run |= {"model__bias": True, "model__norm": "none", "model__hidden": [64, 48]}
    run |= {"method__outer_momentum": 0.9, "method__outer_lr": 0.7, "train__batch": 100 if method == "fedavg" else 8}
    training = Training(small_run(**run, optimizer__lr=1e-12), comm)
    before = whole(training)
    list(training.rounds())
    largest = max(np.abs(values).max() for values in before.values())
    after = whole(training)
    assert max(np.abs(after[name] - values).max() for name, values in before.items()) < 1e-6 * largest
    rounded = whole(trained(comm, **run | {"train__rounds": 2}, optimizer__lr=0.03)[0])
    exact = whole(trained(comm, **run | {"train__rounds": 2, "method__wire": "float32"}, optimizer__lr=0.03)[0])
    moved = max(np.abs(exact[name] - values).max() for name, values in before.items() if "/" not in name)
    off = max(np.abs(rounded[name] - values).max() for name, values in exact.items() if "/" not in name)
    assert 0 < off < 0.15 * moved


# ---- means of what is not dealt out as the largest changes: method.shared_wire


SHARED = {"method__partition": ["hidden1"], "method__shared_wire": "top-k", "method__top": 900, "model__bias": True}


class Everything:
    def __init__(self, top, sizes):
        assert top == 4096

    def encode(self, tensors):
        return torch.cat(list(tensors)).view(torch.uint8)

    def decode(self, packed, dtype):
        values = packed.clone().view(dtype)
        return torch.arange(len(values)), values


@pytest.mark.parametrize("more", [{"method__share_every": 2}, {"method__delay": 1}], ids=str)
def test_where_everything_is_sent_it_is_the_mean_of_all_values(comm, monkeypatch, more):
    monkeypatch.setattr(sparse_mean, "TopK", Everything)
    everything = SHARED | {"method__top": 4096, "method__feedback": 0.0} | more
    sparse = whole(trained(comm, **everything)[0])
    assert_near(sparse, whole(trained(comm, **everything | {"method__shared_wire": None})[0]), 1e-12)
