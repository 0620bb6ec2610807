"""On which host and GPU the ranks of a job are, as its latest session says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from app.analysis.hangs.state import JobState, Place
from app.db.models.sessions import Job, Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.db.unit_of_work import Reads


def with_places(tx: Reads, job_id: int, job: JobState) -> JobState:
    """Return what is known of a job, with where its ranks are as its latest session says."""
    meta: Mapping[str, Any] | None = tx.session.execute(
        select(Session.meta)
        .where(Session.job_id == job_id)
        .order_by(Session.received_at.desc())
        .limit(1)
    ).scalar()
    if not meta or meta.get("world") != len(job.world):
        # Of another size: its ranks are others.
        return job
    hosts, gpus = meta.get("hosts", {}), meta.get("gpus", {})
    return replace(
        job,
        places={
            rank: Place(
                hosts.get(str(rank), job.place(rank).host),
                gpus.get(str(rank), job.place(rank).gpu),
            )
            for rank in job.world
        },
    )


def guessed_hosts(tx: Reads, job: str) -> frozenset[str]:
    """Return the hosts of a job whose names may be those of containers, by its latest session."""
    guessed: Mapping[str, str] | None = tx.session.execute(
        select(Session.meta["guessed_hosts"])
        .join(Job, Job.id == Session.job_id)
        .where(Job.name == job)
        .order_by(Session.received_at.desc())
        .limit(1)
    ).scalar()
    return frozenset(guessed or ())
