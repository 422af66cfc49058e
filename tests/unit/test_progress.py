"""The progress of training on a terminal."""

import io

import pytest
from rich.console import Console

from istmpi.cli.progress import round_bar


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
def test_a_round_of_fedavg_is_told_in_passes(istmpi_command, tmp_path, epochs, passes):
    words = ["--method", "fedavg", "--batch", 200, "--set", f"method.epochs={epochs}", "--hidden", "8", "--rounds", 1]
    code, out, err = istmpi_command("train", *words, "--out", tmp_path / "run")
    assert code == 0, err
    assert f"method     fedavg, 1 rounds of {passes} over a rank's examples, 200 at a time" in out
