"""What a run says of each round: one name for each figure, and what earlier versions wrote is read as that."""

import json
import sys
from dataclasses import replace

import pytest

from istmpi.errors import DataError
from istmpi.evaluation.evaluator import Score
from istmpi.loggers import open_loggers, require_installed
from istmpi.loggers.logger import LoggedWatch, figures
from istmpi.record import RunFolder
from istmpi.training.progress import LastRound, Progress
from istmpi.training.watch import Watch

PHASES = [{"compute": 2.0, "wait": 1.0, "all-reduce": 0.5}, {"compute": 4.0, "push": 1.0}]


def progress(score=None):
    last = LastRound.from_ranks(8.0, 4000, 64, PHASES, {"save": 0.25}).with_phases({"evaluate": 3.0})
    return Progress(5, 20, 640, 40.0, 10**7, 0.5, 0.01, score, "accuracy", 2, last, 1.5e9)


def test_a_record_is_flat_and_has_every_phase_and_every_rank():
    line = progress(Score(0.25, 0.75, 9, {"exit1": 0.5, "exit2": 0.75}, 1.5, {"P@3": 0.125})).record()
    assert line == {
        "time": "2017-07-14T02:40:00.000+00:00",
        "round": 5, "local_steps": 20, "examples": 640, "seconds": 40.0, "bytes": 10**7, "loss": 0.5,
        "learning_rate": 0.01, "ranks": 2, "score_name": "accuracy",
        "score": 0.75, "test_loss": 0.25, "test_examples": 9, "exit1_score": 0.5, "exit2_score": 0.75,
        "bits_per_byte": 1.5, "P@3": 0.125,
        "round_seconds": 8.0, "round_bytes": 4000, "examples_per_second": 8.0, "bytes_per_second": 500.0,
        "compute_seconds": 3.0, "wait_seconds": 0.5, "all_reduce_seconds": 0.25, "push_seconds": 0.5,
        "save_seconds": 0.25, "evaluate_seconds": 3.0,
        "rank0_compute_seconds": 2.0, "rank0_wait_seconds": 1.0,
        "rank1_compute_seconds": 4.0, "rank1_wait_seconds": 0.0,
        "rank0_exchange_seconds": 0.5, "rank1_exchange_seconds": 1.0,
    }  # fmt: skip
    assert json.loads(json.dumps(line)) == line


def test_the_lines_of_an_earlier_istmpi_are_read_as_those_of_today(tmp_path):
    facts = {"score": 0.75, "loss": 0.25, "examples": 9, "exits": [0.5, 0.75], "more": {"P@3": 0.125}}
    folder = RunFolder(tmp_path)
    folder.append({"round": 4, "loss": 0.75})
    folder.append({"round": 5, "loss": 0.5, "score": facts | {"bits_per_byte": 1.5}})
    new = progress(Score(0.25, 0.75, 9, {"exit1": 0.5, "exit2": 0.75}, 1.5, {"P@3": 0.125})).record()
    first, second = folder.metrics()
    assert first == {"round": 4, "loss": 0.75}
    assert second == {name: new[name] for name in second}
    assert set(second) == {"round", "loss"} | {n for n in new if n not in progress().record()}
    folder.append({"round": 5, "score": {"score": 0.5, "more": {"round": 7, "score": 1.0}}})
    assert folder.metrics()[2] == {"round": 5, "score": 0.5}, "nothing takes the place of something else"


class Listener(Watch):
    def __init__(self, full=False):
        self.rounds, self.said, self.full = [], [], full

    def progressed(self, progress):
        if self.full and progress.round == 3:
            raise OSError(28, "No space left on device")
        self.rounds.append(progress.round)

    def noticed(self, message):
        self.said.append(message)


def test_a_logger_that_fails_in_the_middle_is_switched_off_alone():
    display, failing, other = Listener(), Listener(full=True), Listener()
    watch = LoggedWatch(display, {"wandb": failing, "other": other})
    for number in range(1, 5):
        watch.progressed(replace(progress(), round=number))
    watch.closed(None)
    assert display.rounds == other.rounds == [1, 2, 3, 4] and failing.rounds == [1, 2]
    (said,) = display.said
    assert said.startswith("--log wandb is switched off: ") and "\n" not in said


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_library_that_is_not_there_is_named_with_the_extra_that_has_it(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=rf"--log {name} need.*pip install 'istmpi\[{name}\]'"):
        open_loggers([name])
    monkeypatch.setattr("istmpi.loggers.find_spec", lambda module: None)
    with pytest.raises(DataError, match=rf"--log {name} needs.*pip install 'istmpi\[{name}\]'"):
        require_installed([name])


def test_figures_are_grouped_for_programs_that_draw_them():
    found = figures(progress(Score(0.25, 0.75, 9)))
    assert {name for name in found if "/" in name} == {
        *(f"phases/{name}_seconds" for name in ("compute", "wait", "all_reduce", "push", "save", "evaluate")),
        *(f"by_rank/rank{rank}_{name}_seconds" for rank in (0, 1) for name in ("compute", "wait", "exchange")),
    }
    assert "loss" not in figures(replace(progress(None), loss=float("nan"))), "of a round without steps"
    record = progress(Score(0.25, 0.75, 9)).record()
    assert {name.rpartition("/")[2] for name in found} == set(record) - {"time", "round", "score_name"}
