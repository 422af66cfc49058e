"""bin/istmpi-run: what it copies nobody can plant, exit codes are the same for any MPI, lost hosts are replaced."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

ROOT = Path(__file__).parents[2]
NOBODY = 65534
JOB = "77"


def istmpi_run(tmp_path, *words, **environment):
    launcher = os.environ.get("MPIRUN") or shutil.which("mpirun")
    path = [str(Path(launcher).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    settings = {**os.environ, "PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    for name in ("ISTMPI_LOCAL", "SLURM_TMPDIR"):
        settings.pop(name, None)
    return subprocess.run(
        list(map(str, [ROOT / "bin/istmpi-run", "--launcher", "mpirun", *words])),
        env={**settings, "SLURM_JOB_ID": JOB, **environment},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(120),
    )


@pytest.fixture
def shared(tmp_path):
    """A folder like /tmp: everybody may write to it, and nobody may replace what is another's."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def environment(tmp_path):
    """A virtual environment whose istmpi says from where it was started; mpirun once died of one that ended at once."""
    folder = tmp_path / "environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = here\n")
    (folder / "bin/python").symlink_to("/bin/bash")
    (folder / "bin/istmpi").write_text('echo "from $0 with $*"; sleep 0.3\n')
    return folder


def test_what_is_copied_lies_in_a_private_folder(tmp_path, shared, environment):
    data = tmp_path / "data 'of $(touch harm)"
    data.write_text("numbers")
    data.chmod(0o755)
    words = ["--stage", data, "--stage-venv", "istmpi", "read", data]
    before = sorted(path.name for path in tmp_path.iterdir())
    done = istmpi_run(tmp_path, *words, TMPDIR=str(shared), VIRTUAL_ENV=str(environment))
    assert done.returncode == 0, done.stderr
    private = shared / f"istmpi-{os.geteuid()}"
    assert stat.S_IMODE(private.stat().st_mode) & 0o777 == 0o700
    (copy,) = private.rglob(data.name)
    assert copy.read_text() == "numbers" and os.access(copy, os.X_OK)
    assert done.stdout == f"from {private}/venv-{JOB}/bin/istmpi with read {copy}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "what was packed is still there"

    copied = copy.stat().st_ino
    again = istmpi_run(tmp_path, *words, TMPDIR=str(shared), VIRTUAL_ENV=str(environment))
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout and copy.stat().st_ino == copied, "it was copied again"


@pytest.mark.parametrize(
    "planted, message",
    [
        ("another's", "directory of nobody, mode 700"),
        ("a link to another's", "symbolic link of nobody, mode 777"),
        ("open", "directory of root, mode 777"),
        ("replaceable", "any user may replace files in"),
    ],
)
def test_a_planted_folder_is_refused_and_nothing_of_it_runs(tmp_path, shared, environment, planted, message):
    if os.geteuid() != 0:
        pytest.skip("only root can plant another user's files")
    private = shared / f"istmpi-{os.geteuid()}"
    folder = tmp_path / "elsewhere" if planted == "a link to another's" else private
    (folder / f"venv-{JOB}/bin").mkdir(parents=True)
    python = folder / f"venv-{JOB}/bin/python"
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/harm\n")
    python.chmod(0o755)
    folder.chmod(0o777 if planted == "open" else 0o700)
    if planted in ("another's", "a link to another's"):
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    if folder != private:
        private.symlink_to(folder)
        os.lchown(private, NOBODY, NOBODY)
    if planted == "replaceable":
        shared.chmod(0o777)
    done = istmpi_run(tmp_path, "--stage-venv", "istmpi", "go", TMPDIR=str(shared), VIRTUAL_ENV=str(environment))
    assert done.returncode == 2
    refusal = done.stderr.splitlines()[-1]
    assert refusal.startswith(f"istmpi-run: {private}: on ") and message in refusal
    assert refusal.endswith(" Remove it, or name a folder of your own: ISTMPI_LOCAL.")
    assert len(done.stderr.splitlines()) == 2, done.stderr  # the other says that all ranks meet
    assert not (tmp_path / "harm").exists() and done.stdout == ""


@pytest.mark.parametrize("command, code", [("kill -KILL $$", 137), ("kill -TERM $$", 143), ("exit 75", 75)])
def test_a_rank_gives_the_same_code_with_any_mpi(tmp_path, command, code):
    for _ in range(3):  # mpirun itself may fail, as istmpi-run knows
        done = istmpi_run(tmp_path, "bash", "-c", command)
        if done.returncode not in (141, 255):
            break
    assert done.returncode == code, done.stderr


MPIRUN = """[ "$1" != --version ] || { echo "VERSION"; exit; }
printf '%s\\n' "$*" >>started
while case $1 in -*) ;; *) false ;; esac; do shift 2; done
exec "$@\""""


