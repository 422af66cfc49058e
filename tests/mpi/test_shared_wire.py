"""Means of what is not dealt out as the largest changes, in place of all values: method.shared_wire."""

import pytest
import torch
from small import assert_near, small_run, trained, whole

from istmpi.cost.one_round import run_bytes
from istmpi.engine import sparse_mean
from istmpi.training.loop import Training

pytestmark = pytest.mark.ranks(only=[2, 3])
SHARED = {"method__partition": ["hidden1"], "method__shared_wire": "top-k", "method__top": 900, "model__bias": True}
CARRIED = SHARED | {"optimizer__name": "adam", "method__optimizer_state": "carry", "method__redeal": 0.5}


class Everything:
    """A codec that sends all values unchanged."""

    def __init__(self, top, sizes):
        assert top == 4096

    def encode(self, tensors):
        return torch.cat(list(tensors)).view(torch.uint8)

    def decode(self, packed, dtype):
        values = packed.clone().view(dtype)
        return torch.arange(len(values)), values


@pytest.mark.parametrize("more", [{}, {"method__share_every": 2}, {"method__delay": 1}], ids=str)
def test_where_everything_is_sent_it_is_the_mean_of_all_values(comm, monkeypatch, more):
    monkeypatch.setattr(sparse_mean, "TopK", Everything)
    everything = SHARED | {"method__top": 4096, "method__feedback": 0.0} | more
    sparse = whole(trained(comm, **everything)[0])
    exact = whole(trained(comm, **everything | {"method__shared_wire": None})[0])
    assert_near(sparse, exact, 1e-12)


@pytest.mark.parametrize("settings", [SHARED, CARRIED, CARRIED | {"method__wire": "int8", "model__dtype": "float32"}])
def test_bytes_are_those_of_the_plan(comm, settings):
    training, progress = trained(comm, **settings)
    assert progress[-1].bytes == run_bytes(training.run, training.architecture, comm.size)
    exact = Training(small_run(**settings | {"method__shared_wire": None, "method__share_every": 1}), comm)
    assert progress[-1].bytes < run_bytes(exact.run, exact.architecture, comm.size)
