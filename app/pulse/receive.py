"""Use case: store received bodies of pulses in the inbox, if the project accepts pulses."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from sqlalchemy import select, update

from app.access.audit import Action, record
from app.access.models import AttemptOwner
from app.access.senders import claim_attempt
from app.analysis.generation import WRITES
from app.errors import BodyTooLargeError, ConflictError, InvalidPulseError
from app.hangs.receive import has_open_hang
from app.jobs.models import Job
from app.platform.blobs import connection_of
from app.platform.container import Container
from app.platform.database.projects import Project
from app.platform.database.states import InboxKind
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.pulse.body import MOST_BYTES
from app.pulse.recordings import Recording, due_request, hand_out
from app.sessions.body import Body
from app.sessions.chunks.inbox import Pressure
from app.sessions.receive import make_job

# One statement inserts all bodies. Binary parameters (%b) are used, because text parameters are
# twice as long.
_APPEND: Final = """
INSERT INTO inbox (project_id, kind, producer, number, final, job_id, attempt, sha256, body_bytes,
                   body, needs)
SELECT %(project)s, %(kind)s, '', 0, false, given.*, %(needs)s
FROM unnest(%(job)s::bigint[], %(attempt)s::int[], %(sha256)b::bytea[], %(body_bytes)s::bigint[],
            %(body)b::bytea[]) AS given
"""


class PulseOffError(ConflictError):
    """The project accepts no pulses."""

    code = "pulse.off"


@dataclass(frozen=True, slots=True)
class ArrivedPulse:
    """A received body with the name and attempt of its job."""

    job: str
    attempt: int
    body: Body
    sender: uuid.UUID | None
    """Token that has to own the attempt (`app.access.senders.owning_token`)."""


@dataclass(frozen=True, slots=True)
class PulseReply:
    """Requests that the answer to a body carries.

    Parameters
    ----------
    record : Recording or None
        A session to record.
    files : bool
        Whether each rank is to send its stack and recorder, as no step ends.
    """

    record: Recording | None
    files: bool


def receive_pulse(container: Container, pulse: ArrivedPulse, pressure: Pressure) -> PulseReply:
    """Store a body durably, and a new job; return the requests that the answer carries.

    Parameters
    ----------
    pressure : Pressure
        Refuses bodies while workers are behind.

    Raises
    ------
    InvalidPulseError, BodyTooLargeError
        The body is empty, or too large.
    InvalidJobNameError, AttemptOwnedError, QuotaExceededError, InboxFullError
        Nothing is stored.
    PulseOffError
        The project accepts no pulses.
    """
    if pulse.body.size == 0:
        raise InvalidPulseError("The body is empty.")
    if pulse.body.size > MOST_BYTES:
        raise BodyTooLargeError(f"A body of a pulse has at most {MOST_BYTES} bytes.")
    pressure.check(container.everywhere())
    with container.uow() as tx:
        jobs, owners = _jobs(container, tx, [pulse])
        if pulse.job not in jobs:
            jobs = {pulse.job: make_job(container, tx, pulse.job)}
        if not _owns(pulse, owners):
            claim_attempt(container, tx, pulse.job, jobs[pulse.job], pulse.attempt)
        (reply,) = _append(container, tx, [pulse], jobs)
        return reply


def receive_pulses(container: Container, pulses: Sequence[ArrivedPulse]) -> list[PulseReply | None]:
    """Store bodies of one project in one transaction; return the requests for each answer.

    Returns
    -------
    list
        None for bodies that are not stored, as their job or sender is new or they are empty or too
        large: pass them to `receive_pulse` one by one.

    Raises
    ------
    PulseOffError
        The project accepts no pulses.
    """
    with container.uow() as tx:
        jobs, owners = _jobs(container, tx, pulses)
        usual = [
            pulse
            for pulse in pulses
            if pulse.job in jobs and 0 < pulse.body.size <= MOST_BYTES and _owns(pulse, owners)
        ]
        replies = iter(_append(container, tx, usual, jobs))
        stored = {id(pulse) for pulse in usual}
        return [next(replies) if id(pulse) in stored else None for pulse in pulses]


def _owns(pulse: ArrivedPulse, owners: Mapping[tuple[str, int], uuid.UUID]) -> bool:
    return pulse.sender in (None, owners.get((pulse.job, pulse.attempt)))


def _jobs(
    container: Container, tx: UnitOfWork, pulses: Sequence[ArrivedPulse]
) -> tuple[dict[str, int], dict[tuple[str, int], uuid.UUID]]:
    """Return the ids of existing jobs by name, and the owners of attempts by job and number.

    Raises
    ------
    PulseOffError
        The project accepts no pulses.
    """
    # The rows of the jobs are not locked, because hundreds of hosts send bodies at the same time.
    attempts = {pulse.attempt for pulse in pulses}
    rows = tx.session.execute(
        select(Project.pulse_off, Job.name, Job.id, AttemptOwner.attempt, AttemptOwner.token_id)
        .select_from(Project)
        .outerjoin(Job, Job.name.in_({pulse.job for pulse in pulses}))
        .outerjoin(
            AttemptOwner, (AttemptOwner.job_id == Job.id) & AttemptOwner.attempt.in_(attempts)
        )
        .where(Project.id == container.project_id)
    ).all()
    if any(row.pulse_off for row in rows):
        raise PulseOffError("This project takes no pulses.")
    jobs = {row.name: row.id for row in rows if row.id is not None}
    return jobs, {(row.name, row.attempt): row.token_id for row in rows if row.token_id is not None}


def _append(
    container: Container,
    tx: UnitOfWork,
    pulses: Sequence[ArrivedPulse],
    jobs: Mapping[str, int],
) -> list[PulseReply]:
    if not pulses:
        return []
    bodies = [pulse.body.content() for pulse in pulses]
    connection_of(tx).execute(
        _APPEND,
        {
            "project": cast("int", tx.scope.project_id),
            "kind": InboxKind.PULSE.value,
            "job": [jobs[pulse.job] for pulse in pulses],
            "attempt": [pulse.attempt for pulse in pulses],
            "sha256": [pulse.body.sha256 for pulse in pulses],
            "body_bytes": [pulse.body.size for pulse in pulses],
            "body": bodies,
            "needs": WRITES,
        },
        prepare=True,
    )
    attempts = {(jobs[pulse.job], pulse.attempt) for pulse in pulses}
    due = {key for key in attempts if due_request(tx, container.settings, *key) is not None}
    hangs = {key: has_open_hang(tx, *key) for key in attempts}
    replies = []
    for pulse, content in zip(pulses, bodies, strict=True):
        key = jobs[pulse.job], pulse.attempt
        recording = hand_out(tx, container.settings, *key, content) if key in due else None
        replies.append(PulseReply(recording, hangs[key]))
    return replies


def pulse_is_off(tx: Reads) -> bool:
    """Return whether the project refuses pulses."""
    query = select(Project.pulse_off).where(Project.id == tx.scope.project_id)
    return tx.session.execute(query).scalar_one()


def switch_pulse(container: Container, *, on: bool) -> None:
    """Accept or refuse the pulses of a project's jobs from now on; stored pulses are kept."""
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