def stand_ins(folder, **programs):
    """Shell scripts in place of programs; the PATH on which they are found first."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.mark.parametrize(
    "version, code, queued",
    [
        ("HYDRA build details:", 255, "mpirun itself failed (exit code 255)"),
        ("HYDRA build details:", 11, "the run was killed (exit code 139)"),
        ("mpirun (Open MPI) 4.1.4", 255, None),
    ],
)
def test_a_job_whose_launcher_fails_is_queued_again(tmp_path, version, code, queued):
    """MPICH's ends with 255, by an assertion of its own, once in a hundred kills of a rank: too seldom for a test."""
    scontrol = '[ "$1" != show ] || exec hostname\necho "$@" >>asked\nexit 1'
    path = stand_ins(tmp_path, mpirun=MPIRUN.replace("VERSION", version), scontrol=scontrol)
    slurm = {"SLURM_JOB_NODELIST": "here", "SLURM_JOB_CPUS_PER_NODE": "1", "PATH": path}
    done = istmpi_run(tmp_path, "--restarts", "3", "bash", "-c", f"exit {code}", **slurm)
    assert done.returncode == (139 if code == 11 else code), done.stderr
    assert (tmp_path / "asked").exists() == bool(queued)
    assert f"{queued}; queued again, restart 1 of 3" in done.stderr if queued else "queued" not in done.stderr


HOSTS_MPIRUN = """[ "$1" != --version ] || { echo "HYDRA build details:"; exit; }
while case $1 in -*) ;; *) false ;; esac; do [ "$1" != -f ] || hosts=$(cat "$2"); shift 2; done
for host in $hosts; do [ ! -e "lost-$host" ] || exit 5; done
case $* in
    true | *--json*) exit ;;
    *--meet*) echo "$(echo $hosts | wc -w) ranks meet: all"; exit ;;
esac
echo $hosts >>launched
. ./next"""
"""Stands in for MPICH's: it fails where a host is lost, and else does what the file ``next`` says."""


def relaunched(tmp_path, then, *words, command=("bash", "-c", "work")):
    """What istmpi-run does on three hosts: the outcome, and the hosts of each launch of the command."""
    (tmp_path / "hosts").write_text("a # the first\nb\nc\n")
    (tmp_path / "next").write_text(then)
    path = stand_ins(tmp_path, mpirun=HOSTS_MPIRUN, istmpi='case $* in "job folder"*) echo run ;; esac')
    done = istmpi_run(tmp_path, "--hosts", "hosts", *words, *command, PATH=path)
    launched = tmp_path / "launched"
    return done, launched.read_text().splitlines() if launched.exists() else []


@pytest.mark.parametrize(
    "then, words, code, launched",
    [
        ("touch lost-b; echo exit >next; exit 1", ["--relaunch", 1], 0, ["a b c", "a c"]),
        ("touch lost-b; exit 1", ["--relaunch", 0], 1, ["a b c"]),
        ("touch lost-b; exit 3", ["--relaunch", 2], 3, ["a b c"]),
        ("touch lost-b; echo exit >next; exit 1", ["--relaunch", 1, "--nodes", 2], 0, ["a b", "a c"]),
        ("touch lost-b; echo 'rm lost-b; touch lost-a; exit 1' >next; exit 1", ["--relaunch", 2], 1, 3),
        ("exit 1", ["--relaunch", 2], 1, ["a b c"]),
        ("exit 76", ["--relaunch", 2], 76, ["a b c"] * 3),
        ("exit 75", ["--relaunch", 1], 75, ["a b c"]),
    ],
)
def test_a_command_starts_again_on_the_hosts_that_answer(tmp_path, then, words, code, launched):
    done, hosts = relaunched(tmp_path, then, *words)
    assert done.returncode == code, done.stderr
    assert hosts == (["a b c", "a c", "b c"] if launched == 3 else launched)
    assert done.stderr.count("; started again on ") == len(hosts) - 1


def test_a_run_that_has_not_ended_is_started_again_whatever_mpirun_says(tmp_path):
    """Open MPI 5 ends with 0 where it has lost a host."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").touch()
    train = ("istmpi", "train", "digits", "--resume", "auto")
    done, hosts = relaunched(tmp_path, "echo 'touch run/summary.json' >next; exit 0", "--relaunch", 1, command=train)
    assert (done.returncode, len(hosts)) == (0, 2), done.stderr
    assert "exit code 0, but the run in run has not ended: treated as killed" in done.stderr
    (run / "summary.json").unlink()
    assert relaunched(tmp_path, "exit 0", command=train)[0].returncode == 137
    for words in ((), ("--resume", "auto", "--dry-run")):
        assert relaunched(tmp_path, "exit 0", command=("istmpi", "train", "digits", *words))[0].returncode == 0


def test_a_run_that_would_begin_anew_is_not_started_again(tmp_path):
    done, hosts = relaunched(tmp_path, "exit 76", "--relaunch", 1, command=("istmpi", "train", "digits"))
    said = "istmpi-run: --relaunch needs istmpi train RUN --resume auto, or a run's folder as RUN.\n"
    assert (done.returncode, done.stderr, hosts) == (2, said, [])


ANY_LAUNCHER = """case $* in
    *--version) echo "${SAYS:-PALS 1.2}"; exit ;;
    "hostlist "*) echo a b; exit ;;
    --mpi=list) echo pmi2; exit ;;
