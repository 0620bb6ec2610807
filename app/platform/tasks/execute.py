"""Execute one task: claim it, do the work, and record a failure."""

from __future__ import annotations

import uuid
from typing import Final

import psycopg
import structlog
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from app.errors import (
    LostClaimError,
    MemoryLimitError,
    NewerFormatError,
    ObjectStoreError,
    PacelineError,
)
from app.platform.container import Claim, Container, TaskError
from app.platform.tasks.runs import LeaseKeeper, claim, fail, interrupt, leave, retry
from app.platform.telemetry import Role, span

# Errors of the database itself. Blobs are read and written with the driver's own cursors, hence the
# driver's own errors too.
OPERATIONAL: Final = (
    OperationalError,
    InterfaceError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
)

# Operational errors that the work itself causes on every attempt: a value beyond PostgreSQL's
# limits, or a statement beyond its time limit.
OF_THE_WORK: Final = (psycopg.errors.ProgramLimitExceeded, psycopg.errors.QueryCanceled)

# Attempts of work that runs out of memory: another worker may have more memory.
MEMORY_ATTEMPTS: Final = 2

_log = structlog.get_logger(__name__)


def execute(container: Container, keeper: LeaseKeeper, run_id: uuid.UUID) -> bool:
    """Claim and run a task, if it is still queued; raise no error of the work.

    An error of the work is logged and stored in the rows of the task and of its subject. If the
    database does not accept it, it is stored later, or the lease expires and the sweeper ends the
    claim.

    Returns
    -------
    bool
        Whether this call ended the task, as done or dead.
    """
    taken = claim(container, run_id)
    if taken is None:
        _log.debug("nothing to claim", run=str(run_id))
        return False
    with (
        span(
            f"task {taken.kind}",
            Role.CONSUMER,
            taken.traceparent,
            paceline__subject=str(taken.subject_id),
            paceline__attempt=taken.attempt,
        ) as made,
        structlog.contextvars.bound_contextvars(
            run=str(run_id), kind=taken.kind, subject=str(taken.subject_id), attempt=taken.attempt
        ),
    ):
        _log.info("task started")
        try:
            with keeper.hold(taken):
                container.kinds[taken.kind].run(container.within(taken.project_id), taken)
        except LostClaimError as error:
            _log.warning("claim lost, nothing stored", error=error.message)
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is belongs into the row
            made.fail(type(error).__name__)
            return _settle(container, keeper, taken, _time_limit_behind(error) or error)
        _log.info("task done")
        return True


def _time_limit_behind(error: BaseException | None) -> SoftTimeLimitExceeded | None:
    """Return the time limit among the causes of an error; None if there is none.

    The limit is raised at any point of the work, also within the database driver, which then fails
    with an error of its own; if that counted as a failure of the database, the work would be
    repeated forever.
    """
    while error is not None:
        if isinstance(error, SoftTimeLimitExceeded):
            return error
        error = error.__cause__ or error.__context__
    return None


def _is_of_stores(error: BaseException) -> bool:
    """Return whether an error is a failure of the database or of the object store.

    The work itself is not at fault then, however often the store fails.
    """
    if isinstance(error, ObjectStoreError):
        return True
    driver = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(error, OPERATIONAL) and not isinstance(driver, OF_THE_WORK)


def _settle(container: Container, keeper: LeaseKeeper, taken: Claim, error: Exception) -> bool:
    """Record the failure of the work; return whether it ended the task."""
    failed = not _is_of_stores(error) and not isinstance(error, NewerFormatError)
    try:
        if isinstance(error, NewerFormatError):
            _log.warning(
                "task left to a later version", needs=error.generation, error=error.message
            )
            leave(container, taken, error.generation)
            return False
        if failed:
            if isinstance(error, MemoryLimitError) and taken.attempt < MEMORY_ATTEMPTS:
                _log.warning("task over its memory limit, tried again", error=error.message)
                retry(container, taken)
                return False
            _log.error("task failed", exc_info=error)
            return fail(container, taken, _reason(container, error))
        _log.warning("task interrupted", error=str(error))
        interrupt(container, taken)
    except OPERATIONAL as away:
        _log.warning("not recorded, the database is away", error=str(away))
        if not failed:
            keeper.owe(taken)
    return False


def _reason(container: Container, error: Exception) -> TaskError:
    if isinstance(error, PacelineError):
        return TaskError(error.stable_code, error.message)
    if isinstance(error, SoftTimeLimitExceeded):
        return TaskError(
            "task.time_limit",
            f"The work took longer than {container.settings.analysis_time_limit_s} s.",
        )
    return TaskError(
        "task.internal_error",
        f"The work failed unexpectedly ({type(error).__name__}); the log of the worker has the "
        "details.",
    )
