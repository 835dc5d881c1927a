"""MLflow: the server that `MLFLOW_TRACKING_URI` names, or a database inside the run's folder."""

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from personae.files import write_text
from personae.tracking.tracker import Tracker

URI = "MLFLOW_TRACKING_URI"
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}  # a run does not wait for it


class MLflow(Tracker):
    """One run of MLflow for a run, in the experiment of the same name; a resumed run goes on with its own."""

    name: ClassVar[str] = "mlflow"
    module: ClassVar[str] = "mlflow"

    def __init__(self, folder: Path, experiment: str) -> None:
        for option, value in PATIENCE.items():
            os.environ.setdefault(option, value)
        from mlflow.tracking import MlflowClient

        for library in ("mlflow", "alembic"):  # a new database is no news
            logging.getLogger(library).setLevel(logging.WARNING)
        folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(os.environ.get(URI) or f"sqlite:///{folder.absolute() / 'mlflow.db'}")
        known = folder / "run"
        if known.is_file():
            self._run = known.read_text().strip()
            self._client.update_run(self._run, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(experiment)
        group = found.experiment_id if found else self._client.create_experiment(experiment)
        self._run = self._client.create_run(group).info.run_id
        write_text(known, self._run + "\n")

    def log(self, figures: Mapping[str, float], round_: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._run, [Metric(_allowed(name), each, now, round_) for name, each in figures.items()])

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _allowed(name: str) -> str:
    """`heldout/tar at 1e-02`: MLflow takes letters, digits and a few signs."""
    return re.sub(r"[^\w/:. -]", "", name.replace("@", " at "))
