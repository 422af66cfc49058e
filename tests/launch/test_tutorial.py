"""The tutorial, step by step as a newcomer takes it: its files are written, its commands typed."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from patience import patient

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
(COMPARE,) = re.findall("^mpirun .* compare .*$", PAGE.read_text(), re.MULTILINE)
INSTEAD = {
    "wait": "code=0; wait $! || code=$?; [ $code = 75 ]",
    COMPARE: COMPARE.replace("-n 4", "-n 2").replace("--rounds 20 --evaluate-every 4", "--rounds 2 --evaluate-every 1"),
}


@pytest.mark.timeout(600)
def test_every_file_and_every_command_of_the_tutorial(tmp_path, environment):
    script = ["set -e", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind != "bash":
            (tmp_path / re.match(r"# (\S+)\n", text)[1]).write_text(text)
            continue
        for line in text.splitlines():
            script += [f"echo {shlex.quote(f'typed: {line}')}", INSTEAD.get(line, line)]
    launcher = Path(os.environ.get("MPIRUN") or shutil.which("mpirun", path=environment["PATH"]))
    path = os.pathsep.join([str(tmp_path), environment["PATH"]])
    (tmp_path / "mpirun").write_text(f'#!/bin/sh\nexec "{launcher}" "$@"\n')
    (tmp_path / "mpirun").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env={**os.environ, **environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=patient(300),
    )
    assert done.returncode == 0, done.stdout
    said = dict(part.split("\n", 1) for part in done.stdout.split("typed: ")[1:])

    def of(words):
        (found,) = [printed for line, printed in said.items() if words in line]
        return found

    assert "900" in of("istmpi prepare") and "180" in of("istmpi prepare")
    for width in ("channels1", "channels2", "hidden"):
        assert re.search(rf"^{width} +\d+ +yes", of("istmpi model"), re.MULTILINE)
    assert "stopped" in of("touch") + of("wait")
    summary = json.loads((tmp_path / "runs/shapes/summary.json").read_text())
    assert summary["last"]["round"] == 40 and summary["last"]["score"]["score"] > 0.8
    scored = f"{summary['last']['score']['score']:.4f}"
    assert scored in of("mpirun -n 2 istmpi train") and scored in of("istmpi evaluate")
    assert of("head -5").startswith("example,class,probability\n0000.png,")
    assert re.fullmatch(r"this is a (circle|cross|square), with a probability of [\d.]+%\n", of("use.py"))
    assert "local-sgd" in of("istmpi compare")
