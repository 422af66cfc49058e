"""The job scripts on a real SLURM: to the end, through every way of being disturbed, and where they must fail."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from following import weights
from slurm_cluster import RUN, rounds

ROOT = Path(__file__).parents[2]

TEMPLATES = sorted((ROOT / "jobs" / "slurm").glob("*.sbatch"))
pytestmark = pytest.mark.timeout(600)


def filled_in(*arguments):
    command = [sys.executable, "-c", "from istmpi.cli.main import main; main()", "job", "slurm", *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


WITHOUT_RECORD = f"""#!/bin/sh
case "$1 $2" in "doctor --json") exit ;; esac
exec {Path(sys.executable).with_name("istmpi")} "$@"
"""
"""As long as the run takes to start, istmpi-run would record the machine: once is enough."""


def disturbed(submit, cluster, out, *options, nodes=2, relaunch=0):
    """A run that saves often; the time limit is ten minutes."""
    (out.parent / "istmpi").write_text(WITHOUT_RECORD)
    (out.parent / "istmpi").chmod(0o755)
    script = filled_in(
        "digits", "--nodes", nodes, "--launcher", "pmi2", "--time", "10", "--relaunch", relaunch,
        "--", *RUN[1:], "--checkpoint-every", "2", "--out", out, *options,
    )  # fmt: skip
    return submit(script, env={"PATH": f"{out.parent}:{cluster.environment['PATH']}"})


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_sbatch_accepts_every_line(cluster, template):
    done = subprocess.run(
        ["sbatch", "--test-only", template, "digits"], env=cluster.environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "to start at" in done.stderr, done.stderr
    lines = template.read_text()
    assert ("--no-kill" in lines) == ("--relaunch" in lines) == (template.name == "train.sbatch")
    for wanted in ("--requeue", "--signal=USR1@120", "--open-mode=append", "--ntasks-per-node=1"):
        assert f"#SBATCH {wanted}\n" in lines


def test_a_job_on_four_nodes_ends_as_mpirun_does(submit, tmp_path, undisturbed):
    out = tmp_path / "run"
    job = submit(ROOT / "jobs/slurm/train.sbatch", *RUN, "--out", out, options=["--nodes=4"])
    assert job.end() == "COMPLETED", job.output
    assert weights(out) == undisturbed(4)
    assert "srun --mpi=pmix --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=" in job.output
    assert "all ranks meet" in job.output
    (record,) = (out / "job").iterdir()
    report = json.loads(record.read_text())
    assert report["ranks"] == 4 and report["machine"]["settings"]["SLURM_JOB_ID"] == job.number
    assert report["machine"]["packages"]["numpy"]


def test_a_job_whose_time_runs_out_goes_on(submit, cluster, tmp_path, undisturbed):
    """It stops in its very first round, so long before the end is asked for; then it is given more time."""
    out = tmp_path / "run"
    job = disturbed(submit, cluster, out, "--stop-before-walltime", "9.99")
    job.wait_until(lambda: job.restarts == 1, "the first restart")
    assert "stopped by the job's time limit, after 0 of 60 rounds" in job.output
    assert "the run was stopped and saved; queued again, restart 1 of 20" in job.output
    cluster.command("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")
    assert job.end() == "COMPLETED", job.output
    assert weights(out) == undisturbed(2)


def test_a_job_that_is_signalled_requeued_and_killed_goes_on(submit, cluster, tmp_path, undisturbed):
    out = tmp_path / "run"
    job = disturbed(submit, cluster, out)

    def after_three_rounds(restart, *command):
        wanted = rounds(out) + 3
        job.wait_until(lambda: job.facts["JobState"] == "RUNNING" and rounds(out) >= wanted, "three rounds more")
        cluster.command(*command)
        job.wait_until(lambda: job.restarts == restart, f"restart {restart}")

    after_three_rounds(1, "scancel", "--signal=USR1", job.number)  # as --signal=USR1@120 does
    assert "stopped by SIGUSR1" in job.output
    after_three_rounds(2, "scontrol", "requeue", job.number)
    after_three_rounds(3, "scancel", "--signal=KILL", f"{job.number}.2")
    assert "the run was killed (exit code 137); queued again, restart 3 of 20" in job.output
    assert job.end() == "COMPLETED", job.output
    assert job.output.count("resuming from") == 3
    assert weights(out) == undisturbed(2)


def test_a_job_goes_on_at_once_without_a_lost_node(submit, cluster, tmp_path):
    """Its processes, the node's daemon and the steps are gone; SLURM itself takes minutes to notice."""
    out = tmp_path / "run"
    job = disturbed(submit, cluster, out, "--rounds", "100", "--set", "comm.patience=3", nodes=3, relaunch=1)
    job.wait_until(lambda: rounds(out) >= 5, "five rounds")
    cluster.lose_node("n3")
    try:
        job.wait_until((out / "summary.json").exists, "the end of the run")
    finally:
        cluster.start_node("n3")  # without it the job would not be over for SLURM for minutes
    assert job.end() == "COMPLETED", job.output
    assert "no answer from n3; started again on n1 n2; 0 more times at most" in job.output
    assert job.restarts == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 101))
    assert (lines[0]["ranks"], lines[-1]["ranks"]) == (3, 2)


