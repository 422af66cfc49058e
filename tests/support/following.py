"""Following a run: by what it leaves in its folder, and by what it says."""

import json
import time

from patience import Limit

from istmpi.training.watch import Watch


def wait_for_rounds(folder, rounds, job, timeout=60, unlike=None):
    """Until so many rounds are in the metrics; ``unlike`` those that were there before the job began, if given."""
    limit = Limit(timeout)
    while len(found := lines(folder)) < rounds or found == unlike:
        assert job.process.poll() is None, job.end()
        assert limit.left, f"not {rounds} rounds within {timeout} s"
        time.sleep(0.02)


def lines(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines(True) if line[-1] == "\n"] if path.exists() else []


class Listening(Watch):
    """Hears what a run says: ``said``."""

    def __init__(self):
        self.said = []

    def noticed(self, message):
        self.said.append(message)
