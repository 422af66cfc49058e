"""`istmpi train --log`: what other programs are told, read back by their own readers; and never a reason to fail."""

from importlib.util import find_spec

import pytest
from following import lines
from wandb_file import history

SMALL = ("--hidden", "24", "--local-steps", "3", "--batch", "16", "--checkpoint-every", "2", "--evaluate-every", "2")
NOT_TOLD = {"round", "time", "score_name", "resumed_from"}


def numbers(line, told):
    """The figures of a line of metrics; a job's last line gets the bytes of its end, which were not ``told``."""
    later = {name: told[name] for name in ("evaluation_bytes", "saving_bytes")}
    return {name: value for name, value in line.items() if name not in NOT_TOLD} | later


def plain(name):
    """A figure's name without the group that a program draws it in."""
    return name.removeprefix("phases/").removeprefix("by_rank/")


def in_tensorboard(folder, monkeypatch):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    rounds = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            assert plain(tag) not in rounds.setdefault(event.step, {}), "each round once"
            rounds[event.step][plain(tag)] = event.value
    return rounds.items()


def in_wandb(folder, monkeypatch):
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 2 and len({path.name for path in files}) == 1, "two jobs of one run"
    rounds = {}
    for path in files:
        for row in history(path):
            rounds[row["round"]] = {plain(name): row[name] for name in row if name != "round" and name[0] != "_"}
    return rounds.items()


def in_mlflow(folder, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(f"file://{folder.parent}/mlruns")
    (run,) = client.search_runs([client.get_experiment_by_name("istmpi").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["method.name"] == "ist"
    rounds = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            assert plain(name) not in rounds.setdefault(metric.step, {}), "each round once"
            rounds[metric.step][plain(name)] = metric.value
    return rounds.items()


READERS = {"tensorboard": in_tensorboard, "wandb": in_wandb, "mlflow": in_mlflow}


A_FILE_IN_THE_WAY = """
import shutil
if rank == 0:
    shutil.copytree("compared/ist-0", "run")
    shutil.rmtree("run/tensorboard")
    open("run/tensorboard", "w").close()
"""


@pytest.fixture(scope="module")
def said(series, folder):
    """The outcomes of commands of one job, for every program that is installed."""
    steps = {}
    for library in filter(find_spec, READERS):
        command = ["train", *SMALL, "--log", library, "--out", f"in-{library}"]
        steps |= {
            f"{library} first": [*command, "--rounds", 3],
            f"{library} then": f"import shutil\nif rank == 0: shutil.copytree('in-{library}', 'then-{library}')",
            # Round 3 is run again.
            f"{library} again": [*command, "--rounds", 5, "--resume", f"in-{library}/checkpoints/round-00000002.h5"],
        }
    if find_spec("tensorboard"):
        logged = [*SMALL, "--log", "tensorboard"]
        steps |= {
            "compare": ["compare", "--methods", "ist,local-sgd", *logged, "--rounds", "2", "--out", "compared"],
            "in the way": A_FILE_IN_THE_WAY,
            "train": ["train", *logged, "--rounds", "4", "--resume", "auto", "--out", "run"],
        }
    offline = {"WANDB_MODE": "offline", "MLFLOW_ALLOW_FILE_STORE": "true"}
    return series(2, folder, steps, env=offline | {"MLFLOW_TRACKING_URI": f"file://{folder}/mlruns"}).end()


def require(library):
    pytest.importorskip(library, reason=f"{library} is not installed; pip install 'istmpi[{library}]' brings it")


@pytest.mark.parametrize("library", READERS)
def test_a_run_and_its_resumption_are_read_back_as_metrics_has_them(said, folder, monkeypatch, library):
    require(library)
    for job in (said[f"{library} first"], said[f"{library} again"]):
        assert job.returncode == 0 and "switched off" not in job.stdout, job
    earlier, metrics = lines(folder / f"then-{library}"), lines(folder / f"in-{library}")
    assert [line["round"] for line in metrics] == [1, 2, 3, 4, 5] and metrics[2]["loss"] == earlier[2]["loss"]
    told = dict(READERS[library](folder / f"in-{library}", monkeypatch))
    assert sorted(told) == [1, 2, 3, 4, 5]
    for line in metrics:
        # MLflow's points cannot be taken back: of a round that was run again it has the first.
        found = told[line["round"]]
        figures = numbers(earlier[2] if library == "mlflow" and line["round"] == 3 else line, found)
        assert found == pytest.approx(figures, rel=1e-6)  # TensorBoard's are float32


def test_every_run_of_a_comparison_has_its_log(said, folder, monkeypatch):
    require("tensorboard")
    assert said["compare"].returncode == 0, said["compare"]
    for method in ("ist-0", "local-sgd-0"):
        out = folder / "compared" / method
        told = dict(in_tensorboard(out, monkeypatch))
        expected = {line["round"]: numbers(line, told[line["round"]]) for line in lines(out)}
        assert told == {number: pytest.approx(figures, rel=1e-6) for number, figures in expected.items()}


def test_a_logger_that_cannot_write_is_switched_off(said, folder):
    """What it would write to is something else now; that is a line, and the run goes on."""
    require("tensorboard")
    assert said["train"].returncode == 0, said["train"]
    (line,) = [line for line in said["train"].stdout.splitlines() if "switched off" in line]
    assert line.startswith("--log tensorboard is switched off: ") and line.endswith("The run continues."), line
    assert [line["round"] for line in lines(folder / "run")] == [1, 2, 3, 4]
