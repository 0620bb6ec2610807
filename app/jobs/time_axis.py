"""A job over time: its sessions, marks (notes, incidents and others), and lasting changes."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Select, case, delete, func, select

from app.access.audit import Action, record
from app.analysis.budget.split import Losses, Shares
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.report.change_points import lasting_changes
from app.errors import ConflictError, NotFoundError
from app.fixes.models import AppliedFix
from app.incidents.message import cause_name
from app.incidents.models.tables import AlertGroup, AlertIncident
from app.jobs.models import Attempt, Job, JobNote
from app.platform.container import Container
from app.platform.database.columns import as_json
from app.platform.database.states import NoteKind, SessionState
from app.platform.database.unit_of_work import Reads
from app.quotas.usage import NOTES, count_made
from app.sessions.models.tables import OF_SESSION, Session, StoredVerdict
from app.sessions.receive import no_job
from app.web.lists import Column

# Largest number of notes of a job: several years with a deployment every few hours.
MOST_NOTES: Final = 10_000
# Number of the newest notes that a page or an answer lists.
MOST_LISTED: Final = 200
# Tolerance for times in the future, since clocks differ.
EARLY: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Note:
    """An event of a job that a person or a program noted: a deployment, a change, a remark."""

    id: int
    at: datetime
    """Time of the event."""
    kind: NoteKind
    words: str
    author: str
    noted_at: datetime
    """Time at which the note was written."""


def write_note(  # noqa: PLR0913 - the fields of a note
    container: Container,
    job: str,
    *,
    words: str,
    kind: NoteKind = NoteKind.NOTE,
    at: datetime | None = None,
    by: str | None = None,
) -> Note:
    """Store a note on a job.

    Parameters
    ----------
    at : datetime, optional
        Time of the event; default: now.
    by : str, optional
        Name of the author, if the author is not signed in.

    Raises
    ------
    NotFoundError
        There is no such job.
    ConflictError
        ``note.in_future``, ``note.too_many``.
    QuotaExceededError
        ``quota.notes_per_hour``.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        # Locked, so that two requests at once do not exceed the limit.
        job_id = tx.session.execute(
            select(Job.id).where(Job.name == job).with_for_update()
        ).scalar()
        if job_id is None:
            raise no_job(job)
        happened_at = tx.now if at is None else at
        if happened_at > tx.now + EARLY:
            raise ConflictError(
                "The time of a note must not be in the future.", code="note.in_future"
            )
        there = tx.session.execute(
            select(func.count()).select_from(JobNote).where(JobNote.job_id == job_id)
        ).scalar_one()
        if there >= MOST_NOTES:
            raise ConflictError(
                f"A job has at most {MOST_NOTES:,} notes: delete old ones first.",
                code="note.too_many",
            )
        row = JobNote(
            job_id=job_id,
            at=happened_at,
            kind=kind,
            words=words,
            author=who.name,
            noted_at=tx.now,
        )
        tx.session.add(row)
        count_made(tx, container.settings, container.project_id, NOTES)
        tx.session.flush()
        record(tx, who, Action.NOTED, f"job {job}", detail=f"{kind}: {words}")
        return Note(row.id, row.at, row.kind, row.words, row.author, row.noted_at)


