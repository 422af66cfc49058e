"""`istmpi compare` as its users start it: tables and files at the end, going on after a stop, exit codes."""

import json
import os
import signal

from following import lines, wait_for_rounds

SMALL = ("--hidden", "32", "--local-steps", "3", "--batch", "16")


def test_a_comparison_leaves_runs_tables_and_pictures(mpirun, tmp_path):
    out = tmp_path / "comparison"
    command = ["istmpi", "compare", "digits", *SMALL, "--rounds", "6", "--repeats", "2", "--out", out]
    result = mpirun(2, *command, "--targets", "0.2,0.999")
    assert result.returncode == 0, result.stderr
    for text in ("Training time to a score", "not reached", "final accuracy", "Time by phase", "1/6 ist"):
        assert text in result.stdout
    names = [f"{name}-{seed}" for name in ("data-parallel", "ist", "local-sgd") for seed in (0, 1)]
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == names
    assert (out / "report.html").is_file()
    for name in names:
        assert (out / name / "network.h5").exists()
        assert [line["round"] for line in lines(out / name) if "score" in line] == [1, 2, 3, 4, 5, 6]
    told = mpirun(1, "istmpi", "report", out, "--targets", "0.2,0.999", "--json")
    rows = json.loads(told.stdout)["comparisons"][0]["rows"]
    assert [(row["method"], row["target"], row["reached"]) for row in rows] == [
        (name, target, reached)
        for name in ("data-parallel", "ist", "local-sgd")
        for target, reached in ((0.2, 2), (0.999, 0))
    ]
    # The same samples in every round, and IST sends the least.
    assert len({row["examples_median"] for row in rows if row["target"] == 0.999}) == 1
    sent = {name: lines(out / f"{name}-0")[-1]["bytes"] for name in ("data-parallel", "ist", "local-sgd")}
    assert sent["ist"] < sent["local-sgd"] < sent["data-parallel"]
    examples = {tuple(line["examples"] for line in lines(out / name)) for name in names}
    assert examples == {tuple(2 * 3 * 16 * round for round in range(1, 7))}
    again = mpirun(2, *command, "--targets", "0.2")
    assert again.returncode == 0 and again.stdout.count("is already finished") == 6


def test_a_comparison_that_was_stopped_goes_on_with_the_same_command(start, mpirun, tmp_path):
    out = tmp_path / "comparison"
    command = ["istmpi", "compare", *SMALL, "--rounds", "300", "--methods", "ist,local-sgd", "--out", out]
    job = start(2, *command)
    wait_for_rounds(out / "local-sgd-0", 3, job)
    os.kill(job.ranks[1], signal.SIGUSR1)
    result = job.end(30)
    assert result.returncode == 75
    assert f"stopped by SIGUSR1 at local-sgd-0; finished work is saved in {out}. Run the same command" in result.stderr
    assert not (out / "local-sgd-0" / "summary.json").exists()
    finished = (out / "ist-0" / "metrics.jsonl").read_bytes()
    done = len(lines(out / "local-sgd-0"))
    again = mpirun(2, *command)
    assert again.returncode == 0, again.stderr
    assert "ist-0 is already finished" in again.stdout and "resuming from" in again.stdout
    assert (out / "ist-0" / "metrics.jsonl").read_bytes() == finished
    assert [line["round"] for line in lines(out / "local-sgd-0")] == list(range(1, 301)) and done < 300


def test_a_method_that_fails_is_reported_and_its_exit_code_is_the_jobs(mpirun, tmp_path):
    program = (
        "import sys; from istmpi.cli.main import main\n"
        "from istmpi.errors import DivergedError; from istmpi.methods.base import Method\n"
        "attempt = Method.attempt\n"
        "def fails(self, number):\n"
        "    if self.spec.name != 'local-sgd': return attempt(self, number)\n"
        "    error = DivergedError('the loss is no longer finite in round 1')\n"
        "    error.everywhere = True\n"
        "    raise error\n"
        "Method.attempt = fails\n"
        "main()"
    )
    out = tmp_path / "comparison"
    result = mpirun(2, "python", "-c", program, "compare", *SMALL, "--rounds", "4", "--out", out)
    assert result.returncode == 3, result.stderr
    assert "local-sgd, seed 0: failed: the loss is no longer finite in round 1" in result.stdout
    assert "failed: the loss is no longer finite" in (out / "report.html").read_text()
    assert "Traceback" not in result.stderr
    for name in ("ist-0", "data-parallel-0"):
        assert json.loads((out / name / "summary.json").read_text())["last"]["round"] == 4


BAD = {
    "--methods: 'local-sdg' is not known; did you mean local-sgd?": ["--methods", "ist,local-sdg"],
    "--targets 63: a target of the accuracy must be above 0 and at most 1": ["--targets", "63"],
    "train.max_minutes = -1 must be at least 0": ["--max-minutes", "-1"],
    "ist: hidden1 has 1 units, but the run has 2 ranks": ["--hidden", "1"],
    "method.finish = 'local-sdg' is not known; did you mean local-sgd?": ["--finish", "local-sdg:10%"],
    "nowhere.h5 does not exist": ["--data", "nowhere.h5"],
    "use --methods": ["--set", "method.name=ist"],
}


def test_bad_input_is_told_once_before_anything_is_trained(refused, tmp_path):
    out = tmp_path / "comparison"
    said = refused(2, *(["compare", *options, "--out", out] for options in BAD.values()))
    assert all(message in line for message, line in zip(BAD, said, strict=True)), said
    assert not out.exists()
