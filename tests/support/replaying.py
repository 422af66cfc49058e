"""What every method computed and sent when `replay.json` was recorded: a change of form changes no bit of it.

    export ISTMPI_RECORD=1
    python -m pytest tests/mpi/test_replay.py tests/unit/test_replay_resumed.py

records anew, for a change that is meant to change results. The last bit of a sum depends on the processor
and on the libraries: the file says what some sums were where it was recorded. Where they are others, losses and scores
are compared as numbers, and not their bits; messages are the same everywhere.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from replay_cases import FILES, MLP, OTHERS, files
from small import own_run, small_run, whole

from istmpi.comm import Communicator, at_once
from istmpi.training.loop import Training

RECORD = Path(__file__).parents[1] / "mpi" / "replay.json"
CASES = MLP | OTHERS


@pytest.fixture
def passed_on(monkeypatch):
    """Ranks pass few bytes on, by calls with the names in the record."""
    monkeypatch.setattr(at_once, "MOST_RANKS", 0)


class Recorded:
    """An mpi4py communicator that calls ``note`` for each large call, with the bytes for each rank."""

    def __init__(self, communicator, note):
        self._communicator, self._note = communicator, note

    def __getattr__(self, name):
        return getattr(self._communicator, name)

    def Dup(self):
        return Recorded(self._communicator.Dup(), self._note)

    def Idup(self):
        handle, request = self._communicator.Idup()
        return Recorded(handle, self._note), request

    def Create_group(self, group):
        return Recorded(self._communicator.Create_group(group), self._note)

    def Ialltoallv(self, send, receive):
        self._note(["Alltoallv", *map(int, send[1])])
        return self._communicator.Ialltoallv(send, receive)

    def Iallgatherv(self, send, receive):
        if isinstance(send[0], np.ndarray):  # not a packed object
            self._note(["Allgatherv", send[0].nbytes])
        return self._communicator.Iallgatherv(send, receive)

    def Igatherv(self, send, receive):
        self._note(["Gatherv", send[0].nbytes])
        return self._communicator.Igatherv(send, receive)

    def Isend(self, message, peer, tag):
        self._note(["Isend", message[0].nbytes, peer])
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


def run_of(settings, ranks, folder):
    """The run of a case's settings; the files that these name are written into a folder, by whoever asks first."""
    if not {*map(str, settings.values())}.isdisjoint(FILES):
        written = files(folder, ranks)
        settings = {name: written.get(str(value), value) for name, value in settings.items()}
    if isinstance(settings.get("method__shares"), list):
        settings = settings | {"method__shares": settings["method__shares"][:ranks]}
    return (own_run if "model__name" in settings else small_run)(**settings)


def replayed(comm, run):
    """What a small run computes, and what ranks send in each of its rounds, and for its last evaluation."""
    messages, of_evaluation = [], []

    def note(message):
        evaluates = communicator.whereabouts.phase == "evaluate"
        (of_evaluation if evaluates else messages).append(message)

    communicator = Communicator(Recorded(comm.mpi, note))
    training = Training(run, communicator)
    losses, sent = [], []
    start = 0
    for progress in training.rounds():
        losses.append(progress.loss)
        sent.append(sorted(messages[start:]))  # those that a thread sends come in no order
        start = len(messages)
    weights = whole(training)
    sent, of_evaluation = comm.allgather(sent), comm.allgather(of_evaluation)
    return {
        "bits": digest(losses, *(weights[name] for name in sorted(weights))),
        "losses": [f"{loss:.9g}" for loss in losses],
        "score": f"{progress.score.loss:.9g}",
        "messages": digest(np.frombuffer(json.dumps(sent).encode(), np.uint8)),
        "evaluation": digest(np.frombuffer(json.dumps(of_evaluation).encode(), np.uint8)),
        "bytes": progress.bytes,
    }


def keep(ranks, case, outcome):
    """Put an outcome into the record."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"runs": {}}
    record["arithmetic"] = arithmetic()
    record["runs"].setdefault(ranks, {})[case] = outcome
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def require_recorded(ranks, case, run, outcome):
    """An outcome is that of the record; its bits count where this machine computes as that of the record."""
    record = json.loads(RECORD.read_text())
    expected = record["runs"][ranks][case]
    if record["arithmetic"] == arithmetic():
        assert outcome == expected
        return
    tolerance = 1e-6 if run.model.dtype == "float64" else 1e-2
    for name in expected.keys() & {"losses", "score"}:
        assert np.float64(outcome[name]) == pytest.approx(np.float64(expected[name]), rel=tolerance)
    compared = expected.keys() - {"bits", "losses", "score"}
    assert {name: outcome[name] for name in compared} == {name: expected[name] for name in compared}