def delete_note(container: Container, job: str, note_id: int, by: str | None = None) -> None:
    """Delete a note; the audit log keeps its text.

    Raises
    ------
    NotFoundError
        The job has no such note.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        of_job = select(Job.id).where(Job.name == job).scalar_subquery()
        words = tx.session.execute(
            delete(JobNote)
            .where(JobNote.id == note_id, JobNote.job_id == of_job)
            .returning(JobNote.words)
        ).scalar()
        if words is None:
            raise NotFoundError(f"Job {job} has no note {note_id}.")
        record(tx, who, Action.DELETED, f"a note on job {job}", detail=words)


def notes_of(
    tx: Reads,
    job: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = MOST_LISTED,
) -> list[Note]:
    """Return the notes of a job, sorted by the time of the event, newest first.

    Parameters
    ----------
    since, until : datetime, optional
        Bounds of the time at which the noted events happened.
    """
    query = notes(since, until).where(Job.name == job)
    return [Note(*row) for row in tx.session.execute(query.limit(limit))]


def notes(since: datetime | None, until: datetime | None) -> Select[*tuple[Any, ...]]:
    """Return the query of the notes of a period, newest first; correlated with a row of `Job`."""
    query = (
        select(
            JobNote.id,
            JobNote.at,
            JobNote.kind,
            JobNote.words,
            JobNote.author,
            JobNote.noted_at,
        )
        .where(JobNote.job_id == Job.id)
        .order_by(JobNote.at.desc(), JobNote.id.desc())
    )
    if since is not None:
        query = query.where(JobNote.at >= since)
    return query if until is None else query.where(JobNote.at <= until)


def known_job(tx: Reads, job: str) -> None:
    """Check that the project has a job of this name.

    Raises
    ------
    NotFoundError
    """
    if tx.session.execute(select(Job.id).where(Job.name == job)).first() is None:
        raise no_job(job)


# Number of the latest sessions of a period that an answer contains.
MOST_POINTS: Final = 1000
# Number of sessions that can be distinguished in a figure as wide as the page.
DRAWN_POINTS: Final = 500
# Number of the latest sessions in which changes are searched, which takes some 20 ms.
LOOKED_AT: Final = 200
SECONDS_AN_HOUR: Final = 3600


class Measure(StrEnum):
    """Quantity that a lasting change concerns."""

    SLOWDOWN = "slowdown"
    STEP_TIME = "step_time"


class MarkKind(StrEnum):
    """Kind of a mark on the time axis."""

    ATTEMPT = "attempt"
    INCIDENT = "incident"
    FIX = "fix"
    NOTE = "note"
    DEPLOYMENT = "deployment"
    CONFIG_CHANGE = "config_change"
    CHECKPOINT = "checkpoint"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class TimePoint:
    """A session on the time axis; unknown values are null.

    `slowdown` is the headline with its 95 % interval, `published` is S, and `step_time_s` the
    median of the recorded steps. `tokens_per_s` needs `global_batch_size` and `seq_length` in the
    metadata; `cause` is the leading cause; `shares` are the parts of the time, `losses` its lost
    parts by kind, and `gpu_hours_lost_per_hour` is the cost of the largest loss.
    """

    id: uuid.UUID
    number: int
    attempt: int
    received_at: datetime
    slowdown: float | None
    low: float | None
    high: float | None
    published: float | None
    step_time_s: float | None
    gpu_hours_lost_per_hour: float | None
    tokens_per_s: float | None
    cause: str | None
    shares: Shares | None = None
    losses: Losses | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark on the time axis; `path` is the path of its page, `note` the id if it is a note."""

    at: datetime
    kind: MarkKind
    words: Annotated[str, Column(csv="what")]
    path: str | None = None
    until: datetime | None = None
    author: Annotated[str | None, Column(csv="by")] = None
    note: int | None = None


@dataclass(frozen=True, slots=True)
class JobChange:
    """A lasting change of the slowdown or the step time in seconds, with the medians on both sides.

    The change is placed at its first session. `cause` leads most sessions on the change's slow side
    and not on the other side; `mark` is the last mark between the sessions around the change.
    """

    measure: Measure
    at: datetime
    session: uuid.UUID
    number: int
    before: float
    after: float
    p: float
    cause: str | None
    mark: str | None

    @property
    def slower(self) -> bool:
        """Return whether the change is for the worse."""
        return self.after > self.before


@dataclass(frozen=True, slots=True)
class JobAxis:
    """A job over a period: its latest 1,000 sessions, oldest first; other sequences newest first.

    Changes are searched in the latest 200 sessions.
    """

    points: Sequence[TimePoint]
    marks: Sequence[Mark]
    changes: Sequence[JobChange]


def job_axis(
    tx: Reads,
    job: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    most: int = MOST_POINTS,
) -> JobAxis:
    """Return a job over a period, with at most its latest `most` sessions."""
    points, layouts = _points(tx, job, since, until, most)
    marks = _marks(tx, job, since, until)
    measured = [
        (layout, point)
        for layout, point in zip(layouts, points, strict=True)
        if point.step_time_s is not None
    ]
    changes = [
        *_changes(Measure.SLOWDOWN, points, marks),
        # Step times are compared only between sessions of the same sizes and work per step.
        *(
            change
            for _, run in groupby(measured, key=itemgetter(0))
            for change in _changes(Measure.STEP_TIME, [point for _, point in run], marks)
        ),
    ]
    changes.sort(key=lambda change: (change.at, change.measure), reverse=True)
    return JobAxis(points, marks, changes)


