"""Files that appear complete or not at all."""

import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest
from disks import fill, small_disk

from istmpi import lock
from istmpi.errors import ConfigError, OutputError
from istmpi.files import appearing, append
from istmpi.lock import FolderLock
from istmpi.record import METRICS, RunFolder


def test_on_a_full_disk_an_older_file_is_as_it_was_and_an_appended_line_is_there_or_not(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as folder:
        (folder / "page.html").write_text("older")
        with pytest.raises(OutputError, match="page.html: cannot be written"), appearing(folder / "page.html") as file:
            file.write(b"x" * 2**17)
        assert os.listdir(folder) == ["page.html"] and (folder / "page.html").read_text() == "older"
        append(folder / "lines", b"first\n")
        with pytest.raises(OutputError, match="lines: cannot be written"):
            append(folder / "lines", b"x" * 2**17)
        assert (folder / "lines").read_bytes() == b"first\n"


def test_a_pipe_is_written_to_and_a_link_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit((tmp_path / "pipe").read_bytes)
        for name in ("pipe", "link"):
            with appearing(tmp_path / name) as file:
                file.write(b"page")
    assert told.result() == b"page" == (tmp_path / "plain").read_bytes()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "pipe").is_fifo()


def test_a_record_writes_through_no_link(tmp_path):
    """Another user may have put it there, under the name of a file or of what once was its temporary name."""
    precious, run = tmp_path / "precious", RunFolder(tmp_path / "run")
    precious.write_text("")
    run.path.mkdir()
    for planted in ("run.toml", ".run.toml"):
        (run.path / planted).symlink_to(precious)
    run.write("run.toml", "[train]")
    assert not (run.path / "run.toml").is_symlink() and (run.path / "run.toml").read_text() == "[train]"
    assert sorted(os.listdir(run.path)) == [".run.toml", "run.toml"], "no temporary file is left"
    (run.path / METRICS).symlink_to(precious)
    for write in (run.make, lambda: run.append({"round": 1})):
        with pytest.raises((ConfigError, OutputError), match="cannot be written"):
            write()
    assert precious.read_text() == ""


# ---- a folder has one holder at a time


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(lock, "SECONDS_TO_END", 0.3)
    monkeypatch.setattr(lock, "SECONDS_UNTIL_LEFT", 1.0)
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_TOUCHES", 0.1)


def held_by(folder, **changed):
    """As this process would hold it, but for some facts."""
    (folder / lock.FILE).write_text(json.dumps(lock._this_process() | changed))


def in_another_process(folder):
    """What a process says that wants the folder, too."""
    program = (
        "import sys; from pathlib import Path; from istmpi import lock; from istmpi.errors import ConfigError\n"
        "lock.SECONDS_TO_END = 0.3\n"
        "try: lock.FolderLock(Path(sys.argv[1])); print('held')\n"
        "except ConfigError as error: print(error)\n"
        "import os; os.kill(os.getpid(), 9)"
    )
    return subprocess.run([sys.executable, "-uc", program, folder], capture_output=True, text=True).stdout.strip()


def test_two_cannot_hold_a_folder_and_the_second_is_told_who_does(tmp_path):
    first = FolderLock(tmp_path / "run")
    said = in_another_process(tmp_path / "run")
    assert said.startswith(f"--out {tmp_path}/run is used by another run, process {os.getpid()} on host ")
    assert said.endswith(f"or remove {tmp_path}/run/lock.json if there is no such run.") and "\n" not in said
    first.require()
    first.release()
    assert list((tmp_path / "run").iterdir()) == []


def test_what_a_killed_process_leaves_is_taken_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "SECONDS_UNTIL_LEFT", math.inf)
    assert in_another_process(tmp_path) == "held"
    assert (tmp_path / lock.FILE).exists()
    FolderLock(tmp_path).release()
    held_by(tmp_path, started="1")  # another process of the same number
    FolderLock(tmp_path).release()


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"system": "before the host was started anew"}])
def test_another_hosts_lock_holds_while_it_is_touched_and_is_left_over_once_nobody_does(
    tmp_path, monkeypatch, elsewhere
):
    held_by(tmp_path, **elsewhere, process=7)
    said = []
    FolderLock(tmp_path, said.append).release()
    assert len(said) == 1 and "process 7 on host" in said[0]
    monkeypatch.setattr(lock, "SECONDS_UNTIL_LEFT", math.inf)
    held_by(tmp_path, **elsewhere, process=7)
    with pytest.raises(ConfigError, match="process 7 on host .* since 20"):
        FolderLock(tmp_path, note=lambda _: os.utime(tmp_path / lock.FILE))


def test_a_holder_touches_its_lock(tmp_path):
    holder = FolderLock(tmp_path)
    os.utime(tmp_path / lock.FILE, (1e9, 1e9))
    while (tmp_path / lock.FILE).stat().st_mtime == 1e9:
        time.sleep(0.02)
    holder.release()


@pytest.mark.parametrize("restarts, free", [("1", True), ("0", False), ("", False)])
def test_a_job_that_slurm_queued_again_takes_its_own_lock(tmp_path, monkeypatch, restarts, free):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    held_by(tmp_path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    with nullcontext() if free else pytest.raises(ConfigError, match="is used by another run"):
        FolderLock(tmp_path).release()


@pytest.mark.parametrize("text", ["", "[]", '{"host": 1, "restarts": 2}', "\0\xff" * 9])
def test_a_damaged_lock_is_left_over_once_nobody_touches_it(tmp_path, text):
    """Nor the file of a process that was killed while it removed another one's."""
    for name in (lock.FILE, f".{lock.FILE}.turn"):
        (tmp_path / name).write_text(text, encoding="latin-1")
        os.utime(tmp_path / name, (1e9, 1e9))
    FolderLock(tmp_path).release()


def test_one_that_lost_its_lock_is_told(tmp_path):
    first = FolderLock(tmp_path)
    held_by(tmp_path, host="elsewhere")
    with pytest.raises(OutputError, match="another run has taken it"):
        first.require()
    first.release()
    assert (tmp_path / lock.FILE).exists(), "the other's"


def test_of_many_that_see_a_left_over_lock_one_gets_it(tmp_path):
    def want(_):
        with suppress(ConfigError):
            return FolderLock(tmp_path)

    held_by(tmp_path, started="1")
    with ThreadPoolExecutor(8) as pool:
        (got,) = filter(None, pool.map(want, range(8)))
    got.release()


def test_on_a_full_disk_a_folder_is_left_and_refused_and_nothing_stays(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as folder:
        held = FolderLock(folder)
        fill(folder)
        held.release()
        assert os.listdir(folder) == ["fill"]
        fill(folder)
        with pytest.raises(ConfigError, match="No space left"):
            FolderLock(folder)
        assert os.listdir(folder) == ["fill"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.mkdir(), lambda path: path.symlink_to("nowhere")])
def test_a_lock_that_is_no_file_is_refused_at_once(tmp_path, make):
    make(tmp_path / "lock.json")
    with pytest.raises(ConfigError, match="lock.json is .*; it must be a file. Remove it."):
        FolderLock(tmp_path)
