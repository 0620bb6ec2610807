"""Write a job's slowdown and incidents into its run of W&B, MLflow or TensorBoard."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from paceline_client.delivery import job_url
from paceline_client.exchange import Document, exchange

__all__ = ["JobStatus", "Reporting", "report"]

_log = logging.getLogger("paceline_client")

_PREFIX: Final = "paceline/"
# Interval in seconds of requests: a job gets a verdict about every half an hour, but incidents open
# within seconds.
EVERY_S: Final = 30.0
_LEAST_EVERY_S: Final = 1.0
_TIMEOUT_S: Final = 10.0
# Maximum of sessions and of incidents in a request.
_SESSIONS: Final = 20
_INCIDENTS: Final = 100
# States of open incidents, from the most urgent to the least urgent.
_OPEN_STATES: Final = ("firing", "acknowledged", "silenced", "pending")
_LONGEST_SENTENCE: Final = 500
# Ranges of the fields of answers.
_MOST_SESSION: Final = 1 << 53
_MOST_SLOWDOWN: Final = 1e9
_MOST_GPU_HOURS: Final = 1e15
_LONGEST_STATE: Final = 40


@dataclass(frozen=True)
class JobStatus:
    """The latest verdict and the incidents of a job; unknown values are None."""

    session: int  # of an attached job the number of its first step, counted from 1
    slowdown: float | None  # step time / step time without stragglers; 1 is none
    gpu_hours_lost: float | None  # in the recorded steps of that session
    gpu_hours_lost_per_hour: float | None  # per hour of running like that
    firing: int  # number of firing incidents
    incident: str  # state of the most urgent open incident, or "none"
    sentence: str  # the verdict in words

    def numbers(self) -> dict[str, float]:
        """Return the known metrics by their name in a run."""
        numbers = {
            "slowdown": self.slowdown,
            "gpu_hours_lost": self.gpu_hours_lost,
            "gpu_hours_lost_per_hour": self.gpu_hours_lost_per_hour,
            "incidents_firing": self.firing,
        }
        return {
            _PREFIX + name: float(value) for name, value in numbers.items() if value is not None
        }


class Reporter(Protocol):
    """Writes into a run; called on one thread, and may raise."""

    def write(self, status: JobStatus) -> None:
        """Write the status of the job."""

    def close(self) -> None:
        """Close the resources that the reporter itself has opened."""


class MlflowReporter:
    """Writes into a run of MLflow: metrics whose step is the session, and tags.

    Parameters
    ----------
    run : mlflow.ActiveRun or str, optional
        A run or its id; by default the active one.
    """

    def __init__(self, run: Any = None) -> None:  # noqa: ANN401 - of a library that is optional
        import mlflow  # noqa: PLC0415 - optional

        if run is None:
            run = mlflow.active_run()
        if run is None:
            message = "there is no active run: call mlflow.start_run first"
            raise ValueError(message)
        self._run_id = run if isinstance(run, str) else str(run.info.run_id)
        # The module's functions would write into the run that is active on the calling thread.
        self._client = mlflow.MlflowClient()

    def write(self, status: JobStatus) -> None:
        """Write the status of the job."""
        for name, value in status.numbers().items():
            self._client.log_metric(self._run_id, name, value, step=status.session)
        self._client.set_tag(self._run_id, "paceline.incident", status.incident)
        self._client.set_tag(self._run_id, "paceline.verdict", status.sentence)

    def close(self) -> None:
        """Do nothing: the run belongs to the training."""


class TensorBoardReporter:
    """Writes scalars and texts whose step is the session, by a `SummaryWriter`.

    Parameters
    ----------
    writer : SummaryWriter or path
        The training's writer, which stays open; or a folder for separate events.
    """

    def __init__(self, writer: Any = None) -> None:  # noqa: ANN401 - of a library that is optional
        if writer is None:
            message = "name the SummaryWriter of the training, or a folder"
            raise ValueError(message)
        self._owns = not hasattr(writer, "add_scalar")
        if self._owns:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - optional

            writer = SummaryWriter(str(writer))
        self._writer = writer

    def write(self, status: JobStatus) -> None:
        """Write the status of the job."""
        for name, value in status.numbers().items():
            self._writer.add_scalar(name, value, status.session)
        self._writer.add_text(f"{_PREFIX}incident", status.incident, status.session)
        self._writer.add_text(f"{_PREFIX}verdict", status.sentence, status.session)
        self._writer.flush()

    def close(self) -> None:
        """Close the writer unless it is the training's."""
        if self._owns:
            self._writer.close()


class WandbReporter:
    """Writes into a run of W&B: metrics of the run's current step, and its summary.

    Never commits a step, which would move the training's axis: values are committed with the
    training's next step.

    Parameters
    ----------
    run : wandb.Run, optional
        By default the active one.
    """

    def __init__(self, run: Any = None) -> None:  # noqa: ANN401 - of a library that is optional
        if run is None:
            import wandb  # noqa: PLC0415 - optional

            run = wandb.run
        if run is None:
            message = "there is no active run: call wandb.init first"
            raise ValueError(message)
        self._run = run

    def write(self, status: JobStatus) -> None:
        """Write the status of the job."""
        self._run.log({**status.numbers(), f"{_PREFIX}session": status.session}, commit=False)
        self._run.summary.update(
            {f"{_PREFIX}incident": status.incident, f"{_PREFIX}verdict": status.sentence}
        )

    def close(self) -> None:
        """Do nothing: the run belongs to the training."""


