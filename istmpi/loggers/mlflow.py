"""Sends a run's records to MLflow, to the server or folder in MLFLOW_TRACKING_URI."""

import os
import re

from istmpi.checkpoint.saver import Saver
from istmpi.errors import IstmpiError
from istmpi.loggers.logger import Logger, figures
from istmpi.optional import optional
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.progress import Progress

AT_ONCE = 1000
"""The most metrics in one call of MLflow."""


class MLflow(Logger):
    """A step is a round. A resumed run continues its MLflow run; rounds that MLflow already has are
    not sent again."""

    name = "mlflow"

    def __init__(self) -> None:
        self._mlflow = optional("mlflow", "mlflow", "runs with --log mlflow", "mlflow")

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self._client = client = self._mlflow.MlflowClient()
        name = self._known_as(folder)
        if name:
            self._id, self._told = (
                name,
                max((m.step for m in client.get_metric_history(name, "loss")), default=0),
            )
            client.update_run(self._id, status="RUNNING")
            return
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "istmpi")
        experiment = client.get_experiment_by_name(title)
        number = experiment.experiment_id if experiment else client.create_experiment(title)
        self._id, self._told = client.create_run(number, run_name=folder.path.name).info.run_id, 0
        self._be_known_as(folder, self._id)
        for key, value in (training.run.flat() | {"ranks": training.communicator.size}).items():
            client.log_param(self._id, key, value)

    def progressed(self, progress: Progress) -> None:
        if progress.round <= self._told:
            return
        time, step = int(1000 * progress.time), progress.round
        metrics = [
            self._mlflow.entities.Metric(
                re.sub(r"[^\w\-. :/]", "_", name), float(value), time, step
            )
            for name, value in figures(progress).items()
        ]
        for start in range(0, len(metrics), AT_ONCE):
            self._client.log_batch(self._id, metrics[start : start + AT_ONCE])

    def closed(self, error: IstmpiError | None) -> None:
        self._client.set_terminated(self._id, "FINISHED" if error is None else "FAILED")
