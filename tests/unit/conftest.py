"""What the tests of one process share."""

import fcntl
import os
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
