"""The emulated slow cluster of benchmarks/cluster: its delays, its losses, and the same run on it as anywhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

from benchmarks.emulated import obstacle

ROOT = Path(__file__).parents[2]
WORDS = ["-m", "istmpi", "train", "digits", "--rounds", "3", "--local-steps", "5", "--set", "evaluate.every=3"]

OBSTACLE = obstacle()

pytestmark = pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE or "none")


def run_on_cluster(environment, out, *options):
    """Train on two emulated hosts; return what became of the frames, the first line, and the bytes of the network."""
    command = [ROOT / "benchmarks" / "cluster", "--hosts", 2, "--rate", "100mbit", "--name", "test", *options, "--"]
    words = [*map(str, command), sys.executable, *WORDS, "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=patient(120), env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (frames,) = re.findall(r"^frames +(.*)$", done.stderr, re.MULTILINE)
    counts = {name: int(number) for number, name in re.findall(r"(\d+) ([a-z ]+)", frames)}
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return counts, done.stderr.splitlines()[0], [line["loss"] for line in metrics]


def test_a_delayed_network_loses_nothing_and_a_lossy_one_only_what_was_asked(environment, tmp_path):
    """A round trip is never shorter than asked, and both networks train to the same losses."""
    counts, first_line, losses = run_on_cluster(
        environment, tmp_path / "delayed", "--round-trip", "40ms", "--jitter", "8ms"
    )
    assert counts["lost"] == counts["overrun"] == 0 < counts["arrived"]
    assert counts["forwarded"] + counts["queue full"] <= counts["arrived"]
    least = float(re.search(r"\(([\d.]+) to", first_line)[1])
    assert least >= 32, first_line
    lossy, _, losses_with_loss = run_on_cluster(
        environment, tmp_path / "lossy", "--round-trip", "10ms", "--loss", "0.03"
    )
    assert lossy["lost"] > 0 == lossy["overrun"]
    assert losses_with_loss == losses


@pytest.mark.parametrize(
    "options, said",
    [
        (["--round-trip", "50"], "a time, as 50ms"),
        (["--round-trip", "10ms", "--jitter", "20ms"], "cannot be as much shorter"),
        (["--loss", "1.5"], "a probability"),
    ],
)
def test_wrong_delays_are_refused_before_anything_is_made(environment, options, said):
    command = [ROOT / "benchmarks" / "cluster", *options, "--", "true"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=patient(30), env=environment)
    assert done.returncode == 2 and said in done.stderr
