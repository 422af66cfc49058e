"""`istmpi compare` as its users start it: tables and files at the end, going on after a stop, exit codes."""

import json
import os
import signal

import pytest
from following import lines, wait_for_rounds

SMALL = ("--hidden", "32", "--local-steps", "3", "--batch", "16")
METHODS = ("data-parallel", "ist", "local-sgd")
TARGETS = ("--targets", "0.2,0.999")
TUNED = ("--methods", "ist,narrow", "--rounds", "4", "--lr", "0.01,0.1")
BAD = {
    "--tune optimizer.lr=0.1,0.1 has a single value": ["--tune", "optimizer.lr=0.1,0.1"],
    "--tune train.rounds: held-out examples cannot choose it": ["--tune", "train.rounds=1,2"],
    "method.delay = 1 has no effect with data-parallel": ["--tune", "method.delay=1,2", "--methods", "data-parallel"],
    "--methods: 'local-sdg' is not known; did you mean local-sgd?": ["--methods", "ist,local-sdg"],
    "--methods: 'narow' is not known; did you mean narrow?": ["--methods", "ist,narow"],
    "ist: hidden1 has 1 unit, but the run has 2 ranks": ["--hidden", "1"],
    "use --methods": ["--set", "method.name=ist"],
}
LOCAL_SGD_WAITS_OR_FAILS = """
import time; from pathlib import Path; from istmpi.errors import DivergedError; from istmpi.methods.base import Method
attempt = Method.attempt
def wait_or_fail(self, number):
    while self.spec.name == "local-sgd" and number > 3 and not Path("go").exists():
        time.sleep(0.01)
    if self.spec.name != "local-sgd" or not Path("fail").exists():
        return attempt(self, number)
    error = DivergedError("the loss is no longer finite in round 1")
    error.everywhere = True
    raise error
Method.attempt = wait_or_fail
"""


@pytest.fixture(scope="module")
def said(series, folder):
    """The outcomes of commands of one job."""
    to_stop = ["compare", *SMALL, "--rounds", "12", "--methods", "ist,local-sgd", "--out", "stopped"]
    compare = ["compare", "digits", *SMALL, "--rounds", "6", "--repeats", "2", "--out", "compared"]
    job = series(
        2,
        folder,
        {
            "local-sgd waits or fails": LOCAL_SGD_WAITS_OR_FAILS,
            "stopped": to_stop,
            "then": "import shutil\nif rank == 0: shutil.copytree('stopped', 'then')",
            "on": to_stop,
            **{message: ["compare", *words, "--out", "bad"] for message, words in BAD.items()},
            "tuned": ["compare", *SMALL, *TUNED, "--out", "tuned"],
            "tuned again": ["compare", *SMALL, *TUNED, "--out", "tuned", "--json"],
            "pictures": "allow_pictures()",
            "compare": [*compare, *TARGETS],
            "report": ["alone", "report", "compared", *TARGETS, "--json"],
            "again": [*compare, "--targets", "0.2"],
            "local-sgd fails": "open('fail', 'w').close()",
            "failed": ["compare", *SMALL, "--rounds", "4", "--out", "failed"],
        },
    )
    wait_for_rounds(folder / "stopped" / "local-sgd-0", 3, job.job)
    os.kill(job.job.ranks[1], signal.SIGUSR1)
    (folder / "go").touch()
    return job.end()


def test_a_comparison_leaves_runs_tables_and_pictures(said, folder):
    out, result = folder / "compared", said["compare"]
    assert result.returncode == 0, result
    for text in ("Training time to a score", "not reached", "final accuracy", "Time by phase", "1/6 ist"):
        assert text in result.stdout
    names = [f"{name}-{seed}" for name in METHODS for seed in (0, 1)]
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == names
    assert (out / "report.html").is_file()
    for name in names:
        assert (out / name / "network.h5").exists()
        assert [line["round"] for line in lines(out / name) if "score" in line] == [1, 2, 3, 4, 5, 6]
    rows = json.loads(said["report"].stdout)["comparisons"][0]["rows"]
    assert [(row["method"], row["target"], row["reached"]) for row in rows] == [
        (name, target, reached) for name in METHODS for target, reached in ((0.2, 2), (0.999, 0))
    ]
    # The same samples in every round, and IST sends the least.
    assert len({row["examples_median"] for row in rows if row["target"] == 0.999}) == 1
    sent = {name: lines(out / f"{name}-0")[-1]["bytes"] for name in METHODS}
    assert sent["ist"] < sent["local-sgd"] < sent["data-parallel"]
    examples = {tuple(line["examples"] for line in lines(out / name)) for name in names}
    assert examples == {tuple(2 * 3 * 16 * round for round in range(1, 7))}
    assert said["again"].returncode == 0 and said["again"].stdout.count("is already finished") == 6


def test_a_comparison_that_was_stopped_goes_on_with_the_same_command(said, folder):
    stopped, then, now = said["stopped"], folder / "then", folder / "stopped"
    assert stopped.returncode == 75, stopped
    where = "stopped by SIGUSR1 at local-sgd-0; finished work is saved in stopped. Run the same command"
    assert where in stopped.stderr and not (then / "local-sgd-0" / "summary.json").exists()
    assert said["on"].returncode == 0, said["on"]
    assert "ist-0 is already finished" in said["on"].stdout and "resuming from" in said["on"].stdout
    assert (now / "ist-0" / "metrics.jsonl").read_bytes() == (then / "ist-0" / "metrics.jsonl").read_bytes()
    assert [line["round"] for line in lines(now / "local-sgd-0")] == list(range(1, 13))
    assert len(lines(then / "local-sgd-0")) < 12


def test_a_comparison_chooses_a_rate_for_each_method(said, folder):
    first, again = said["tuned"], said["tuned again"]
    assert first.returncode == again.returncode == 0, first
    for text in (
        "trying narrow, optimizer.lr = 0.1, to round 1",
        "Choice of optimizer.lr: accuracy on held-out examples",
    ):
        assert text in first.stdout
    assert "chosen" in (folder / "tuned" / "report.html").read_text() and "trying" not in again.stderr
    (compared,) = json.loads(again.stdout)["comparisons"]
    (tuning,) = compared["tunings"]
    assert [choice["method"] for choice in tuning["choices"]] == ["ist", "narrow"]
    for choice in tuning["choices"]:
        run = (folder / "tuned" / f"{choice['method']}-0" / "run.toml").read_text()
        assert choice["chosen"] and f"lr = {choice['chosen']}" in run
    assert {row["method"].partition(",")[0] for row in compared["rows"]} == {"ist", "narrow"}


def test_a_method_that_fails_is_reported_and_its_exit_code_is_the_jobs(said, folder):
    result = said["failed"]
    assert result.returncode == 3, result
    assert "local-sgd, seed 0: failed: the loss is no longer finite in round 1" in result.stdout
    assert "failed: the loss is no longer finite" in (folder / "failed" / "report.html").read_text()
    assert "Traceback" not in result.stderr
    for name in ("ist-0", "data-parallel-0"):
        assert json.loads((folder / "failed" / name / "summary.json").read_text())["last"]["round"] == 4


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_told_once_before_anything_is_trained(said, folder, message):
    assert message in said[message].refusal() and not (folder / "bad").exists()
