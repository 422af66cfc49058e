"""What every method computed and sent when `replay.json` was recorded: a change of form changes no bit of it.

    ISTMPI_RECORD=1 mpirun -n P python -m pytest --with-mpi -p no:cacheprovider tests/mpi/test_replay.py

(P = 1 to 4) records anew, for a change that is meant to change results. The last bit of a sum depends on the processor
and on the libraries: the file says what some sums were where it was recorded. Where they are others, losses and scores
are compared as numbers, and not their bits; messages are the same everywhere.
"""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from small import small_run, whole

from istmpi.comm import Communicator
from istmpi.training.loop import Training

RECORD = Path(__file__).with_name("replay.json")
MOMENTUM = {"optimizer__momentum": 0.9, "optimizer__lr": 0.03}
ADAM = {"optimizer__name": "adamw", "optimizer__lr": 0.01, "model__bias": True}
CASES = {
    "ist": {},
    "ist in single precision": {"model__dtype": "float32", "model__hidden": [64, 32]},
    "ist, a tenth redealt": {"method__redeal": 0.1},
    "ist, never redealt": {"method__redeal": 0.0},
    "ist, adam carried": {**ADAM, "method__optimizer_state": "carry"},
    "ist, a finish": {"method__finish": "local-sgd:50%", **MOMENTUM},
    "ist, an outer step": {"method__outer_momentum": 0.6, "method__outer_lr": 0.8},
    "ist, dropout": {"model__dropout": 0.3},
    "ist, bias": {"model__bias": True},
    "ist, layer normalisation": {"model__norm": "layer"},
    "ist, no normalisation": {"model__norm": "none", "model__bias": True, "model__activation": "tanh"},
    "ist, outputs not normalised": {"model__output_norm": False, "model__activation": "gelu"},
    "ist, uneven shares": {"method__shares": [3.0, 1.0, 2.0, 0.5]},
    "ist, uneven shares, no normalisation": {"method__shares": [3.0, 1.0, 2.0, 0.5], "model__norm": "none"},
    "ist, one group dealt": {"method__partition": ["hidden1"]},
    "ist, warm-up and weight decay": {"optimizer__warm_up": 7, "optimizer__weight_decay": 0.1},
    "ist, autocast": {"train__autocast": True, "model__dtype": "float32"},
    "local-sgd": {"method__name": "local-sgd"},
    "local-sgd, momentum carried": {"method__name": "local-sgd", "method__optimizer_state": "carry", **MOMENTUM},
    "data-parallel": {"method__name": "data-parallel", "model__bias": True},
    "data-parallel in single precision": {"method__name": "data-parallel", "model__dtype": "float32", **MOMENTUM},
    "diloco": {"method__name": "diloco", **ADAM},
    "fedavg": {"method__name": "fedavg", "method__fraction": 0.5, "train__batch": 100, "data__placement": "sharded"},
    "dynamic-averaging": {"method__name": "dynamic-averaging", "method__threshold": 1e-4},
    "codistillation": {"method__name": "codistillation", "method__burn_in": 1},
}


class Recorded:
    """An mpi4py communicator that notes what goes out of its large calls: the call, and the bytes for each rank."""

    def __init__(self, communicator, messages):
        self._communicator, self._messages = communicator, messages

    def __getattr__(self, name):
        return getattr(self._communicator, name)

    def Dup(self):
        return Recorded(self._communicator.Dup(), self._messages)

    def Create_group(self, group):
        return Recorded(self._communicator.Create_group(group), self._messages)

    def Ialltoallv(self, send, receive):
        self._messages.append(["Alltoallv", *map(int, send[1])])
        return self._communicator.Ialltoallv(send, receive)

    def Iallgatherv(self, send, receive):
        self._messages.append(["Allgatherv", send[0].nbytes])
        return self._communicator.Iallgatherv(send, receive)

    def Isend(self, message, peer, tag):
        self._messages.append(["Isend", message[0].nbytes, peer])
        return self._communicator.Isend(message, peer, tag)


def arithmetic():
    """A hash of sums and functions as this processor and these libraries compute them."""
    generator = torch.Generator().manual_seed(0)
    state = hashlib.sha256(torch.__version__.encode())
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for rows, inner, columns in ((8, 64, 13), (100, 64, 7), (13, 8, 64)):
            x = torch.randn(rows, inner, generator=generator, dtype=torch.float64).to(dtype)
            y = torch.randn(inner, columns, generator=generator, dtype=torch.float64).to(dtype)
            product = (x @ y).double()
            for values in (product, product.softmax(1), product.tanh(), product.var(0), product.float().exp()):
                state.update(values.numpy().tobytes())
    return state.hexdigest()[:16]


def digest(*arrays):
    """64 bits of arrays."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:16]


def replayed(comm, settings):
    """What a small run computes, and what this rank sends in each of its rounds and for its last evaluation."""
    messages = []
    if "method__shares" in settings:
        settings = settings | {"method__shares": settings["method__shares"][: comm.size]}
    training = Training(small_run(**settings), Communicator(Recorded(comm.mpi, messages)))
    losses, sent = [], []
    start = 0
    for progress in training.rounds():
        losses.append(progress.loss)
        sent.append(sorted(messages[start:]))  # those that a thread sends come in no order
        start = len(messages)
    weights = whole(training)
    sent = comm.allgather(sent)
    return {
        "bits": digest(losses, *(weights[name] for name in sorted(weights))),
        "losses": [f"{loss:.9g}" for loss in losses],
        "score": f"{progress.score.loss:.9g}",
        "messages": digest(np.frombuffer(json.dumps(sent).encode(), np.uint8)),
        "bytes": progress.bytes,
    }


@pytest.mark.parametrize("case", CASES)
def test_nothing_has_changed(comm, case):
    outcome = replayed(comm, CASES[case])
    if comm.size > 1 and case not in ("fedavg", "dynamic-averaging"):
        assert outcome["bytes"] > 0
    if "ISTMPI_RECORD" in os.environ:
        keep(comm, case, outcome)
    record = json.loads(RECORD.read_text())
    expected = record["runs"][f"{comm.size} ranks"][case]
    if record["arithmetic"] == arithmetic():
        assert outcome == expected
        return
    tolerance = 1e-2 if CASES[case].get("model__dtype") == "float32" else 1e-6
    numbers = ("losses", "score")
    for name in numbers:
        assert np.float64(outcome[name]) == pytest.approx(np.float64(expected[name]), rel=tolerance)
    compared = [name for name in expected if name not in ("bits", *numbers)]
    assert {name: outcome[name] for name in compared} == {name: expected[name] for name in compared}


def test_a_change_would_be_noticed(comm):
    """Another seed gives other bits with the same messages, another share redealt other messages."""
    once, again, seed = (replayed(comm, settings) for settings in ({}, {}, {"train__seed": 6}))
    assert once == again
    assert once["bits"] != seed["bits"] and once["losses"] != seed["losses"]
    if comm.size > 1:
        assert once["messages"] != replayed(comm, {"method__redeal": 0.5})["messages"]


def keep(comm, case, outcome):
    """Put an outcome into the record."""
    if comm.rank == 0:
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {"runs": {}}
        record["arithmetic"] = arithmetic()
        record["runs"].setdefault(f"{comm.size} ranks", {})[case] = outcome
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    comm.barrier()
