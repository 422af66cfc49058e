"""Following a run from outside, by what it leaves in its folder."""

import json
import time

import h5py
from patience import Limit


def wait_for_rounds(folder, rounds, job, timeout=60, unlike=None):
    """Until so many rounds are in the metrics; ``unlike`` those that were there before the job began, if given."""
    limit = Limit(timeout)
    while len(found := lines(folder)) < rounds or found == unlike:
        assert job.process.poll() is None, job.end()
        assert limit.left, f"not {rounds} rounds within {timeout} s"
        time.sleep(0.02)


def wait_for_more(folder, job):
    """Until a job has added rounds to those of the one before it."""
    before = lines(folder)
    wait_for_rounds(folder, len(before) + 2, job, timeout=120, unlike=before)


def weights(folder):
    """Every parameter of a finished run, to the last bit."""
    with h5py.File(folder / "network.h5") as file:
        return {name: values[...].tobytes() for name, values in file["model"].items()}


def lines(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines(True) if line[-1] == "\n"] if path.exists() else []
