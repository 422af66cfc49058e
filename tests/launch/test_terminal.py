"""The progress bar of a job: there where mpirun's own output is a terminal, whatever it gives its ranks."""

import os
import pty
import re
import threading
from contextlib import suppress

from patience import patient

BAR = re.compile(r"round +[0-9]+/9 [━╸╺ ]+ 0:00:[0-9]+")
HIDDEN_CURSOR = "\x1b[?25l"


def test_a_job_on_a_terminal_has_a_bar(start, tmp_path):
    """tests/launch/test_train.py has a job in a pipe, which has none."""
    ours, its = pty.openpty()
    shown = []

    def look():
        with suppress(OSError):  # the end of a terminal on Linux
            while piece := os.read(ours, 4096):
                shown.append(piece)

    reader = threading.Thread(target=look, daemon=True)
    reader.start()
    train = ["train", "--rounds", "9", "--set", "evaluate.every=9", "--out", tmp_path / "run"]
    job = start(2, "istmpi", *train, output=its)
    result = job.end()
    os.close(its)
    reader.join(patient(5))
    text = b"".join(shown).decode()
    assert result.returncode == 0, text
    assert BAR.search(text) and HIDDEN_CURSOR in text and "accuracy" in text, text
