"""The law on which composed figures rest: real ranks and benchmarks/curves.py's one process learn the same."""

import sys
from pathlib import Path

import pytest
from mpi4py import MPI

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.training.loop import Training

pytestmark = pytest.mark.real

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN = {
    "model.hidden": [24, 24],
    "method.local_steps": 5,
    "optimizer.lr": 0.05,
    "train.batch": 32,
    "train.rounds": 2,
    "train.threads": 1,
    "evaluate.every": 1,
}


@pytest.fixture
def curves(monkeypatch):
    """The program, whose ranks are all in this process."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import curves

    alone = Communicator(MPI.COMM_SELF.Dup())
    monkeypatch.setattr(curves, "world", lambda: alone)
    return curves


@pytest.mark.ranks(only=[2, 4])
@pytest.mark.parametrize(
    "method, redeal, placement",
    [
        ("ist", 1.0, "shared"),
        ("ist", 0.3, "sharded"),
        ("ist", 0.0, "shared"),
        ("diloco", 1.0, "sharded"),
        ("local-sgd", 1.0, "sharded"),
        ("data-parallel", 1.0, "shared"),
    ],
)
def test_ours_and_one_process_learn_the_same(comm, curves, method, redeal, placement):
    run = Run().override(RUN | {"method.name": method, "method.redeal": redeal, "data.placement": placement})
    scores = [progress.score for progress in Training(run, comm).rounds()]
    start, *points = curves.curve(run, comm.size, steps=10, between=5, seconds=1e9)
    assert start["step"] == 0 and [point["step"] for point in points] == [5, 10]
    for point, score in zip(points, scores, strict=True):
        assert point["loss"] == pytest.approx(score.loss, rel=1e-4)
        assert point["accuracy"] == pytest.approx(score.score, abs=0.006)  # two of 360 examples may lie on the edge
