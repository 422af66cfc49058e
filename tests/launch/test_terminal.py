"""The progress bar of a job: there where mpirun's own output is a terminal, whatever it gives its ranks."""

import os
import pty
import re
import threading
from contextlib import suppress

from patience import patient

BAR = re.compile(r"round +[0-9]+/9 [━╸╺ ]+ 0:00:[0-9]+")
HIDDEN_CURSOR = "\x1b[?25l"


def test_a_job_on_a_terminal_has_a_bar_and_one_in_a_pipe_has_none(start, mpirun, tmp_path):
    train = ["train", "--rounds", "9", "--set", "evaluate.every=9", "--out"]
    ours, its = pty.openpty()
    shown = []

    def look():
        with suppress(OSError):  # the end of a terminal on Linux
            while piece := os.read(ours, 4096):
                shown.append(piece)

    reader = threading.Thread(target=look, daemon=True)
    reader.start()
    job = start(2, "istmpi", *train, tmp_path / "terminal", output=its)
    result = job.end()
    os.close(its)
    reader.join(patient(5))
    text = b"".join(shown).decode()
    assert result.returncode == 0, text
    assert BAR.search(text) and HIDDEN_CURSOR in text and "accuracy" in text, text
    piped = mpirun(2, "istmpi", *train, tmp_path / "pipe", env={"FORCE_COLOR": "1", "NO_COLOR": ""})
    assert piped.returncode == 0 and "\x1b[1m" in piped.stdout
    assert not BAR.search(piped.stdout) and HIDDEN_CURSOR not in piped.stdout
