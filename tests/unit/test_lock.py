"""A folder has one holder at a time; what a killed one leaves does not keep the next from it."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import pytest
from disks import fill, small_disk

from istmpi import lock
from istmpi.errors import ConfigError, OutputError
from istmpi.lock import FolderLock


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Nobody waits long."""
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


def test_what_a_killed_process_leaves_is_taken_at_once(tmp_path):
    assert in_another_process(tmp_path) == "held"
    assert (tmp_path / lock.FILE).exists()
    begun = time.monotonic()
    FolderLock(tmp_path).release()
    held_by(tmp_path, started="1")  # another process of the same number
    FolderLock(tmp_path).release()
    assert time.monotonic() - begun < lock.SECONDS_UNTIL_LEFT


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"system": "before the host was started anew"}])
def test_another_hosts_lock_is_left_over_once_nobody_touches_it(tmp_path, elsewhere):
    held_by(tmp_path, **elsewhere, process=7)
    begun, said = time.monotonic(), []
    FolderLock(tmp_path, said.append).release()
    assert len(said) == 1 and "process 7 on host" in said[0]
    assert time.monotonic() - begun > lock.SECONDS_UNTIL_LEFT / 2
    held_by(tmp_path, **elsewhere)
    os.utime(tmp_path / lock.FILE, (1e9, 1e9))
    FolderLock(tmp_path).release()


def test_another_hosts_lock_that_is_touched_holds(tmp_path):
    held_by(tmp_path, host="elsewhere", process=7)
    ended = threading.Event()

    def touch():
        while not ended.wait(0.1):
            os.utime(tmp_path / lock.FILE)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(ConfigError, match="process 7 on host elsewhere since 20"):
            FolderLock(tmp_path)
    finally:
        ended.set()
        thread.join()


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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": "x"}', '{"host": 1, "restarts": 2}', "\0\xff" * 9])
def test_a_damaged_lock_is_left_over_once_nobody_touches_it(tmp_path, text):
    (tmp_path / lock.FILE).write_text(text, encoding="latin-1")
    FolderLock(tmp_path).release()


def test_one_that_lost_its_lock_is_told(tmp_path):
    first = FolderLock(tmp_path)
    held_by(tmp_path, host="elsewhere")
    with pytest.raises(OutputError, match="another run has taken it"):
        first.require()
    first.release()
    assert (tmp_path / lock.FILE).exists(), "the other's"


def test_of_many_that_see_a_left_over_lock_one_gets_it(tmp_path):
    held_by(tmp_path, started="1")
    got, refused = [], []

    def want():
        try:
            got.append(FolderLock(tmp_path))
        except ConfigError as error:
            refused.append(error)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 7)
    got[0].release()
    assert list(tmp_path.iterdir()) == []


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
