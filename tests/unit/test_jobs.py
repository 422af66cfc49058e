"""`istmpi job`: what is printed is what was asked for, quoted; what cannot work is refused before that."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from istmpi.cli.main import istmpi
from istmpi.record import RunFolder

ROOT = Path(__file__).parents[2]
COMPARE = ("slurm", "digits", "--compare", "--nodes", 4, "--", "--hidden", "2", "--methods")


def job(*arguments):
    result = CliRunner().invoke(istmpi, ["job", *map(str, arguments)], standalone_mode=False, catch_exceptions=False)
    if result.exception:
        raise result.exception
    return result.stdout


def run_with_stubs(script, folder, **environment):
    """Run a script with istmpi-run and CLUSTER replaced: the words that they were started with, a list a start."""
    programs, log = folder / "programs", folder / "log"
    programs.mkdir()
    stub = programs / "istmpi-run"
    code = f"import json, sys\nprint(json.dumps(sys.argv[1:]), file=open({str(log)!r}, 'a'))"
    stub.write_text(f"#!{sys.executable}\n{code}\n")
    stub.chmod(0o755)
    script = re.sub("(?m)^PATH=.*", f"PATH={programs}:$PATH", script)
    script = re.sub("(?m)^CLUSTER=.*", f"CLUSTER={stub}", script)
    environment = {**os.environ, **environment}
    done = subprocess.run(["bash", "-c", script], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def harmful(tmp_path):
    """A run file whose name would do harm in a shell."""
    file = tmp_path / "a 'b' $(touch harm) `touch harm`; touch harm #.toml"
    file.write_text("[model]\nhidden = [64]\n")
    return file


def test_slurm_fills_in_what_was_asked_for():
    script = job(
        "slurm", "digits", "--nodes", 8, "--time", "4:00:00", "--partition", "long", "--gpus", 2,
        "--modules", "gcc/12,openmpi/4.1", "--launcher", "pmix", "--restarts", 3, "--", "--lr", "0.1",
    )  # fmt: skip
    found = re.findall(r"^#SBATCH --(.*)$", script, re.M)
    assert {"job-name=digits", "nodes=8", "time=4:00:00", "partition=long", "gpus-per-node=2"} <= {*found}
    assert "ntasks-per-node=2" in found and "requeue" in found
    assert len({line.split("=")[0] for line in found}) == len(found), "a setting twice"
    assert "\nmodule load gcc/12 openmpi/4.1\n" in script
    assert "\nOPTIONS=(--restarts 3 --relaunch 3 --launcher pmix --ranks-per-host 2)\n" in script


@pytest.mark.parametrize("form", ["slurm", "pbs", "lsf", "ec2"])
def test_the_processes_of_a_node_train_one_subnet_unless_another_size_of_groups_is_given(form, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[train]\ngroup_size = 4\n")
    nodes = "--instances" if form == "ec2" else "--nodes"
    for several, options, train in (
        (("--gpus", 8), (), "digits --group-size host"),
        (("--gpus", 8), ("--group-size", 1), "digits --group-size 1"),
        (("--gpus", 8), ("--set", "train.group_size=2"), "digits --set train.group_size=2"),
        ((), (), "digits"),
    ):
        script = job(form, "digits", nodes, 2, *several, "--", *options)
        assert f"\nset -- {train}\n" in script and ("--ranks-per-host 8" in script) == bool(several)
        hardware = "--gpus 8" if several else "--type m5.2xlarge"
        assert form != "ec2" or f"UP=(--instances 2 {hardware} --hours 24" in script
    assert f"\nset -- {file}\n" in job(form, file, nodes, 2, "--gpus", 8)
    script = job(form, "digits", nodes, 2, "--sockets", 2)
    assert "--sockets 2)\n" in script and "\nset -- digits --group-size host\n" in script


GRAMMAR = {
    "slurm": r"#{1,2}SBATCH --((job-name|account|partition)=[\w.-]+|(nodes|(ntasks|gpus)-per-node|cpus-per-task)=\d+|"
    r"exclusive|time=[\d:-]+|mem=\d+G|array=1-\d+|requeue|no-kill|signal=USR1@\d+|open-mode=append|output=%x-%j.out)",
    "pbs": r"#{1,2}PBS -([NAq] [\w.-]+|l select=\d+:ncpus=\d+:mpiprocs=\d+(:mem=\d+gb)?(:ngpus=\d+)?|"
    r"l walltime=\d+:\d\d:\d\d|l place=scatter:excl|J 1-\d+|j oe|r y)",
    "lsf": r'#{1,2}BSUB -(J "[\w-]+(\[1-\d+\])?"|[nW] \d+|R "(span\[ptile=\d+\]|rusage\[mem=\d+GB/host\])"|'
    r'[Pq] [\w.-]+|gpu "num=\d+"|x|r|Q "75"|o %J.%I.out)',
}
"""Lines of directives, by the manuals of sbatch, of qsub (PBS Professional 2022) and of bsub (LSF 10.1)."""


@pytest.mark.parametrize("scheduler", GRAMMAR)
def test_every_scheduler_gets_directives_of_its_manual(scheduler):
    given = "--nodes=8", "--time=1-2", "--gpus=2", "--cores=9", "--memory=64", "--account=a-1", "--queue=long"
    scripts = [job(scheduler, "digits", *words) for words in ((), given, (*given, "--seeds", 3), ("--compare",))]
    scripts += [path.read_text() for path in (ROOT / "jobs" / scheduler).iterdir()]
    for script in scripts:
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
        lines = [line for line in script.splitlines() if re.match(r"##?[A-Z]+ -", line)]
        assert not [line for line in lines if not re.fullmatch(GRAMMAR[scheduler], line)]
    plain, filled, seeds = (sum(line.startswith("##") for line in script.splitlines()) for script in scripts[:3])
    assert plain >= 3 > 1 >= filled and not seeds, "options that were not given are comments"
    assert re.search(r"26:00:00|1560|=1-2$", scripts[1], re.M), "the time in the scheduler's form"
    assert re.search(r"cpus-per-task=4$|:ncpus=9:mpiprocs=2|-n 72\n.*ptile=9", scripts[1], re.M), "cores of a node"
    assert re.search(r"ks-per-node=16$|:ncpus=16:mpiprocs=16|ptile=16", job(scheduler, "digits", "--gpus", 16), re.M)


@pytest.mark.parametrize("scheduler", GRAMMAR)
def test_schedulers_scripts_quote_and_never_execute(scheduler, harmful, tmp_path):
    script = job(scheduler, harmful, "--nodes", 2, "--", "--out", "$(touch harm)")
    given = dict.fromkeys(("SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD"), str(tmp_path))
    given |= dict.fromkeys(("PBS_NODEFILE", "LSB_DJOB_HOSTFILE"), os.devnull)
    given |= dict.fromkeys(("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "LSB_JOBINDEX"), "7")
    given |= dict.fromkeys(("SLURM_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME"), "name")
    (words,) = run_with_stubs(script, tmp_path, **given)
    assert words[2:6] == ["--relaunch", "3", "istmpi", "train"] and words[0] in ("--restarts", "--hosts")
    assert words[-7:] == [str(harmful), "--out", "$(touch harm)", "--seed", "7", "--out", "runs/name-seed-7"]
    assert not list(tmp_path.rglob("harm"))


def test_ec2_fills_in_what_was_asked_for(harmful, tmp_path):
    script = job(
        "ec2", harmful, "--instances", 8, "--spot", "--region", "eu-central-1", "--key", "my key",
        "--ssh-from", "203.0.113.7/32", "--yes-open", "--hours", 100, "--", "--out", "$(touch harm)",
    )  # fmt: skip
    up, run, fetch, down = run_with_stubs(script, tmp_path)
    region, name = ["--region", "eu-central-1"], "istmpi-a-b-touch-harm-touch-harm-touch-h"
    assert up == [
        *region, "up", name, "--instances", "8", "--type", "m5.2xlarge", "--hours", "100", "--spot", "--yes-open",
        "--ssh-from", "203.0.113.7/32", "--key", "my key",
    ]  # fmt: skip
    train = ["--", "istmpi", "train", str(harmful), "--out", "$(touch harm)"]
    assert run == [*region, "run", name, "--send", str(harmful), *train]
    assert (fetch, down) == ([*region, "fetch", name, "$(touch harm)"], [*region, "down", name])
    assert not list(tmp_path.rglob("harm"))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("slurm", "nowhere.toml"), "run nowhere.toml is neither a file nor a built-in run"),
        (("slurm", "digits", "--nodes", 0), "'--nodes': '0' must be a whole number, 1 to 100,000"),
        (("ec2", "digits", "--instances", 2, "--hours", 1000), "'--hours': '1000' must be a whole number, 1 to 720"),
        (("ec2", "digits", "--instances", 2, "--", "--out", "/out"), "--out /out: on EC2 a run's folder is under"),
        (("ec2", "digits", "--instances", 2, "--", "--out", "a/../../b"), "on EC2 a run's folder is under /shared"),
        (("slurm", "digits", "--time", "soon"), "--time soon: must be minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS"),
        (("slurm", "digits", "--partition", "a\n#SBATCH"), "must be letters, digits and"),
        (("slurm", "digits", "--compare", "--relaunch", 1), "--relaunch may change the number of ranks"),
        (("pbs", "digits", "--compare", "--seeds", 2), "--seeds is for a single method"),
        (("lsf", "digits", "--seeds", 2, "--", "--out", "a"), "--out a: with --seeds each seed has a folder."),
        (("lsf", "digits", "--seeds", 2, "--", "--seed", 4), "--seed: with --seeds the seeds are 1 to N."),
        (("pbs", "digits", "--restarts", 3), "--restarts is for istmpi job slurm only."),
        (("pbs", "digits", "--gpus", 4, "--cores", 2), "--cores 2: must be at least --gpus, 4."),
        (("lsf", "digits", "--time", "4:00"), "4:00 is minutes and seconds to SLURM, hours and minutes to LSF."),
        (("slurm", "digits", "--time", "UNLIMITED"), "--time UNLIMITED: a job must have an end"),
        (("lsf", "digits", "--time", "366-0"), "--time 366-0: must be at most 365 days."),
        (("pbs", "digits", "--time", "0"), "--time: 0 minutes must be more than --stop-before-walltime, 5."),
        (("slurm", "digits", "--", "--model", "nofile.py:Net"), "model nofile.py does not exist."),
        (("slurm", "digits", "--", "--model", f"{__file__}:Net", "--data", "no.h5"), "data no.h5 does not exist."),
        (("slurm", "digits", "--stage", "nowhere"), "--stage nowhere does not exist."),
        (("slurm", "digits", "--nodes", 4, "--", "--hidden", "2"), "hidden1 has 2 units, but the run has 4 ranks"),
        ((*COMPARE, "local-sgd,ist"), "hidden1 has 2 units, but the run has 4 ranks"),
        (("slurm", "digits", "--", "--lrr", "2"), "No such option"),
        (("pbs", "digits", "--gpus", 8, "--", "--group-size", 3), "train.group_size = 3 does not divide the 8"),
        (("ec2", "digits", "--instances", 2, "--gpus", 8, "--sockets", 2), "--gpus and --sockets both say"),
        (("slurm", "digits", "--gpus", 2, "--", "--method", "joint"), "host does not go with method joint"),
    ],
)  # fmt: skip
def test_refused_before_anything_is_printed(arguments, message):
    with pytest.raises(Exception) as raised:  # noqa: PT011 the message says which
        job(*arguments)
    error = raised.value
    assert message.lower() in (error.format_message() if hasattr(error, "format_message") else str(error)).lower()


def test_a_job_records_the_machine_where_istmpi_train_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RunFolder(Path("runs/digits")).make()
    assert job("folder", "--", "digits").strip() == "runs/digits-2"
    assert job("folder", "--", "digits", "--resume", "auto").strip() == "runs/digits"


def test_a_comparison_is_checked_by_its_own_methods():
    assert "local-sgd,fedavg" in job(*COMPARE, "local-sgd,fedavg"), "nothing is dealt out"


def test_programs_that_start_ranks_refuse_in_one_line(tmp_path):
    def refused(*words):
        done = subprocess.run([ROOT / "bin/istmpi-run", *words], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        return done.stderr.removeprefix("istmpi-run: ").strip()

    assert refused() == "no command to start; see istmpi-run --help."
    assert refused("--nodes", "0", "true") == "--nodes 0: must be a whole number of at least 1."
    assert refused("--nodes") == "--nodes needs a value; see istmpi-run --help."
    assert refused("--node", "2") == "no option --node; see istmpi-run --help."
    launchers = "pmix, pmi2, cray_shasta, srun, flux, pals or mpirun"
    words = "or the words of a launcher, such as 'srun -n {ranks}'"
    assert refused("--launcher", "rsh", "true") == f"--launcher rsh: must be {launchers}, {words}."
    assert refused("--hosts", tmp_path / "none", "true") == f"--hosts {tmp_path}/none: there is no such file."
