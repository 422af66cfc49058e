"""Whatever ends one rank ends the whole job: soon, with that rank's message and an exit code that is not zero."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest
from own_program import NET
from patience import patient

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job(mpirun, tmp_path):
    """``job(ranks, body)``: the body of a program that has ``comm`` runs on every rank, as the console script would."""

    def run(ranks, body):
        script = tmp_path / "program.py"
        script.write_text(
            "import os, signal, sys, time\n"
            "import numpy as np\n"
            f"sys.path.insert(0, {str(ROOT)!r})\n"
            "from istmpi.cli.main import main\n"
            "from istmpi.comm import Backoff, world\n"
            "from istmpi.errors import IstmpiError\n\n"
            "def program():\n"
            "    comm = world()\n"
            f"    failing = comm.rank == {ranks - 1}\n"
            "    comm.barrier()\n"
            f"{indent(dedent(body), '    ')}\n"
            "    comm.barrier()\n"
            "    return 0\n\n"
            "main(program)\n"
        )
        return mpirun(ranks, "python", script)

    return run


WAYS = {
    "raises while others are busy": ("if failing: raise RuntimeError('out')\ntime.sleep(600)", "RuntimeError: out"),
    "an error of ours outside of an agreement": ("if failing: raise IstmpiError('not agreed on')", "not agreed on"),
    "sys.exit with a text": ("if failing: sys.exit('leaving early')", "leaving early"),
    "is killed": ("if failing: os.kill(os.getpid(), signal.SIGKILL)", ""),
    "an interrupt": ("if failing: raise KeyboardInterrupt", ""),
    "a code of which no bit arrives": ("if failing: sys.exit(256)", "ends the program with SystemExit (256)"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_end_of_one_rank_is_the_end_of_all(job, way):
    body, message = WAYS[way]
    result = job(2, body)
    assert result.returncode != 0
    assert message in result.stderr, result.stderr
    if message:
        ours = result.errors
        assert len(ours) == 1 and ours[0].startswith("istmpi: rank 1"), result.stderr


LEAVES = f"""
import os, sys
{NET}
class Leaves(Net):
    steps = 0

    def forward(self, x):
        Leaves.steps += self.training
        if self.steps == 30 and os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
            sys.exit(0)
        return super().forward(x)
"""


def test_a_forward_that_leaves_as_if_all_were_done_is_an_error(mpirun, tmp_path):
    (tmp_path / "net.py").write_text(LEAVES)
    words = ("--model", f"{tmp_path}/net.py:Leaves", "--method", "local-sgd", "--rounds", 12, "--out", tmp_path / "run")
    result = mpirun(2, "istmpi", "train", *words)
    assert result.returncode == 1
    assert result.errors == [
        f"istmpi: rank 1: {tmp_path}/net.py, line 21, ends the program with SystemExit (0) before its work is done. "
        f"Return, or raise an error with the reason."
    ]


def test_a_rank_that_misses_another_says_so_and_leaves_the_word_to_the_launcher(job):
    """The launcher is held meanwhile; some MPI libraries tell of a lost peer and some wait for ever."""
    body = """
    launcher = os.getppid()
    values = np.zeros(2**24, dtype=np.uint8)
    request = comm.start_send(values, 0, 7) if failing else None
    comm.barrier()
    if comm.rank == 1:
        os.kill(launcher, signal.SIGSTOP)
        if not os.fork():
            time.sleep(5)
            os.kill(launcher, signal.SIGCONT)
            os._exit(0)
        time.sleep(60)
    time.sleep(1)
    if failing: os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    request, backoff = comm.start_receive(values, 2, 7), Backoff()
    while not comm.all_done([request]):
        backoff.wait_unless(comm.test_some([request]))
    """
    result = job(3, body)
    assert result.returncode in (9, 128 + 9), result
    assert "Traceback" not in result.stderr, result.stderr
    assert all(": a rank is gone: its connection broke (" in line for line in result.errors), result.stderr


SCRIPT_WAYS = {
    "raises": ("if failing: raise RuntimeError('the last rank is out')", 1),
    "leaves with a number after the others": ("if failing: time.sleep(1); sys.exit(5)\nsys.exit()", 5),
    "sys.exit as if all were done": ("if failing: sys.exit(0)", 1),
    "all leave, one later": ("comm.barrier()\nif failing: time.sleep(4)\nsys.exit()", 0),
}


@pytest.mark.parametrize("way", SCRIPT_WAYS)
def test_a_script_that_uses_the_library_ends_on_all_ranks_when_one_fails(mpirun, tmp_path, way):
    body, code = SCRIPT_WAYS[way]
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\nfrom istmpi.comm import world\ncomm = world()\nfailing = comm.rank == 2\n"
        f"{body}\ncomm.barrier()\n"
    )
    result = mpirun(3, "python", script, timeout=30)
    assert result.returncode == code, result
    assert ("RuntimeError: the last rank is out" in result.stderr) == (way == "raises")
    waits = "istmpi: rank 2 ended its program while rank 0 waits for it in barrier. "
    left = [waits + "End the program on all ranks, or raise an error."] * (code == 1 and way != "raises")
    assert [line.replace("rank 1 waits", "rank 0 waits") for line in result.errors] == left


def test_a_launcher_that_does_not_belong_to_the_library_is_refused():
    """N worlds of one rank each would all train the same network and write to the same folder."""
    own = ("PMI", "OMPI_", "PMIX_", "SLURM_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    environment["PYTHONPATH"] = str(ROOT)

    def said(**launcher):
        command = [sys.executable, "-c", "from istmpi.comm import world; world()"]
        done = subprocess.run(command, env=environment | launcher, capture_output=True, text=True, timeout=patient(60))
        assert done.stdout == "" and (done.returncode != 0) == bool(launcher), done
        return done.stderr

    assert said() == ""
    told = [said(SLURM_PROCID="2", SLURM_STEP_NUM_TASKS="4")]
    others = said(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4")
    told += [others] * ("but Open MPI" not in others)  # whose own variables these are
    for message in told:
        assert "4 ranks were started" in message and "library do not match" in message and "mpirun" in message, message
