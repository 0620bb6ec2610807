"""The thread that asks Paceline how the job stands, and has it written where that is news."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final
from urllib.parse import urlencode

from paceline_client.delivery import ask, job_url, not_paceline
from paceline_client.reporters.kind import JobStanding, Reporter
from paceline_client.reporters.registry import REPORTERS

_log = logging.getLogger("paceline_client")

# A verdict comes once a session, every half an hour or so; an incident within seconds.
EVERY_S: Final = 30.0
LEAST_EVERY_S: Final = 1.0
_TIMEOUT_S: Final = 10.0
_SESSIONS: Final = 20
_INCIDENTS: Final = 100
# The more pressing first.
_OPEN: Final = ("firing", "acknowledged", "silenced", "pending")
_TEXT: Final = 500


class Reporting:
    """Asks and writes on a thread of its own; nothing of it is raised into the training.

    Parameters
    ----------
    server, job : str
        As of `attach`.
    reporter : Reporter
        Where it is written.
    every_s : float
        Between two questions.
    """

    def __init__(self, server: str, job: str, reporter: Reporter, every_s: float = EVERY_S) -> None:
        self._server = server
        self._job = job
        self._reporter = reporter
        self._every_s = max(every_s, LEAST_EVERY_S)
        self._written: JobStanding | None = None
        self._warned = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-report", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self, wait_s: float = _TIMEOUT_S) -> None:
        """Ask once more, write that, and end; waits no longer than `wait_s`."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def _run(self) -> None:
        self._once()
        while not self._ending.wait(self._every_s):
            self._once()
        self._once()
        try:
            self._reporter.close()
        except Exception as error:  # noqa: BLE001 - of a library that is not ours
            self._warn(error)

    def _once(self) -> None:
        try:
            standing = standing_of(self._server, self._job)
            if standing is not None and standing != self._written:
                self._reporter.write(standing)
                self._written = standing
        except Exception as error:  # noqa: BLE001 - of a library that is not ours
            self._warn(error)
        else:
            self._warned = False

    def _warn(self, error: Exception) -> None:
        """Say once what is wrong, until it is well again."""
        if not self._warned:
            _log.warning("the run is not told how the job stands, trying on: %s", error)
        self._warned = True


class _Off(Reporting):
    """What a training gets whose reporter cannot be made: it can be closed."""

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
    """Write how the job stands into a run, from now on; call it on one rank.

    Never raises into the training: what is wrong is a warning of the logger ``paceline_client``.

    Parameters
    ----------
    url, job : str
        As of `attach`; the environment's ``PACELINE_TOKEN`` needs the right to read.
    kind : {"wandb", "mlflow", "tensorboard"}
        Whose run it is.
    into : optional
        A run of W&B or MLflow, without which it is the active one; for TensorBoard the training's
        `SummaryWriter`, or a folder.
    every_s : float
        Between two questions to Paceline.
    """
    try:
        job_url(url, job)
        reporting = Reporting(url, job, REPORTERS[kind](into), every_s)
        reporting.start()
    except Exception as error:  # noqa: BLE001 - of a library that is not ours
        _log.warning("the run of %s is not told how the job stands: %r", kind, error)
        return _Off()
    return reporting


def standing_of(server: str, job: str) -> JobStanding | None:
    """Return how a job stands; None while there is no verdict.

    Raises
    ------
    DeliveryError
        If the server does not answer, or refuses.
    """
    root = job_url(server, job).partition("/api/v1/")[0]

    def of_job(what: str, limit: int) -> list[dict[str, Any]]:
        query = urlencode({"job": job, "limit": limit})
        # Of an answer over a megabyte nothing is read.
        found = ask(f"{root}/api/v1/{what}?{query}", _TIMEOUT_S).get(what)
        if not isinstance(found, list):
            raise not_paceline(f"{root}/api/v1/{what}")
        return [one for one in found if isinstance(one, dict)]

    told = next((one for one in of_job("sessions", _SESSIONS) if one.get("headline")), None)
    if told is None:
        return None
    headline = told["headline"]
    states = [one.get("state") for one in of_job("incidents", _INCIDENTS)]
    return JobStanding(
        session=int(told["session"]),
        slowdown=headline.get("slowdown"),
        gpu_hours_lost=headline.get("gpu_hours_lost"),
        gpu_hours_lost_per_hour=headline.get("gpu_hours_lost_per_hour"),
        firing=states.count("firing"),
        incident=next((state for state in _OPEN if state in states), "none"),
        sentence=str(headline.get("sentence", ""))[:_TEXT],
    )
