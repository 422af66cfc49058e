"""Runs that were resumed on other ranks, as they were when `replay.json` was recorded.
On the ranks that saved them they are what was not interrupted: tests/mpi/test_resume.py.
"""

import json
import os

import numpy as np
import pytest
from replaying import CASES, RECORD, arithmetic, digest, keep, run_of
from resuming import save
from small import whole

from istmpi.simulated import simulate
from istmpi.training.loop import Training

SAVED_BY, RESUMED_BY = 3, 2

RESUMED = (
    "ist, adam carried",
    "ist, a finish",
    "ist, delay of 1",
    "ist, int8 on the wire",
    "diloco",
    "streaming-diloco",
    "codistillation",
    "resnet by blocks",
    "a transformer",
    "xc, momentum, in blocks",
)


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_has_not_changed(tmp_path, case):
    run, path = run_of(CASES[case], SAVED_BY, tmp_path), tmp_path / "checkpoint.h5"

    def begin(comm):
        training = Training(run, comm)
        next(training.rounds())
        save(training, path)

    def resume(comm):
        training = Training(run, comm)
        training.resume(path)
        losses = [progress.loss for progress in training.rounds()]
        weights = whole(training)
        return {
            "bits": digest(losses, *(weights[name] for name in sorted(weights))),
            "losses": [f"{loss:.9g}" for loss in losses],
        }

    simulate(begin, SAVED_BY).require()
    outcome, *others = simulate(resume, RESUMED_BY).require()
    assert all(other == outcome for other in others)
    if "ISTMPI_RECORD" in os.environ:
        keep(f"resumed on {RESUMED_BY} ranks", case, outcome)
    record = json.loads(RECORD.read_text())
    expected = record["runs"][f"resumed on {RESUMED_BY} ranks"][case]
    if record["arithmetic"] == arithmetic():
        assert outcome == expected
    else:
        tolerance = 1e-6 if run.model.dtype == "float64" else 1e-2
        assert np.float64(outcome["losses"]) == pytest.approx(np.float64(expected["losses"]), rel=tolerance)
