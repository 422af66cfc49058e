"""A user's own program under mpirun: its end by an error is one line and a documented exit code."""

import re
import sys

from following import weights
from own_program import NET

PROGRAM = """
import os, signal, sys, time, torch, istmpi
from net import Net

x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
job = istmpi.Distributed(Net, {"features": 5, "outputs": 2}, example=x, local_steps=2, checkpoint_every=4)
scaler = torch.amp.GradScaler("cpu", growth_interval=25)
folder = "peace" if sys.argv[1] == "peace" else "run"
rounds = job.rounds(60, folder=folder, resume="auto")  # a name keeps the loop open after an error
for round in rounds:
    for step in round.steps():
        round.step(round.module(x).square().mean(), scaler)
    if round.number == 30 and sys.argv[1] == "kill" and job.communicator.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "exit":
        sys.exit(7)
    if sys.argv[1] == "fail":
        from mpi4py import MPI

        finalize = MPI.Finalize
        MPI.Finalize = lambda: (finalize(), time.sleep(1))  # time for a thread that still calls MPI
        raise istmpi.ConfigError("no such thing.")
print(scaler.state_dict())
"""

IN_TURN = """
import runpy, sys
sys.path.insert(0, "")
sys.argv = ["train.py", how]
runpy.run_path("train.py")
"""


def test_a_program_ends_as_the_command_does_and_goes_on_when_killed(mpirun, series, tmp_path, monkeypatch):
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
    assert run("kill").returncode not in (0, 75)
    ended = series(2, tmp_path, {how: f"how = {how!r}{IN_TURN}" for how in ("end", "peace")}).end()
    states = [state for done in ended.values() for state in re.findall("{'scale.*?}", done.stdout)]
    assert len(states) == 4 and len({*states}) == 1 and weights(tmp_path / "run") == weights(tmp_path / "peace")