def test_a_job_whose_rank_is_killed_under_mpirun_is_queued_again(submit, tmp_path):
    """MPICH's mpirun ends with the signal's bare number."""
    once = 'test -e "$0" || { touch "$0"; kill -KILL $$; }'
    words = ["istmpi-run", "--restarts", "1", "--launcher", "mpirun", "bash", "-c", once, str(tmp_path / "killed")]
    job = submit(f"#!/bin/bash\n#SBATCH --requeue --nodes=1 --open-mode=append\n{shlex.join(words)}\n")
    assert job.end() == "COMPLETED", job.output
    assert job.restarts == 1
    assert "the run was killed (exit code 137); queued again, restart 1 of 1" in job.output


def test_a_job_that_cannot_work_fails_once_before_anything_is_started_or_in_training(submit, cluster, tmp_path):
    job = submit(ROOT / "jobs/slurm/train.sbatch", "digits", "--hidden", "2", options=["--nodes=4"])
    assert (job.end(), job.facts["ExitCode"], job.restarts) == ("FAILED", "2:0", 0)
    assert job.output.startswith("istmpi: hidden1 has 2 units, but the run has 4 ranks"), job.output
    assert len(job.output.splitlines()) == 1, job.output
    job = disturbed(submit, cluster, tmp_path / "run", "--lr", "1e30")
    assert (job.end(), job.facts["ExitCode"], job.restarts) == ("FAILED", "3:0", 0)
    assert job.output.count("the loss is no longer finite") == 1, job.output


def test_names_are_never_executed_and_staged_files_are_read_from_the_local_disk(submit, tmp_path):
    """A run file, a data file and a folder whose names would do harm in a shell."""
    folder = tmp_path / "a 'b' $(touch harm) `touch harm`; touch harm #"
    folder.mkdir()
    run, data, out = folder / 'my "run" & more.toml', folder / "data $(touch harm).npz", folder / "out $(touch harm)"
    run.write_text("[model]\nhidden = [16]\n[train]\nrounds = 1\nthreads = 1\n")
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 90)
    x = generator.normal(size=(90, 4)).astype(np.float32)
    np.savez(data, x_train=x, y_train=y, x_test=x, y_test=y)
    options = ("--nodes", "2", "--launcher", "pmi2", "--stage", data)
    job = submit(filled_in(run, *options, "--", "--data", data, "--out", out), env={"ISTMPI_LOCAL": tmp_path / "local"})
    assert job.end() == "COMPLETED", job.output
    assert job.facts["JobName"] == "my-run-more"
    assert (out / "network.h5").exists()
    (copy,) = (tmp_path / "local").rglob("data*.npz")
    assert copy.read_bytes() == data.read_bytes()
    assert f"data       {copy}, 90 + 90 examples" in job.output
    assert not list(tmp_path.rglob("harm")) and not (ROOT / "harm").exists()


def test_methods_are_compared(submit, tmp_path):
    out = tmp_path / "compared"
    quick = ("digits", "--hidden", "64", "--rounds", "3", "--threads", "1", "--methods", "ist,local-sgd")
    job = submit(ROOT / "jobs/slurm/compare.sbatch", *quick, "--out", out, options=["--nodes=2"])
    assert job.end() == "COMPLETED", job.output
    page = (out / "report.html").read_text()
    assert "ist" in page and "local-sgd" in page and len(list(out.glob("*/network.h5"))) == 2
