"""Runs that were resumed on other ranks, as they were when `replay.json` was recorded.
On the ranks that saved them they are what was not interrupted: tests/mpi/test_resume.py.
"""

import os

import pytest
from replaying import CASES, digest, keep, require_recorded, run_of
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
    require_recorded(f"resumed on {RESUMED_BY} ranks", case, run, outcome)