esac
echo "${0##*/} $*" >>started; echo $OMP_NUM_THREADS $UCX_NET_DEVICES $FI_TCP_IFACE $OMPI_MCA_btl_tcp_if_include >vars
case $* in
    *--mpi=pmi2*) exit 1 ;;
    *=4*--meet* | *"-n 4"*--meet*) echo "4 ranks meet: all" ;;
    *--meet*) echo "2 ranks meet: all" ;;
esac"""
"""Stands in for srun, flux and mpiexec: it notes its words, and only ranks of --mpi=pmi2 do not meet."""


SLURM = {"SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_CPUS_PER_NODE": "3(x2)"}
JSRUN = "jsrun -n {ranks} -r {ranks-per-host} -c {cores} {hosts}"


@pytest.mark.parametrize(
    "words, environment, started",
    [
        ([], SLURM, "srun --nodes=2 --ntasks=2 "),
        (["--sockets", "2"], SLURM, "srun --ntasks-per-socket=1 --cpu-bind=sockets --nodes=2 --ntasks=4 "),
        (["--sockets", "2", "--launcher", "mpirun"], {"SAYS": "HYDRA"}, "mpirun -n 2 -ppn 2 -bind-to socket work"),
        (
            ["--sockets", "2", "--launcher", "mpirun", "--hosts", "hosts", "--interface", "lo"],
            {"SAYS": "mpirun (Open MPI) 4.1.4"},
            r"mpirun -n 4 --hostfile \S+ (-x \w+ ){2}-x UCX_NET_DEVICES --map-by ppr:1:socket --bind-to socket work",
        ),
        (["--launcher", "cray_shasta"], SLURM, "srun --mpi=cray_shasta --nodes=2"),
        (
            ["--sockets", "2", "--threads", "3"],
            {"FLUX_URI": "x"},
            "flux run --nodes=2 --ntasks=4 --cores-per-task=3 work",
        ),
        (["--launcher", "pals", "--hosts", "hosts", "--interface", "lo"], {}, "mpiexec -n 2 --ppn 1 --depth "),
        (["--launcher", JSRUN, "--hosts", "hosts", "--threads", "5"], {}, "jsrun -n 2 -r 1 -c 5 a,b work"),
    ],
)
def test_launchers_of_other_machines_get_their_words(tmp_path, words, environment, started):
    """Stand-ins check the words and variables alone: none of these launchers ran on a machine of its own."""
    (tmp_path / "hosts").write_text("a\nb\n")
    programs = dict.fromkeys(("srun", "flux", "mpiexec", "jsrun", "mpirun"), ANY_LAUNCHER)
    path = stand_ins(tmp_path, scontrol="printf 'a\\nb\\n'", **programs)
    done = subprocess.run(
        list(map(str, [ROOT / "bin/istmpi-run", *words, "work"])),
        env={**os.environ, "PATH": path, "SLURM_JOB_ID": JOB, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert done.returncode == 0, done
    lines = (tmp_path / "started").read_text().splitlines()
    assert re.match(started, lines[-1]) and lines[-1].endswith(" work"), lines
    assert "istmpi doctor --meet" in lines[-2] and re.match(started.removesuffix("work"), lines[-2]), lines
    threads, *interfaces = (tmp_path / "vars").read_text().split()
    assert interfaces == ["lo"] * 3 * ("lo" in words)
    assert threads == dict(zip(words[::2], words[1::2], strict=True)).get("--threads", threads)
    assert ("--sockets 2 with --launcher flux does not bind to sockets; give" in done.stderr) == ("flux" in started)
    assert ("do not meet" in done.stderr) == ("SLURM_JOB_NODELIST" in environment and "--launcher" not in words)


def test_a_file_of_hosts_from_windows_or_of_open_mpi_is_read(tmp_path):
    """Empty lines with Windows line ends are no hosts; slots= is for Open MPI alone."""
    (tmp_path / "hosts.txt").write_bytes(b"localhost max_slots=4 slots=2\r\n\r\n# of us\r\n")
    # MPICH's launcher writes to its proxies at the start: a program that is over by then ends the launcher with 141.
    program = ("sh", "-c", "sleep 2; echo started")
    done = istmpi_run(tmp_path, "--hosts", "hosts.txt", "--threads", "1", *program)
    assert done.returncode == 0 and done.stdout.count("started") == 1, done
    assert "hosts: 1, ranks: 1," in done.stdout + done.stderr
