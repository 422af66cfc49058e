"""The progress of training on a terminal."""

import dataclasses
import io
import re
import time
from datetime import timedelta

import pytest
from rich.console import Console
from small import small_run

from istmpi.cli.display import LiveView, TrainingDisplay
from istmpi.cli.run_options import Showing
from istmpi.comm import world
from istmpi.evaluation.evaluator import Score
from istmpi.report import tables
from istmpi.training.progress import LastRound, Pace, Progress
from istmpi.training.run import run_training
from istmpi.units import duration

HOSTS = ["a", "b", "c", "node-17"]


def after(rounds, seconds=1.0, compute=(1.0,), score=None):
    last = LastRound(seconds, 3_000_000, 12_000, {"compute": seconds}, compute, tuple(0.0 for _ in compute))
    ranks = len(compute)
    pace = Pace()
    pace.add(compute, seconds)
    slowest = pace.slowest(HOSTS)
    done = Progress(rounds, rounds, 0, seconds * rounds, 0, 1 / rounds, 0.1, score, "accuracy", ranks, last)
    return dataclasses.replace(done, slowest=slowest, evaluating=0.25)


def screen(width=100, clock=time.monotonic):
    return Console(file=io.StringIO(), force_terminal=True, width=width, get_time=clock, highlight=False)


@pytest.mark.parametrize("seconds, left", [(2, "0:00:14"), (3600, "7:00:00")])
def test_the_time_left_is_told_however_long_a_round_takes(seconds, left):
    """Rich itself forgets within 30 seconds what it knew of the speed."""
    now = 0.0
    console = screen(clock=lambda: now)
    view = LiveView(console, 10, ["n0"])
    for done in range(1, 4):
        now += seconds
        view.progressed(dataclasses.replace(after(done), validation=Score(0.3, 0.8125, 90)))
    console.print(view.view())
    said = console.file.getvalue()
    assert "3/10" in said and "loss 0.3333" in said and "accuracy 0.8125" in said and left in said
    written = [duration(seconds) for seconds in (59.94, 59.97, 60, 3599.6)]
    assert written == ["59.9 s", "1 min 0 s", "1 min 0 s", "1 h 00 min"], "rounded before its unit is chosen"
    assert f"{timedelta(seconds=3 * seconds)} +" in re.sub("\x1b.*?m", "", said)


@pytest.mark.parametrize("width", [30, 67, 140])
def test_the_live_view_fits_the_terminal(width):
    """Figures are whole or not there, what matters most first; nothing wraps."""
    console = screen(width)
    view = LiveView(console, 60, HOSTS)
    view.progressed(after(7, 20.0, (10.0, 10.0, 11.0, 15.0), Score(0.3, 0.9123, 360)))
    console.print(view.view())
    bar, figures = re.sub("\x1b.*?m", "", console.file.getvalue()).splitlines()
    assert "7/60" in bar and len(bar) <= width and len(figures) <= width
    parts = ["loss 0.1429", "accuracy 0.9123", "600 examples/s", "150 kB/s", "evaluate 25%"]
    parts.append("rank 3, node-17: 50% slower, the others waited 23% of the time")
    found = figures.split("  ")
    assert found == [part for part in parts if part in found] and found[0] == parts[0]
    assert width < 140 or found == parts


def slowest(*rounds, seconds=20.0):
    pace = Pace()
    for compute in rounds:
        pace.add(compute, seconds)
    found = pace.slowest(HOSTS)
    return found and str(found)


def test_a_rank_is_named_only_where_it_holds_up_the_others():
    assert slowest() is None and slowest([10.0]) is None and slowest([0.0, 0.0]) is None
    assert slowest([10.0, 10.4, 10.0]) is None, "too little slower"
    assert slowest([10.0, 15.0, 10.0], seconds=110.0) is None, "too little waited, of all the time that there is"
    assert slowest([1.0, 1.5, 1.0], seconds=2.0) is None, "too early"
    assert slowest(*3 * [[1.0, 1.7, 1.0]], seconds=2.0) == "rank 1, b: 70% slower, the others waited 35% of the time"
    assert slowest([10.0, 15.0, 10.0]) == "rank 1, b: 50% slower, the others waited 25% of the time"
    assert slowest([10.0, 30.0]) == "rank 1, b: 200% slower, the others waited 100% of the time"


def ended(tmp_path, capsys, showing, **settings):
    settings = {"train__rounds": 3, "evaluate__every": 3, "output__folder": str(tmp_path / "run")} | settings
    display = TrainingDisplay(showing)
    run_training(small_run(**settings), world(), display)
    return capsys.readouterr()


def test_what_is_told_of_a_run(tmp_path, capsys, monkeypatch):
    told = ended(tmp_path / "a", capsys, Showing())
    assert re.findall(r"^round (\S+)", told.out, re.M)[-1] == "3/3" and not told.err
    assert re.search(r"^time +\S+ s with evaluation and saving: .*compute \d+%.*; loading took \S+ s$", told.out, re.M)
    told = ended(tmp_path / "b", capsys, Showing(verbose=True))
    assert len(re.findall(r"^round \d/3 .* lr \S+  \S+ k? ?examples/s  .*B/s  \w+ \d+%", told.out, re.M)) == 3
    assert ended(tmp_path / "d", capsys, Showing(quiet=True)) == ("", "")
    monkeypatch.setattr(tables, "warn_of_widths", lambda *_: "warning: 8 units")
    assert ended(tmp_path / "e", capsys, Showing(quiet=True)) == ("", "warning: 8 units\n")


def test_a_round_of_fedavg_is_told_in_passes(tmp_path, capsys):
    settings = {"method__name": "fedavg", "method__epochs": 2, "train__batch": 200, "train__rounds": 1}
    told = ended(tmp_path, capsys, Showing(), **settings)
    assert "method     fedavg, 1 round of 2 passes over a rank's examples in batches of 200" in told.out
