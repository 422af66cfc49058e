"""The progress bar of a job: there where mpirun's own output is a terminal, whatever it gives its ranks."""

import os
import pty
import re
from contextlib import suppress

BAR = re.compile(r"round +[0-9]+/9 [━╸╺ ]+ 0:00:[0-9]+")
HIDDEN_CURSOR = "\x1b[?25l"


def test_a_job_on_a_terminal_has_a_bar(start, tmp_path):
    """tests/launch/test_train.py has a job in a pipe, which has none."""
    ours, its = pty.openpty()
    train = ["train", "--rounds", "9", "--set", "evaluate.every=9", "--out", tmp_path / "run"]
    job = start(2, "istmpi", *train, output=its)
    os.close(its)
    shown = b""
    with suppress(OSError):  # the end of a terminal on Linux
        while piece := os.read(ours, 4096):
            shown += piece
    text = shown.decode()
    assert job.end().returncode == 0, text
    assert BAR.search(text) and HIDDEN_CURSOR in text and "accuracy" in text, text