# Constructors of the reporters. Each takes the run to write into; None is the active run.
REPORTERS: Final[dict[str, Callable[[Any], Reporter]]] = {
    "mlflow": MlflowReporter,
    "tensorboard": TensorBoardReporter,
    "wandb": WandbReporter,
}


class Reporting:
    """Requests the status of a job on a thread, and writes changes; never raises into the training.

    Parameters
    ----------
    server, job : str
        Address of Paceline and name of the job, as in `attach`.
    reporter : Reporter
        Writes into the run.
    every_s : float
        Time in seconds between two requests.
    """

    def __init__(self, server: str, job: str, reporter: Reporter, every_s: float = EVERY_S) -> None:
        self._server = server
        self._job = job
        self._reporter = reporter
        self._every_s = max(every_s, _LEAST_EVERY_S)
        self._written: JobStatus | None = None
        self._warned = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-report", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, wait_s: float = _TIMEOUT_S) -> None:
        """Write the status a last time and end the thread; waits at most `wait_s`."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def _run(self) -> None:
        self._update()
        while not self._ending.wait(self._every_s):
            self._update()
        self._update()
        try:
            self._reporter.close()
        except Exception as error:  # noqa: BLE001 - raised by the run's library
            self._warn(error)

    def _update(self) -> None:
        try:
            status = job_status(self._server, self._job)
            if status is not None and status != self._written:
                self._reporter.write(status)
                self._written = status
        except Exception as error:  # noqa: BLE001 - raised by the run's library
            self._warn(error)
        else:
            self._warned = False

    def _warn(self, error: Exception) -> None:
        """Log a warning, unless one was logged since the last success."""
        if not self._warned:
            _log.warning("the status of the job was not written into its run, retrying: %s", error)
        self._warned = True


class _NoReporting(Reporting):
    """The result of `report` if the reporter cannot be created; its `close` does nothing."""

    def __init__(self) -> None:
        pass

    def close(self, wait_s: float = 0.0) -> None:
        """Do nothing."""


def report(
    url: str,
    job: str,
    kind: str,
    into: Any = None,  # noqa: ANN401 - a run
    *,
    every_s: float = EVERY_S,
) -> Reporting:
    """Write the status of a job into its run from now on; call it on a single rank.

    Never raises into the training: errors are warnings of the logger ``paceline_client``.

    Parameters
    ----------
    url, job : str
        Address of Paceline and name of the job, as in `attach`; the environment's
        ``PACELINE_TOKEN`` needs the right to read.
    kind : {"wandb", "mlflow", "tensorboard"}
        The library of the run.
    into : optional
        A run of W&B or MLflow, by default the active one; for TensorBoard the training's
        `SummaryWriter`, or a folder.
    every_s : float
        Time in seconds between two requests to Paceline.
    """
    try:
        job_url(url, job)
        reporting = Reporting(url, job, REPORTERS[kind](into), every_s)
        reporting.start()
    except Exception as error:  # noqa: BLE001 - raised by the run's library
        _log.warning("the status of the job is not written into the run of %s: %r", kind, error)
        return _NoReporting()
    return reporting


def job_status(server: str, job: str) -> JobStatus | None:
    """Return the status of a job; None if the job has no verdict yet.

    Raises
    ------
    DeliveryError
        If the server does not answer, or refuses.
    """
    root = job_url(server, job).partition("/api/v1/")[0]

    def items(name: str, limit: int) -> list[Document]:
        query = urlencode({"job": job, "limit": limit})
        answer = exchange("GET", f"{root}/api/v1/{name}?{query}", None, None, _TIMEOUT_S)
        return answer.documents(name, most=limit)

    latest = next((row for row in items("sessions", _SESSIONS) if row.has("headline")), None)
    if latest is None:
        return None
    headline = latest.document("headline")

    def number(name: str, most: float) -> float | None:
        return headline.number(name, -most, most) if headline.has(name) else None

    states = [row.text("state", _LONGEST_STATE) for row in items("incidents", _INCIDENTS)]
    return JobStatus(
        session=latest.integer("session", 0, _MOST_SESSION),
        slowdown=number("slowdown", _MOST_SLOWDOWN),
        gpu_hours_lost=number("gpu_hours_lost", _MOST_GPU_HOURS),
        gpu_hours_lost_per_hour=number("gpu_hours_lost_per_hour", _MOST_GPU_HOURS),
        firing=states.count("firing"),
        incident=next((state for state in _OPEN_STATES if state in states), "none"),
        sentence=headline.text("sentence", _LONGEST_SENTENCE) if headline.has("sentence") else "",
    )
