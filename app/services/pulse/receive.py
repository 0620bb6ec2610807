"""Use case: append a body of a pulse to the inbox, as it came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from app.db.models.access import Project
from app.db.models.chunks import InboxItem
from app.db.models.sessions import Job
from app.db.states import InboxKind
from app.errors import BodyTooLargeError, InvalidPulseError
from app.inputs.pulse.body import MOST_BYTES
from app.services.hangs.live import stands_still
from app.services.pulse.recordings import hand_out
from app.services.pulse.switch import PulseOffError
from app.services.sessions.receive import make_job

if TYPE_CHECKING:
    from app.services.container import Container
    from app.services.pulse.recordings import Recording
    from app.services.sessions.chunks.inbox import Pressure
    from app.services.sessions.receive import Body


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the answer to a body asks for.

    Parameters
    ----------
    record : Recording or None
        A session.
    files : bool
        What each rank says of itself, since no step ends.
    """

    record: Recording | None
    files: bool


def receive_pulse(
    container: Container, job: str, attempt: int, body: Body, pressure: Pressure
) -> Wanted:
    """Store a body durably, which a worker reads; return what the answer asks for.

    Parameters
    ----------
    job : str
        Name of the job; made if it is new.
    pressure : Pressure
        Of the pulses: puts senders off while workers are behind.

    Raises
    ------
    InvalidPulseError, BodyTooLargeError
        It is empty, or too large.
    InvalidJobNameError, QuotaExceededError, InboxFullError
        Nothing is stored.
    PulseOffError
        The project takes none.
    """
    if body.size == 0:
        raise InvalidPulseError("The body is empty.")
    if body.size > MOST_BYTES:
        raise BodyTooLargeError(f"A body of a pulse has at most {MOST_BYTES} bytes.")
    pressure.check(container.everywhere())
    content = body.content()
    with container.uow() as tx:
        # Not locked: hundreds of hosts send at once.
        job_id, is_off = tx.session.execute(
            select(
                select(Job.id).where(Job.name == job).scalar_subquery(),
                select(Project.pulse_off)
                .where(Project.id == container.project_id)
                .scalar_subquery(),
            )
        ).one()
        if is_off:
            raise PulseOffError("This project takes no pulses.")
        if job_id is None:
            job_id = make_job(container, tx, job)
        tx.session.execute(
            insert(InboxItem).values(
                kind=InboxKind.PULSE,
                job_id=job_id,
                attempt=attempt,
                producer="",
                number=0,
                sha256=body.sha256,
                final=False,
                body_bytes=body.size,
                body=content,
            )
        )
        record = hand_out(tx, container.settings, job_id, attempt, content)
        return Wanted(record, files=stands_still(tx, job_id, attempt))
