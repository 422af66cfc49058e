"""A rank that is only slow: the run ends well, says which one it was, and what it cost the others."""

import json
import os
import signal
import time

from following import lines, wait_for_rounds

RUN = ["train", "--hidden", "512,512", "--local-steps", "40", "--rounds", "10", "--set", "evaluate.every=1000"]


def test_a_rank_that_is_stopped_most_of_the_time_is_named(start, tmp_path):
    folder = tmp_path / "run"
    job = start(2, "istmpi", *RUN, "--out", folder)
    wait_for_rounds(folder, 1, job)
    slow = job.ranks[1]
    while len(lines(folder)) < 9 and job.process.poll() is None:
        os.kill(slow, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(slow, signal.SIGCONT)
        time.sleep(0.1)
    result = job.end(60)
    assert result.returncode == 0, result
    found = json.loads((folder / "summary.json").read_text())["slowest"]
    assert found["rank"] == 1 and found["slower"] > 0.5 and found["waited"] > 0.2
    said = f"rank 1, {found['host']}: {found['slower']:.0%} slower, the others waited {found['waited']:.0%} of the time"
    assert [line.split(maxsplit=1)[1] for line in result.stdout.splitlines() if line.startswith("slowest ")] == [said]
