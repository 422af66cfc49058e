"""The tutorial, step by step as a newcomer takes it: its files are written, its commands typed."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from patience import Limit, patient

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
STOPPED = 75


class Terminal:
    """A shell in a folder: ``type`` gives it a line, waits for its end and returns what was printed."""

    def __init__(self, folder, environment):
        self.folder, self._environment = folder, environment
        self._background = None

    def type(self, line):
        if line == "wait":
            printed, _ = self._background.communicate(timeout=patient(60))
            assert self._background.returncode == STOPPED, printed
            return printed
        started = self._start(line.removesuffix("&"))
        if line.endswith("&"):
            self._background = started
            return ""
        try:
            printed, _ = started.communicate(timeout=patient(60))
        finally:
            started.kill()
        assert started.returncode == 0, f"{line}\n{printed}"
        return printed

    def _start(self, line):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command = ["bash", "-c", line if "|" in line else f"exec {line}"]
        return subprocess.Popen(command, cwd=self.folder, env=self._environment, text=True, **streams)

    def look_until_there(self, file):
        """As somebody does who is to stop a run: not before it has come to something."""
        limit = Limit(60)
        while not file.exists() or not file.read_text():
            assert self._background.poll() is None, self._background.communicate()[0]
            assert limit.left, f"there is no {file}"
            time.sleep(0.05)

    def close(self):
        if self._background and self._background.poll() is None:
            self._background.terminate()
            self._background.communicate(timeout=patient(20))


@pytest.fixture
def terminal(tmp_path, environment):
    launcher = os.environ.get("MPIRUN") or shutil.which("mpirun", path=environment["PATH"])
    assert launcher, "no mpirun: run bin/test, which sets one up"
    programs, folder = tmp_path / "bin", tmp_path / "empty"
    programs.mkdir()
    folder.mkdir()
    (programs / "mpirun").write_text(f'#!/bin/sh\nexec "{launcher}" "$@"\n')
    (programs / "mpirun").chmod(0o755)
    path = f"{programs}{os.pathsep}{environment['PATH']}"
    terminal = Terminal(folder, {**os.environ, **environment, "PATH": path})
    yield terminal
    terminal.close()


@pytest.mark.timeout(600)
def test_every_file_and_every_command_of_the_tutorial(terminal):
    said = {}
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "bash":
            for line in text.splitlines():
                if line.startswith("touch "):
                    terminal.look_until_there(terminal.folder / "runs/shapes/metrics.jsonl")
                said[line] = terminal.type(line)
        else:
            name = re.match(r"# (\S+)\n", text).group(1)
            (terminal.folder / name).write_text(text)

    def of(*words):
        (found,) = [printed for line, printed in said.items() if all(word in line for word in words)]
        return found

    assert "900" in of("istmpi prepare") and "180" in of("istmpi prepare")
    assert all(
        re.search(rf"^{width} +\d+ +yes", of("istmpi model"), re.M) for width in ("channels1", "channels2", "hidden")
    )
    assert "stopped" in of("wait")
    summary = json.loads((terminal.folder / "runs/shapes/summary.json").read_text())
    assert summary["last"]["round"] == 40 and summary["last"]["score"]["score"] > 0.8
    scored = f"{summary['last']['score']['score']:.4f}"
    assert scored in of("--resume auto") and scored in of("istmpi evaluate")
    assert of("head -5").startswith("example,class,probability\n0000.png,")
    assert re.fullmatch(r"this is a (circle|cross|square), with a probability of [\d.]+%\n", of("use.py"))
    assert "local-sgd" in of("istmpi compare")
