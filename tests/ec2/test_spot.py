"""A spot instance is taken back: the notice comes from a local metadata service, the run is a real one."""

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from following import lines
from patience import Limit, patient

ROOT = Path(__file__).parents[2]
WATCH = ROOT / "bin/istmpi-spot-watch"
NOTICE = '{"action": "terminate", "time": "2030-01-01T00:00:00Z"}'


class Metadata(http.server.ThreadingHTTPServer):
    """As EC2's: a token first, then an answer to those that have it; no notice until there is one."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.notice = ""
        self.asked = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answers(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self._answer("secret" if self.path == "/latest/api/token" and lifetime else "", 400)

    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != "secret":
            self._answer("", 401)
            return
        self._answer(self.server.notice if self.path == "/latest/meta-data/spot/instance-action" else "", 404)
        self.server.asked.set()

    def _answer(self, text, otherwise):
        self.send_response(200 if text else otherwise)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata():
    with Metadata() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def environment(metadata):
    found = {**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.url, "NO_COLOR": "1"}
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found['PATH']}"
    found["PYTHONPATH"] = str(ROOT)
    return found


def outcome(metadata, script):
    """How a script ends that is watched: its exit code, output and errors."""
    command = [WATCH, "bash", "-c", script]
    done = subprocess.run(command, env=environment(metadata), capture_output=True, text=True, timeout=patient(20))
    return done.returncode, done.stdout, done.stderr


def test_without_a_notice_a_command_is_left_alone(metadata):
    assert outcome(metadata, "echo said; sleep 1; exit 3") == (3, "said\n", "")
    assert metadata.asked.is_set()


def test_a_notice_ends_a_command_with_sigterm_once(metadata):
    metadata.notice = NOTICE
    program = "trap 'echo asked to stop; exit 75' TERM; while :; do sleep 0.1; done"
    assert outcome(metadata, program)[:2] == (75, "asked to stop\n")


def test_a_run_is_saved_and_goes_on(metadata, tmp_path):
    """Through istmpi-run, on two ranks of MPI."""
    out = tmp_path / "run"
    settings = environment(metadata)
    launcher = os.environ.get("MPIRUN") or shutil.which("mpirun", path=settings["PATH"])
    settings["PATH"] = f"{Path(launcher).parent}{os.pathsep}{settings['PATH']}"
    launch = [ROOT / "bin/istmpi-run", "--ranks-per-host", "2", "--launcher", "mpirun", "--spot"]
    train = ["istmpi", "train", "digits", "--hidden", "64", "--threads", "1", "--resume", "auto", "--out", out]

    def start(count):
        words = [*launch, *train, "--rounds", str(count), "--evaluate-every", str(count)]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(words, env=settings, text=True, **streams)

    def end(run):
        try:
            return run.communicate(timeout=patient(60))[0]
        finally:
            run.kill()

    run = start(100_000)
    limit = Limit(60)
    while len(lines(out)) < 2 and limit.left and run.poll() is None:
        time.sleep(0.05)
    metadata.notice = NOTICE
    said = end(run)
    assert run.returncode == 75, said
    assert "istmpi-spot-watch: EC2 takes" in said and "stopped by SIGTERM" in said
    done = len(lines(out))
    assert done >= 2

    metadata.notice = ""
    again = start(done + 3)
    said = end(again)
    assert again.returncode == 0, said
    assert json.loads((out / "summary.json").read_text())["last"]["round"] == len(lines(out)) == done + 3
