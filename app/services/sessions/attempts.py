"""A job's starts, which are numbered, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import func, select, update

from app.db.models.alerts import AlertGroup
from app.db.models.sessions import Attempt, Job, Session
from app.errors import PacelineError
from app.services.sessions.receive import check_job_name, make_job, no_job
from app.services.usage.count import count_made
from app.services.usage.quotas import ATTEMPTS

if TYPE_CHECKING:
    from app.services.container import Container

log = structlog.get_logger(__name__)

MAX_RUN_CHARACTERS: Final = 200


class InvalidRunError(PacelineError):
    """A run's name that would not survive on a page."""

    code = "run.invalid_name"


@dataclass(frozen=True, slots=True)
class AttemptReceipt:
    """The number of an attempt; `created` unless it was announced before."""

    number: int
    created: bool


def announce_attempt(container: Container, job: str, run_id: str, restart: int) -> AttemptReceipt:
    """Give a start of a job its number; the same run and restart are the same attempt.

    Returns
    -------
    AttemptReceipt
        One above all attempts that are known, also of those that sessions named by themselves.

    Raises
    ------
    InvalidJobNameError, InvalidRunError, QuotaExceededError
        Nothing is stored.
    """
    check_job_name(job)
    if not (0 < len(run_id) <= MAX_RUN_CHARACTERS and run_id.isprintable()):
        raise InvalidRunError(f"A run has 1 to {MAX_RUN_CHARACTERS} printable characters.")
    with container.uow() as tx:
        # Making or finding the job locks its row, which puts the numbers in order.
        job_id = make_job(container, tx, job)
        known = tx.session.execute(
            select(Attempt.number).where(
                Attempt.job_id == job_id, Attempt.run_id == run_id, Attempt.restart == restart
            )
        ).scalar()
        if known is not None:
            return AttemptReceipt(known, created=False)
        announced = select(func.max(Attempt.number)).where(Attempt.job_id == job_id)
        named = select(func.max(Session.attempt)).where(Session.job_id == job_id)
        number = tx.session.execute(
            select(
                func.coalesce(
                    func.greatest(announced.scalar_subquery(), named.scalar_subquery()), 0
                )
                + 1
            )
        ).scalar_one()
        tx.session.add(
            Attempt(
                job_id=job_id,
                number=number,
                run_id=run_id,
                restart=restart,
                announced_at=tx.now,
            )
        )
        count_made(tx, container.settings, container.project_id, ATTEMPTS)
    log.info("attempt announced", job=job, number=number, run=run_id, restart=restart)
    return AttemptReceipt(number, created=True)


def finish_job(container: Container, job: str) -> None:
    """Note that a job has ended: its silence from now on is meant.

    What its last start has recorded may still come; sessions of another start take it back
    (`app.alerts.board.FINISH_GRACE`).

    Raises
    ------
    NotFoundError
        If there is no such job.
    """
    with container.uow() as tx:
        job_id = tx.session.execute(
            update(Job).where(Job.name == job).values(finished_at=tx.now).returning(Job.id)
        ).scalar()
        if job_id is None:
            raise no_job(job)
        # An incident about its silence is over.
        tx.session.execute(
            update(AlertGroup).where(AlertGroup.job_id == job_id).values(look_at=tx.now)
        )
    log.info("job finished", job=job)
