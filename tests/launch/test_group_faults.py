"""Replica groups of which a process fails, is killed or stopped, or whose program is wrong."""

import os
import re
import signal

import pytest
from following import wait_for_more, wait_for_rounds
from group_programs import HEAD, JOB
from masked_data import FILE

pytestmark = pytest.mark.timeout(300)


def test_a_score_that_fails_on_a_member_ends_the_job_with_its_line(start, tmp_path):
    words = ["train", "--data", f"{FILE}:blank", "--model", f"{FILE}:Picky", "--rounds", "2", "--local-steps", "2"]
    result = start(2, "istmpi", *words, "--group-size", "2", "-q", "--out", tmp_path / "run").end(60)
    assert result.returncode == 2, result
    (line,) = result.errors
    assert line.startswith("istmpi: rank 1: ") and "Picky: score fails: ValueError: no score here" in line


READER = """
import atexit, os, sys
import istmpi.engine.replica_group as groups
from istmpi.cli.main import main
sys.modules["matplotlib"] = None
groups.READS_ITS_FILE = {"gloo"}
atexit.register(lambda: print([name for name in os.listdir(os.environ["TMPDIR"]) if "istmpi" in name]))
sys.argv[1:] = sys.argv[2:]
main()
"""


@pytest.mark.parametrize("is_read", [True, False])
def test_a_file_that_the_backend_reads_is_there_to_the_end_and_no_longer(start, tmp_path, is_read):
    """NCCL has a thread that waits for its file. Without it a run ended, but its processes did not."""
    code = READER if is_read else READER.replace("groups.READS_ITS_FILE", "unused")
    words = ["--rounds", "1", "--hidden", "32,16", "-q", "--group-size", "2", "--out", tmp_path / "run"]
    job = start(2, "python", "-c", code, "istmpi", "train", *words, env={"TMPDIR": str(tmp_path)}).end(60)
    assert job.returncode == 0, job
    assert job.stdout.count("istmpi-group-") == 2 * is_read
    assert not list(tmp_path.glob("istmpi-group-*"))


LONG = ["train", "--rounds", 10**6, "--group-size", "2", "--checkpoint-every", "1", "--progress", "lines"]
LONG += ["--set", "evaluate.every=1000000", "--set", "comm.patience=3", "--resume", "auto"]


def test_a_run_goes_on_that_a_file_has_stopped_and_whose_leader_is_killed_or_stopped(start, series, tmp_path):
    folder = tmp_path / "run"
    long = [*LONG, "--out", folder]
    removed = f"import os\nif rank == 0: os.remove({str(folder / 'STOP')!r})"
    commands = series(4, tmp_path, {"file": long, "removed": removed, "killed": long})
    wait_for_rounds(folder, 3, job := commands.job)
    (folder / "STOP").touch()
    commands.wait("file")
    wait_for_more(folder, job)
    os.kill(job.ranks[0], signal.SIGKILL)
    assert job.end(60).returncode not in (0, 75) and commands.outcome("file").returncode == 75
    job = start(4, "istmpi", *long)
    wait_for_more(folder, job)
    os.kill(job.ranks[2], signal.SIGSTOP)
    result = job.end(90)
    assert result.returncode == 76 and "Skipped" not in result.stdout + result.stderr, result
    assert "in replica groups of 2 processes each" in result.stdout
    assert re.search(r"a rank does not respond: process 2 \(leader of rank 1\) on .* is stopped", result.errors[-1])


FAULTY = """
is_last = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "{last}"
for round in job.rounds(3, folder="{folder}"):
    for a, b in round.take(DataLoader(data, batch_size=9)):
        loss = torch.nn.functional.cross_entropy(round.module(a), b)
        if round.number > 1 and is_last:
            {fault}
        else:
            round.step(loss)
    job.evaluate(lambda module, batch: 1.0 / (round.number < 2 or not is_last), DataLoader(data, batch_size=7))
"""


@pytest.mark.parametrize(
    "processes, fault, line",
    [
        (4, "sys.exit()", r"process 3 \(member 1 of rank 1\) ended its program while process 2 .* in all-reduce"),
        (2, "round.step(loss)", "the score fails: ZeroDivisionError"),
        (2, "loss.backward(); round.skip()", r"process 1 has called round.skip\(\) 1 times in this round"),
        (2, "round.skip()", "aborting, a rank does not respond: process 1 .* it waits for ranks that wait for it"),
    ],
)
def test_a_fault_of_a_member_of_a_program_is_said_once(start, tmp_path, processes, fault, line):
    code = HEAD + "settings['comm_patience'] = 2" + JOB + FAULTY
    code = code.format(size=2, folder=tmp_path, fault=fault, last=processes - 1)
    result = start(processes, "python", "-c", code).end(60)
    assert result.returncode in (1, 2, 76) and len(re.findall("istmpi: " + line, result.stderr)) == 1, result
