"""Sessions in the fleet's figures, stored without an analysis."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.session_verdict import Slowdown
from app.jobs.models import Job
from app.sessions.models.tables import Session, StoredVerdict
from benchmarks.support.stored import made_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.platform.container import Container

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def session(
    container: Container,
    slowdown: float | None = 1.0,
    *,
    ago: timedelta,
    job: str = "llm",
    gpus: int = 16,
    lost: float | None = None,
    state: str = "analyzed",
    lost_by_cause: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    attempt: int = 1,
    **measures: Any,  # noqa: ANN401 - of the paper
) -> uuid.UUID:
    """Store a session of some time ago; without a slowdown, no figure contains it."""
    with container.uow() as tx:
        owner = tx.session.execute(select(Job).where(Job.name == job)).scalar()
        if owner is None:
            owner = Job(name=job, created_at=tx.now - 400 * DAY)
            tx.session.add(owner)
            tx.session.flush()
        number = len(tx.session.execute(select(Session.id).where(Session.job_id == owner.id)).all())
        made = Session(
            id=uuid.uuid4(),
            job_id=owner.id,
            attempt=attempt,
            number=number + 1,
            content_sha256=uuid.uuid4().bytes,
            state=state,
            received_at=tx.now - ago,
            meta={},
            labels=None if labels is None else dict(labels),
            dp=4,
            pp=2,
            tp=2,
            cp=1,
            vpp=1,
            world=gpus,
            trace_format="parquet",
            body_bytes=1,
            operations=1,
            steps=12,
            trace_blob=uuid.uuid4(),
        )
        tx.session.add(made)
        tx.session.flush()
        if slowdown is not None:
            each_hour = gpus * (1 - 1 / slowdown) if lost is None else lost
            causes = lost_by_cause or ({"slow_worker": each_hour / 2} if each_hour else {})
            headline = Slowdown(gpus / (gpus - each_hour), None, 1.0, HeadlineKind.CAUSES)
            found = made_verdict(slowdown, headline=headline, lost_by_cause=causes)
            document = replace(found, measures=replace(found.measures, **measures))
            tx.session.add(StoredVerdict(session_id=made.id, document=document))
        return made.id
