"""Search for jobs, sessions, hosts and incidents of a project by words."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal
from urllib.parse import quote

from sqlalchemy import ColumnElement, func, or_, select

from app.hosts.costs import Span, ledger
from app.incidents.message import cause_name
from app.incidents.reads import MAX_CHARACTERS, MAX_WORDS, IncidentFilter, list_incidents
from app.jobs.models import Job
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import Session
from app.web.links import host_url

Kind = Literal["job", "session", "host", "incident"]

# Largest number of results of each kind.
EACH: Final = 6
# Period whose sessions are searched for hosts, as the list of hosts shows by default.
HOSTS_OF: Final = timedelta(days=30)
# Largest number of digits of a session's number.
MAX_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class Found:
    """A search result; `path` is the path of its page within the project."""

    kind: Kind
    name: str
    note: str  # distinguishes results of the same name
    path: str


def find(tx: Reads, text: str) -> list[Found]:
    """Return the results that match all words of a text, incidents first.

    Parameters
    ----------
    text : str
        Words in any order: parts of names; numbers of sessions; ids.
    """
    words = text[:MAX_CHARACTERS].split()[:MAX_WORDS]
    if not words:
        return []
    return [*_incidents(tx, words), *_jobs(tx, words), *_hosts(tx, words), *_sessions(tx, words)]


def _all_in(column: ColumnElement[str], words: Sequence[str]) -> list[ColumnElement[bool]]:
    return [column.icontains(word, autoescape=True) for word in words]


def _incidents(tx: Reads, words: Sequence[str]) -> list[Found]:
    rows = list_incidents(tx, EACH, filtered=IncidentFilter(words=" ".join(words)), sort="state")
    results = []
    for row in rows:
        incident = row.incident
        place = f": {incident.where}" if incident.where else ""
        name = f"{row.job}: {cause_name(incident.cause)}{place}"
        note = f"{incident.state}, {incident.severity}"
        results.append(Found("incident", name, note, f"/incidents/{incident.id}"))
    return results


def _jobs(tx: Reads, words: Sequence[str]) -> list[Found]:
    name = Job.name.expression
    rows = tx.session.execute(
        select(Job.name).where(*_all_in(name, words)).order_by(func.length(name), name).limit(EACH)
    ).scalars()
    return [Found("job", job, "", f"/jobs/{quote(job, safe='')}") for job in rows]


def _hosts(tx: Reads, words: Sequence[str]) -> list[Found]:
    """Return the hosts of these names, most expensive first, as the list of hosts has them."""
    hosts = ledger(tx, Span(since=tx.now - HOSTS_OF), "").c
    rows = tx.session.execute(
        select(hosts.host, hosts.slow_sessions, hosts.sessions)
        .where(*_all_in(hosts.host, words))
        .order_by(hosts.cost_gpu_hours.desc(), hosts.slowdown_worst.desc(), hosts.host)
        .limit(EACH)
    )
    return [
        Found("host", host, f"slow sessions: {slow} of {sessions}", host_url(host))
        for host, slow, sessions in rows
    ]


def _sessions(tx: Reads, words: Sequence[str]) -> list[Found]:
    numbers = [int(word) for word in words if _is_number(word)]
    ids = [id_ for word in words if (id_ := _id_of(word)) is not None]
    if not numbers and not ids:
        # Without a number the words find jobs; a job's page lists its sessions.
        return []
    rest = [
        word
        for word in words
        if not _is_number(word) and _id_of(word) is None and word.lower() != "session"
    ]
    rows = tx.session.execute(
        select(Session.id, Session.number, Session.attempt, Job.name)
        .join(Job, Job.id == Session.job_id)
        .where(
            or_(Session.number.in_(numbers), Session.id.in_(ids)),
            *_all_in(Job.name.expression, rest),
        )
        .order_by(Session.received_at.desc(), Session.id)
        .limit(EACH)
    ).all()
    return [
        Found(
            "session",
            f"{row.name}, session {row.number}",
            f"attempt {row.attempt}",
            f"/sessions/{row.id}",
        )
        for row in rows
    ]


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= MAX_DIGITS


def _id_of(word: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(word)
    except ValueError:
        return None
