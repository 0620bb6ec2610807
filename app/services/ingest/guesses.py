"""Which jobs guess the names of their nodes: they run in containers that are not told them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import select, true

from app.db.models.sessions import Job, Session

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class GuessingJob:
    """A job whose latest session guesses hosts; `example` is one of them."""

    job: str
    guessed: int
    hosts: int
    example: str
    last_at: datetime


def guessing_jobs(tx: Reads, since: datetime) -> list[GuessingJob]:
    """Return the jobs whose latest session since then guesses, those that guess most first."""
    # The metadata of large jobs are long: of each job one is read.
    latest = (
        select(
            Session.meta["guessed_hosts"].label("guessed"),
            Session.meta["hosts"].label("hosts"),
            Session.received_at,
        )
        .where(Session.job_id == Job.id, Session.received_at >= since)
        .order_by(Session.received_at.desc())
        .limit(1)
        .lateral("latest")
    )
    rows = tx.session.execute(
        select(Job.name, latest.c.guessed, latest.c.hosts, latest.c.received_at)
        .join(latest, true())
        .where(latest.c.guessed.is_not(None))
    )
    found = [
        GuessingJob(job, len(guessed), len(set((hosts or {}).values())), min(guessed), last_at)
        for job, guessed, hosts, last_at in rows
        if guessed
    ]
    return sorted(found, key=lambda one: (-one.guessed, one.job))
