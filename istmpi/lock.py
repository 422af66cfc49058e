"""Locks a folder for one run at a time, by a file that names the run's process.

The file is made in one step that fails if the file exists. This works on every file system that
ranks share, also without locks of its own. The file of a killed run is stale on the run's host once
the process is gone, and on other hosts once the file was not touched for a while. A restart of the
same SLURM job takes the file at once.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from istmpi.environment import read_boot
from istmpi.errors import ConfigError, OutputError
from istmpi.files import preparing, require_file, temporary

FILE = "lock.json"

SECONDS_BETWEEN_TOUCHES = 10.0
SECONDS_UNTIL_LEFT = 120.0
"""The age at which another host's file counts as stale. File systems may show a touch a minute
late."""
SECONDS_TO_END = 10.0
"""The seconds to wait for the end of a run on this host, whose launcher may be ending it."""

_SECONDS_BETWEEN_LOOKS = 0.1


class FolderLock:
    """A lock on a folder until `release` or the end of this process.

    The constructor creates a missing folder. ``note`` gets a message if a run on another host has
    the lock: the constructor waits up to `SECONDS_UNTIL_LEFT`. ``team``: a word of the ranks that
    may share the lock; the first one of them `holds` it. Raises ConfigError if another run holds
    the folder, or if the file cannot be written.
    """

    def __init__(self, folder: Path, note: Callable[[str], None] = lambda _: None, team: str = ""):
        self.path = folder / FILE
        self._own = json.dumps(_this_process() | {"team": team}) + "\n"
        self.holds = True
        with preparing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            require_file(self.path)
            while not _create(self._own, self.path):
                text = _read(self.path)
                if team and _parse(text).get("team") == team:
                    self._own = text
                    self.holds = False
                    break
                self._await_end(note)
        if self.holds:
            self._keep()

    def _keep(self) -> None:
        self._released = threading.Event()
        # Without a thread, this host still sees the process.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._touch, name="lock", daemon=True).start()

    def require(self) -> None:
        """Raise OutputError if another run took the folder over, as after a suspension."""
        if _read(self.path) not in (self._own, ""):
            raise OutputError(f"{self.path} is no longer this run's: another run has taken it.")

    def release(self) -> None:
        if not self.holds:
            return
        self._released.set()
        if _read(self.path) == self._own:
            with contextlib.suppress(OSError):
                self._remove(self._own)

    def _await_end(self, note: Callable[[str], None]) -> None:
        """Wait until the file is gone or replaced; remove a stale file.

        Raises ConfigError if a run uses the folder.
        """
        text = _read(self.path)
        touched = _read_touch(self.path)
        began = time.monotonic()
        holder = _parse(text)
        noted = False
        while not _continued_by_this_job(holder):
            alive = _alive(holder)
            waited = time.monotonic() - began
            # Gone or replaced: the caller tries again.
            if touched is None or _read(self.path) != text:
                return
            if alive is False:  # a stale file
                break
            # A touch since the first look means that the run on another host is alive.
            outlived = alive and waited > SECONDS_TO_END
            if outlived or _read_touch(self.path) not in (touched, None):
                raise ConfigError(_refusal(self.path, holder))
            if alive is None and max(waited, _age(self.path)) > SECONDS_UNTIL_LEFT:
                break
            if alive is None and not noted:
                note(
                    f"{self.path} belongs to {_name(holder)}; stale if not updated for "
                    f"{SECONDS_UNTIL_LEFT:g} s."
                )
                noted = True
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._remove(text)

    def _remove(self, text: str) -> None:
        """Remove the lock's file if it still has this text.

        Only one process at a time may remove a file: a second one would remove its successor's.
        """
        turn = self.path.with_name(f".{FILE}.turn")
        if not _create("", turn):  # an empty file has room even on a full disk
            if _age(turn) > SECONDS_UNTIL_LEFT:  # the file of a process that was killed right here
                turn.unlink(missing_ok=True)
            return
        try:
            if _read(self.path) == text:
                self.path.unlink(missing_ok=True)
        finally:
            turn.unlink(missing_ok=True)

    def _touch(self) -> None:
        while not self._released.wait(SECONDS_BETWEEN_TOUCHES):
            if _read(self.path) == self._own:
                with contextlib.suppress(OSError):
                    os.utime(self.path)


def _create(text: str, path: Path) -> bool:
    try:
        # decision 43: flock is missing on many cluster file systems, or holds on one host alone.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError:  # a full disk takes the name but not the text
        path.unlink(missing_ok=True)
        raise
    return True


def require_unheld(folder: Path) -> None:
    """Raise ConfigError if another run uses the folder, as far as this host can tell."""
    holder = _parse(_read(folder / FILE))
    if holder and _alive(holder):
        raise ConfigError(_refusal(folder / FILE, holder))


def holder(folder: Path) -> str:
    """Return the name of the process that uses a folder; empty if none does."""
    path = folder / FILE
    facts = _parse(_read(path))
    alive = _alive(facts)
    if alive is None and _read_touch(path):
        alive = _age(path) < SECONDS_UNTIL_LEFT
    if not alive:
        return ""
    return _name(facts)


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "system": _system(),
        "process": os.getpid(),
        "started": _find_start(os.getpid()),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "restarts": _restarts(),
    }


def _system() -> str:
    """Return the boot and the container of this system; empty if unknown.

    They tell its processes from those of other systems with the same number.
    """
    boot = read_boot()
    if not boot:
        return ""
    with contextlib.suppress(OSError):
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _find_start(process: int) -> str | None:
    """Return a process's start time in clock ticks; None if it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    # The program's name stands before, in brackets; it may hold blanks and brackets itself.
    _, _, fields = text.rpartition(")")
    state, *facts = fields.split()
    if state in "ZX":  # a zombie, or dead
        return None
    return facts[18]


def _restarts() -> int:
    count = os.environ.get("SLURM_RESTART_COUNT", "")
    if not count.isdecimal():
        return 0
    return int(count)


def _alive(holder: dict[str, Any]) -> bool | None:
    """Return True if a lock's process runs, False if it has ended; None if another host knows."""
    system = holder.get("system")
    if not system or system != _system() or holder.get("host") != socket.gethostname():
        return None
    # Numbers of processes are reused, so the start time decides (decision 43).
    started = holder.get("started")
    return started is not None and _find_start(holder.get("process", 0)) == started


def _continued_by_this_job(holder: dict[str, Any]) -> bool:
    job = os.environ.get("SLURM_JOB_ID")
    return bool(job) and holder.get("job") == job and _restarts() > holder.get("restarts", 0)


def _refusal(path: Path, holder: dict[str, Any]) -> str:
    return (
        f"--out {path.parent} is used by another run, {_name(holder)}. Wait until it ends, give "
        f"another folder, or remove {path} if there is no such run."
    )


def _name(holder: dict[str, Any]) -> str:
    if not holder:
        return "an unknown process"
    return (
        f"process {holder.get('process')} on host {holder.get('host')} since {holder.get('since')}"
    )


def _parse(text: str) -> dict[str, Any]:
    """Return the facts of a lock's file; empty if anything else is in it."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(tree, dict) or not isinstance(tree.get("restarts"), int):
        return {}
    return tree


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _read_touch(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _age(path: Path) -> float:
    """Return the seconds since a file was touched.

    They are by the clock of the file system, because hosts' clocks differ.
    """
    beside = temporary(path.with_name(FILE))
    try:
        beside.touch()
        now = _read_touch(beside)
        touched = _read_touch(path)
        if now is None or touched is None:
            return 0.0
        return (now - touched) / 1e9
    finally:
        beside.unlink(missing_ok=True)
