"""Runs one task: claim, work, and what becomes of it when the work fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy.exc import InterfaceError, OperationalError

from app.errors import LostClaimError, PacelineError
from app.services.task_runs import Claim, TaskError, claim, fail, retry

if TYPE_CHECKING:
    import uuid

    from app.services.container import Container
    from app.services.leases import LeaseKeeper

# The database is restarting, out of connections, or refused a lock: the work itself is sound.
TRANSIENT: Final = (OperationalError, InterfaceError)

UNREACHABLE: Final = TaskError(
    "task.database_unavailable",
    "The database failed on every attempt to analyze this session.",
)

_log = structlog.get_logger(__name__)


def execute(container: Container, keeper: LeaseKeeper, run_id: uuid.UUID) -> bool:
    """Run a task if it is there to be run.

    Nothing that the work raises gets out of here: it is in the log, and in the row of the task
    and of its subject.

    Parameters
    ----------
    container : Container
    keeper : LeaseKeeper
        This process's.
    run_id : UUID
        What the message said.

    Returns
    -------
    bool
        Whether the task ended here, done or dead.
    """
    taken = claim(container, run_id)
    if taken is None:
        _log.debug("nothing to claim", run=str(run_id))
        return False
    with structlog.contextvars.bound_contextvars(
        run=str(run_id), kind=taken.kind, subject=str(taken.subject_id), attempt=taken.attempt
    ):
        _log.info("task started")
        try:
            with keeper.hold(taken):
                container.kinds[taken.kind].run(container, taken)
        except LostClaimError as error:
            _log.warning("claim lost, nothing stored", error=error.message)
            return False
        except TRANSIENT as error:
            _log.warning("task interrupted", error=str(error))
            retry(container, taken, UNREACHABLE)
            return False
        except Exception as error:  # noqa: BLE001 - any other fault would come again
            _log.exception("task failed")
            return _fail(container, taken, error)
        _log.info("task done")
        return True


def _fail(container: Container, taken: Claim, error: Exception) -> bool:
    if isinstance(error, PacelineError):
        reason = TaskError(error.stable_code, error.message)
    elif isinstance(error, SoftTimeLimitExceeded):
        reason = TaskError(
            "task.time_limit",
            f"The analysis took longer than {container.settings.analysis_time_limit_s} s.",
        )
    else:
        reason = TaskError(
            "task.internal_error",
            f"The analysis failed unexpectedly ({type(error).__name__}); the log of the worker "
            "has the details.",
        )
    return fail(container, taken, reason)