def _points(
    tx: Reads, job: str, since: datetime | None, until: datetime | None, most: int
) -> tuple[list[TimePoint], list[str]]:
    """Return the sessions of a period, each with a key of its sizes and its work per step."""
    analyzed = Session.state == SessionState.ANALYZED
    reported = Session.state.in_(SessionState.REPORTED)
    verdict = StoredVerdict
    query = (
        select(
            Session.id,
            Session.number,
            Session.attempt,
            Session.received_at,
            case((analyzed, verdict.slowdown)),
            case((analyzed, verdict.low)),
            case((analyzed, verdict.high)),
            case((analyzed, verdict.published)),
            verdict.step_time_s,
            Session.world,
            Session.meta["global_batch_size"].as_string(),
            Session.meta["seq_length"].as_string(),
            case((reported, verdict.lost)),
            case((verdict.waste.is_not(None), verdict.cause)),
            case((reported, verdict.shares)),
            case((reported, verdict.lost_to_stragglers)),
            case((reported, verdict.lost_between)),
            case((reported, verdict.lost_together)),
            func.concat_ws(" ", Session.dp, Session.pp, Session.tp, Session.cp, Session.vpp),
        )
        .join(Job, Job.id == Session.job_id)
        .outerjoin(*OF_SESSION)
        .where(Job.name == job)
        .order_by(Session.received_at.desc(), Session.id)
        .limit(most)
    )
    if since is not None:
        query = query.where(Session.received_at >= since)
    if until is not None:
        query = query.where(Session.received_at <= until)
    points, layouts = [], []
    for row in map(tuple, tx.session.execute(query)):
        (key, number, attempt, at, slowdown, low, high, published) = row[:8]
        (step_s, world, batch, length, lost, cause, shares, *losses, layout) = row[8:]
        tokens = _number(batch) * _number(length)
        points.append(
            TimePoint(
                id=key,
                number=number,
                attempt=attempt,
                received_at=at,
                slowdown=slowdown,
                low=low,
                high=high,
                published=published,
                step_time_s=step_s,
                gpu_hours_lost_per_hour=None if lost is None else world * lost,
                tokens_per_s=tokens / step_s if tokens and step_s else None,
                cause=None if cause == UNKNOWN else cause,
                shares=shares,
                losses=None if shares is None else Losses(*losses),
            )
        )
        layouts.append(f"{layout} {batch} {length}")
    return points[::-1], layouts[::-1]


def _number(text: str | None) -> float:
    """Return a number from the metadata, whose values may be any text; 0 if it is not a number."""
    return float(text) if text and text.isascii() and text.isdecimal() and len(text) < 16 else 0.0  # noqa: PLR2004 - exact in a float


@dataclass(frozen=True, slots=True)
class _Attempt:
    at: datetime
    number: int
    run: str
    restart: int


@dataclass(frozen=True, slots=True)
class _Incident:
    at: datetime
    id: uuid.UUID
    until: datetime | None
    cause: str | None


@dataclass(frozen=True, slots=True)
class _Fix:
    at: datetime
    title: str
    session: uuid.UUID
    measured: uuid.UUID | None
    by: str | None


_ATTEMPTS: Final = TypeAdapter(tuple[_Attempt, ...])
_INCIDENTS: Final = TypeAdapter(tuple[_Incident, ...])
_FIXES: Final = TypeAdapter(tuple[_Fix, ...])
_WRITTEN: Final = TypeAdapter(tuple[Note, ...])


