"""Sends a run's records to MLflow, to the server or folder in MLFLOW_TRACKING_URI."""

import os
import re

from istmpi.checkpoint.saver import Saver
from istmpi.errors import IstmpiError
from istmpi.loggers.logger import Logger, figures, list_settings
from istmpi.optional import optional
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.progress import Progress

AT_ONCE = 1000
"""The most metrics in one call of MLflow."""


class MLflow(Logger):
    """A step is a round.

    A resumed run continues its MLflow run; rounds that MLflow already has are not sent again.
    """

    name = "mlflow"

    def __init__(self) -> None:
        self._mlflow = optional("mlflow", "mlflow", "runs with --log mlflow", "mlflow")

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        self._client = self._mlflow.MlflowClient()
        name = self._read_name(folder)
        if name:
            self._id = name
            metrics = self._client.get_metric_history(name, "loss")
            self._last_round = max((metric.step for metric in metrics), default=0)
            self._client.update_run(name, status="RUNNING")
            return
        self._last_round = 0
        experiment = self._require_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "istmpi"))
        self._id = self._client.create_run(experiment, run_name=folder.path.name).info.run_id
        self._write_name(folder, self._id)
        for key, value in list_settings(training).items():
            self._client.log_param(self._id, key, value)

    def _require_experiment(self, title: str) -> str:
        """Return the number of an experiment, which is created if there is none."""
        experiment = self._client.get_experiment_by_name(title)
        if experiment:
            return experiment.experiment_id
        return self._client.create_experiment(title)

    def progressed(self, progress: Progress) -> None:
        # A resumed run repeats rounds, and MLflow would show them twice.
        if progress.round <= self._last_round:
            return
        milliseconds = int(1000 * progress.time)
        metrics = []
        for name, value in figures(progress).items():
            allowed = re.sub(r"[^\w\-. :/]", "_", name)  # MLflow refuses other characters
            metrics.append(
                self._mlflow.entities.Metric(allowed, float(value), milliseconds, progress.round)
            )
        for start in range(0, len(metrics), AT_ONCE):
            self._client.log_batch(self._id, metrics[start : start + AT_ONCE])

    def closed(self, error: IstmpiError | None) -> None:
        status = "FINISHED" if error is None else "FAILED"
        self._client.set_terminated(self._id, status)
