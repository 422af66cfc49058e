"""The progress of training on a terminal."""

import io

import pytest
from rich.console import Console
from small import small_run

from istmpi.cli.progress import TrainingDisplay, round_bar
from istmpi.comm import world
from istmpi.training.run import run_training


@pytest.mark.parametrize("seconds, left", [(2, "0:00:14"), (40, "0:04:40"), (3600, "7:00:00")])
def test_the_time_left_is_told_however_long_a_round_takes(seconds, left):
    """Rich itself forgets within 30 seconds what it knew of the speed."""
    now, screen = 0.0, io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, get_time=lambda: now)
    bar = round_bar(console)
    task = bar.add_task("", total=10, note="")
    for done in range(1, 4):
        now += seconds
        bar.update(task, completed=done, note=f"loss {1 / done:.4f}")
    console.print(bar.get_renderable())
    assert "3/10" in screen.getvalue() and "loss 0.3333" in screen.getvalue()
    assert left in screen.getvalue()


@pytest.mark.parametrize("epochs, passes", [(1, "1 pass"), (2, "2 passes")])
def test_a_round_of_fedavg_is_told_in_passes(tmp_path, capsys, epochs, passes):
    settings = {"method__name": "fedavg", "method__epochs": epochs, "train__batch": 200, "train__rounds": 1}
    run_training(small_run(**settings, output__folder=str(tmp_path / "run")), world(), TrainingDisplay())
    said = f"method     fedavg, 1 rounds of {passes} over a rank's examples, 200 at a time"
    assert said in capsys.readouterr().out
