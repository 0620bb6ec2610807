"""Use case: append bodies of pulses to the inbox, as they came, where a project takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from sqlalchemy import select, update

from app.access.audit import Action, record
from app.errors import BodyTooLargeError, ConflictError, InvalidPulseError
from app.hangs.receive import stands_still
from app.jobs.models import Job
from app.platform.blobs import connection_of
from app.platform.container import Container
from app.platform.database.projects import Project
from app.platform.database.states import InboxKind
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.pulse.body import MOST_BYTES
from app.pulse.recordings import Recording, due_request, hand_out
from app.sessions.chunks.inbox import Pressure
from app.sessions.decoding import Body
from app.sessions.receive import make_job

# One statement for all that came together. Bytes go as they are (%b): text is twice as long.
_APPEND: Final = """
INSERT INTO inbox (project_id, kind, producer, number, final, job_id, attempt, sha256, body_bytes,
                   body)
SELECT %(project)s, %(kind)s, '', 0, false, given.*
FROM unnest(%(job)s::bigint[], %(attempt)s::int[], %(sha256)b::bytea[], %(body_bytes)s::bigint[],
            %(body)b::bytea[]) AS given
"""


class PulseOffError(ConflictError):
    """The project takes no pulses."""

    code = "pulse.off"


@dataclass(frozen=True, slots=True)
class ArrivedPulse:
    """A body as it came; `job` is the name of its job."""

    job: str
    attempt: int
    body: Body


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


def receive_pulse(container: Container, pulse: ArrivedPulse, pressure: Pressure) -> Wanted:
    """Store a body durably, which a worker reads; return what the answer asks for.

    Its job is made if it is new.

    Parameters
    ----------
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
    if pulse.body.size == 0:
        raise InvalidPulseError("The body is empty.")
    if pulse.body.size > MOST_BYTES:
        raise BodyTooLargeError(f"A body of a pulse has at most {MOST_BYTES} bytes.")
    pressure.check(container.everywhere())
    with container.uow() as tx:
        jobs = _jobs(container, tx, [pulse])
        if pulse.job not in jobs:
            jobs = {pulse.job: make_job(container, tx, pulse.job)}
        (wanted,) = _append(container, tx, [pulse], jobs)
        return wanted


def receive_pulses(container: Container, pulses: Sequence[ArrivedPulse]) -> list[Wanted | None]:
    """Store bodies of one project durably, in one transaction; return what each answer asks for.

    Returns
    -------
    list
        None for those that are not stored, whose job is new or whose body is empty: give these to
        `receive_pulse`, one by one.

    Raises
    ------
    PulseOffError
        The project takes none.
    """
    with container.uow() as tx:
        jobs = _jobs(container, tx, pulses)
        usual = [one for one in pulses if one.job in jobs and 0 < one.body.size <= MOST_BYTES]
        stored = iter(_append(container, tx, usual, jobs))
        kept = {id(one) for one in usual}
        return [next(stored) if id(one) in kept else None for one in pulses]


def _jobs(container: Container, tx: UnitOfWork, pulses: Sequence[ArrivedPulse]) -> dict[str, int]:
    """Return the jobs of some bodies that are there, by name."""
    # Not locked: hundreds of hosts send at once.
    found = tx.session.execute(
        select(Project.pulse_off, Job.name, Job.id)
        .outerjoin(Job, Job.name.in_({one.job for one in pulses}))
        .where(Project.id == container.project_id)
    ).all()
    if any(row.pulse_off for row in found):
        raise PulseOffError("This project takes no pulses.")
    return {row.name: row.id for row in found if row.id is not None}


def _append(
    container: Container,
    tx: UnitOfWork,
    pulses: Sequence[ArrivedPulse],
    jobs: Mapping[str, int],
) -> list[Wanted]:
    if not pulses:
        return []
    bodies = [one.body.content() for one in pulses]
    connection_of(tx).execute(
        _APPEND,
        {
            "project": cast("int", tx.scope.project_id),
            "kind": InboxKind.PULSE.value,
            "job": [jobs[one.job] for one in pulses],
            "attempt": [one.attempt for one in pulses],
            "sha256": [one.body.sha256 for one in pulses],
            "body_bytes": [one.body.size for one in pulses],
            "body": bodies,
        },
        prepare=True,
    )
    attempts = {(jobs[one.job], one.attempt) for one in pulses}
    due = {key for key in attempts if due_request(tx, container.settings, *key) is not None}
    still = {key: stands_still(tx, *key) for key in attempts}
    wanted = []
    for one, content in zip(pulses, bodies, strict=True):
        key = jobs[one.job], one.attempt
        asked = hand_out(tx, container.settings, *key, content) if key in due else None
        wanted.append(Wanted(asked, still[key]))
    return wanted


def pulse_is_off(tx: Reads) -> bool:
    """Return whether pulses of the transaction's project are refused."""
    query = select(Project.pulse_off).where(Project.id == tx.scope.project_id)
    return tx.session.execute(query).scalar_one()


def switch_pulse(container: Container, *, on: bool) -> None:
    """Take the pulses of a project's jobs from now on, or refuse them; what is kept stays."""
    with container.uow() as tx:
        changed = tx.session.execute(
            update(Project)
            .where(Project.id == container.project_id, Project.pulse_off == on)
            .values(pulse_off=not on)
            .returning(Project.id)
        ).scalar()
        if changed is not None:
            detail = "on" if on else "off"
            record(tx, container.principal, Action.CHANGED, "pulse", detail=detail)
