"""Disks that are too small: file systems in memory."""

import os
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder, size):
    """An empty file system of so many bytes (``64k``, ``2m``) at ``folder``; skips where none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield Path(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder):
    """Leave no room on a small disk."""
    with (folder / "fill").open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
