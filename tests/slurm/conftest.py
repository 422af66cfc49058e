"""A real SLURM with four nodes on this host: started for these tests, gone after them."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from following import weights
from patience import patient
from slurm_cluster import RUN, Cluster, Job

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PATH": f"{ROOT / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    missing = [program for program in ("sbatch", "srun") if shutil.which(program) is None]
    missing += [program for program in ("slurmctld", "slurmd") if not Path("/usr/sbin", program).exists()]
    if missing or os.geteuid() != 0:
        pytest.skip(f"no SLURM to start here ({', '.join(missing) or 'not root'}); bin/test slurm installs one")
    with Cluster(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        running.environment |= ENVIRONMENT
        yield running


@pytest.fixture
def submit(cluster, tmp_path):
    """``submit(script, *arguments, options=())`` hands a script, or the text of one, to sbatch; returns the `Job`."""
    jobs = []

    def run(script, *arguments, options=(), env=None):
        log = tmp_path / f"log-{len(jobs)}"
        words = ["sbatch", "--parsable", f"--output={log}", *options]
        text = None if isinstance(script, Path) else script
        words += [str(script), *arguments] if text is None else []
        environment = cluster.environment | {key: str(value) for key, value in (env or {}).items()}
        limits = {"cwd": ROOT, "timeout": patient(30)}
        done = subprocess.run(
            list(map(str, words)), env=environment, input=text, capture_output=True, text=True, **limits
        )
        assert done.returncode == 0, done.stderr
        jobs.append(Job(cluster, done.stdout.strip(), log))
        return jobs[-1]

    yield run
    for job in jobs:
        cluster.command("scancel", job.number, check=False)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """``undisturbed(ranks)``: the weights of RUN, trained by mpirun on so many ranks."""

    @cache
    def train(ranks):
        out = tmp_path_factory.mktemp("reference") / "run"
        command = [os.environ.get("MPIRUN") or "mpirun", "-n", str(ranks), "istmpi", "train", *RUN, "--out", str(out)]
        subprocess.run(command, env={**os.environ, **ENVIRONMENT}, check=True, timeout=patient(100))
        return weights(out)

    return train
