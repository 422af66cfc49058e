"""A user's own program under mpirun: its end, by an error or a request, is one line and a documented exit code."""

import sys

from own_program import NET

PROGRAM = """
import sys, time, torch, istmpi
from net import Net

x = torch.randn(8, 5)
job = istmpi.Distributed(Net, {"features": 5, "outputs": 2}, example=x, local_steps=2)
rounds = job.rounds(200, folder="run", resume="auto")  # a name keeps the loop open after an error
for round in rounds:
    for step in round.steps():
        round.step(round.module(x).square().mean())
    if sys.argv[1] == "exit":
        sys.exit(7)
    if sys.argv[1] == "fail":
        from mpi4py import MPI

        finalize = MPI.Finalize
        MPI.Finalize = lambda: (finalize(), time.sleep(1))  # time for a thread that still calls MPI
        raise istmpi.ConfigError("no such thing.")
    if round.number == 3 and sys.argv[1] == "stop" and job.communicator.rank == 0:
        open("run/STOP", "w").close()
"""


def test_a_program_ends_as_the_command_does(mpirun, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)

    def run(how):
        done = mpirun(2, sys.executable, "train.py", how)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    gone = run("exit")
    assert gone.returncode == 7, gone
    note = "istmpi: the program left its loop in round 1, after its last local step"
    assert gone.stdout.count(note) == 1 and gone.stdout.count("left its loop") == 1
    failed = run("fail")
    assert failed.returncode == 2 and failed.errors == ["istmpi: no such thing."]
    assert failed.stderr.splitlines() == failed.errors, "a thread called MPI after its end"
    stopped = run("stop")
    (line,) = stopped.errors
    assert stopped.returncode == 75 and "run the same program with resume='auto' to continue" in line
