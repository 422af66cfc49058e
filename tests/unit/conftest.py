"""What the tests of one process share."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_files import make_checkpoints

from istmpi.cli.main import istmpi, main


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data, ../shared/data; tests that need it are skipped without it."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"there are no real data at {folder}")
    return folder


@pytest.fixture(scope="session")
def checkpoints() -> Path:
    """A folder of small checkpoints for all processes of this session (checkpoint_files.py). Not to be written to."""
    folder = Path(os.environ["XDG_CACHE_HOME"], "checkpoints")
    with folder.with_name("checkpoints-made").open("a+") as made:
        fcntl.flock(made, fcntl.LOCK_EX)
        made.seek(0)
        if not made.read():
            folder.mkdir()
            make_checkpoints(folder)
            made.write("all of them")
    return folder


FORKS = Path(__file__).parents[1] / "support" / "forks.py"
COMMAND = "from istmpi.cli.main import main; main()"


@pytest.fixture(scope="session")
def forked(tmp_path_factory):
    """``forked(*words, program=COMMAND, **environment)`` runs code in a process of its own, which has imported torch
    and istmpi already, but no MPI: a CompletedProcess."""
    with subprocess.Popen([sys.executable, FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def run(*words, program=COMMAND, **environment):
            folder = tmp_path_factory.mktemp("forked")
            files = [folder / "stdout", folder / "stderr"]
            request = {"program": program, "words": ["istmpi", *map(str, words)], "environment": environment}
            print(json.dumps(request | {"files": list(map(str, files))}), file=server.stdin, flush=True)
            code = int(server.stdout.readline())
            return subprocess.CompletedProcess(words, code, *(file.read_text() for file in files))

        yield run


@pytest.fixture
def istmpi_command(capfd):
    """``istmpi_command(*words)`` runs the command line in this process: (exit code, stdout, stderr)."""

    def run(*words):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(lambda: istmpi([str(word) for word in words], "istmpi", standalone_mode=False))
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return run


@pytest.fixture
def refusal(istmpi_command):
    """``refusal(*words)`` is the only line that a command says before it ends with exit code 2; `train` may begin."""

    def run(*words):
        code, out, err = istmpi_command(*words)
        assert (code, err.count("\n")) == (2, 1) and err.startswith("istmpi: "), (code, out, err)
        assert not out or out.endswith(": loading MPI, PyTorch and the data\n")
        return err

    return run


@pytest.fixture
def answer(istmpi_command):
    """``answer(*words)`` is what a command prints that ends with exit code 0, and says nothing else."""

    def run(*words):
        code, out, err = istmpi_command(*words)
        assert (code, err) == (0, "")
        return out

    return run
