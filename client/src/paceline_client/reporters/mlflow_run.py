"""MLflow: metrics whose step is the session, and tags."""

from __future__ import annotations

from typing import Any

from paceline_client.reporters.kind import JobStanding


class MlflowReporter:
    """Writes into a run of MLflow.

    Parameters
    ----------
    run : mlflow.ActiveRun or str, optional
        A run or its id; without it the active one.
    """

    def __init__(self, run: Any = None) -> None:  # noqa: ANN401 - of a library that is optional
        import mlflow  # noqa: PLC0415 - optional

        if run is None:
            run = mlflow.active_run()
        if run is None:
            message = "there is no active run: call mlflow.start_run first"
            raise ValueError(message)
        self._run_id = run if isinstance(run, str) else str(run.info.run_id)
        # Not the functions of the module: they write into the run that is active on their thread.
        self._client = mlflow.MlflowClient()

    def write(self, standing: JobStanding) -> None:
        """Write how the job stands."""
        for name, value in standing.numbers().items():
            self._client.log_metric(self._run_id, name, value, step=standing.session)
        self._client.set_tag(self._run_id, "paceline.incident", standing.incident)
        self._client.set_tag(self._run_id, "paceline.verdict", standing.sentence)

    def close(self) -> None:
        """Leave the run to the training."""