def _marks(tx: Reads, job: str, since: datetime | None, until: datetime | None) -> list[Mark]:
    attempts, incidents, fixes, written = _happened(tx, job, since, until)
    marks = [
        Mark(
            attempt.at,
            MarkKind.ATTEMPT,
            f"Attempt {attempt.number}: run {attempt.run}, restart {attempt.restart}",
        )
        for attempt in attempts
    ]
    marks += [
        Mark(
            incident.at,
            MarkKind.INCIDENT,
            cause_name(incident.cause or UNKNOWN),
            f"/incidents/{incident.id}",
            incident.until,
        )
        for incident in incidents
    ]
    marks += [
        Mark(
            fix.at,
            MarkKind.FIX,
            fix.title,
            f"/sessions/{fix.session}"
            if fix.measured is None
            else f"/compare?a={fix.session}&b={fix.measured}",
            author=fix.by,
        )
        for fix in fixes
    ]
    marks += [
        Mark(note.at, _NOTES[note.kind], note.words, author=note.author, note=note.id)
        for note in written
    ]
    in_time = [
        mark
        for mark in marks
        if (since is None or mark.at >= since) and (until is None or mark.at <= until)
    ]
    return sorted(in_time, key=lambda mark: mark.at, reverse=True)[:MOST_LISTED]


_NOTES: Final = {kind: MarkKind(kind.value) for kind in NoteKind}


def _happened(
    tx: Reads, job: str, since: datetime | None, until: datetime | None
) -> tuple[tuple[_Attempt, ...], tuple[_Incident, ...], tuple[_Fix, ...], tuple[Note, ...]]:
    """Return the latest attempts, incidents, fixes and notes of a job, read with one statement.

    Notes are limited to the period; attempts, incidents and fixes are the latest of any time.
    """
    attempts = (
        select(
            Attempt.announced_at.label("at"),
            Attempt.number,
            Attempt.run_id.label("run"),
            Attempt.restart,
        )
        .where(Attempt.job_id == Job.id)
        .order_by(Attempt.announced_at.desc())
    )
    incidents = (
        select(
            AlertIncident.fired_at.label("at"),
            AlertIncident.id,
            AlertIncident.resolved_at.label("until"),
            AlertIncident.document["cause"].as_string().label("cause"),
        )
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .where(AlertGroup.job_id == Job.id, AlertIncident.fired_at.is_not(None))
        .order_by(AlertIncident.fired_at.desc())
    )
    fixes = (
        select(
            AppliedFix.applied_at.label("at"),
            AppliedFix.title,
            AppliedFix.session_id.label("session"),
            AppliedFix.measured_by.label("measured"),
            AppliedFix.applied_by.label("by"),
        )
        .where(AppliedFix.job_id == Job.id)
        .order_by(AppliedFix.applied_at.desc())
    )
    listed = (
        as_json(query.limit(MOST_LISTED).correlate(Job))
        for query in (attempts, incidents, fixes, notes(since, until))
    )
    row = tx.session.execute(select(*listed).select_from(Job).where(Job.name == job)).one_or_none()
    attempted, fired, applied, noted = row or ((), (), (), ())
    return (
        _ATTEMPTS.validate_python(attempted or ()),
        _INCIDENTS.validate_python(fired or ()),
        _FIXES.validate_python(applied or ()),
        _WRITTEN.validate_python(noted or ()),
    )


def _changes(
    measure: Measure, points: Sequence[TimePoint], marks: Sequence[Mark]
) -> list[JobChange]:
    measured = [
        (point, value)
        for point in points
        if (value := point.slowdown if measure is Measure.SLOWDOWN else point.step_time_s)
    ][-LOOKED_AT:]
    changes = lasting_changes([value for _, value in measured])
    edges = [0, *(change.position for change in changes), len(measured)]
    job_changes = []
    for index, change in enumerate(changes):
        before = [point for point, _ in measured[edges[index] : change.position]]
        after = [point for point, _ in measured[change.position : edges[index + 2]]]
        cause = _leading(after) if change.after > change.before else _leading(before)
        other = _leading(before) if change.after > change.before else _leading(after)
        between = (
            mark
            for mark in marks
            if mark.kind is not MarkKind.INCIDENT
            and before[-1].received_at <= mark.at <= after[0].received_at
        )
        mark = next(between, None)
        job_changes.append(
            JobChange(
                measure=measure,
                at=after[0].received_at,
                session=after[0].id,
                number=after[0].number,
                before=change.before,
                after=change.after,
                p=change.p,
                cause=None if cause == other else cause,
                mark=None if mark is None else mark.words,
            )
        )
    return job_changes


def _leading(points: Sequence[TimePoint]) -> str | None:
    """Return the leading cause of more than half of the sessions; None if there is none."""
    counted = Counter(point.cause for point in points)
    [(cause, times)] = counted.most_common(1)
    return cause if 2 * times > len(points) else None
