"""Sessions without an analysis: verdicts that rules evaluate, and copies for a fleet."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select, text

from app.access.models import DEFAULT_PROJECT_ID
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.document import JobSizes
from app.analysis.report.session_verdict import (
    KINDS,
    QUANTILES,
    PaperMeasures,
    SessionVerdict,
    Slowdown,
    SuspectedCause,
    VerdictCause,
    VerdictWorker,
)
from app.hosts.models import HostReading
from app.incidents.evaluate import look
from app.incidents.models.facts import Facts
from app.incidents.store import group_of_job
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import UnitOfWork
from app.sessions.models.tables import Session, StoredVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.platform.container import Container

SIZES = JobSizes(dp=2, pp=2, tp=1, cp=1, vpp=1, world=4)


def made_verdict(slowdown: float | None = 1.0, **changes: Any) -> SessionVerdict:  # noqa: ANN401 - fields
    """Return a verdict with a slowdown, by S and without causes; None: without numbers."""
    made = SessionVerdict(
        sentence="It has no verdict" if slowdown is None else f"{slowdown:.2f}× slower than ideal",
        level="none" if slowdown is None else "slow" if slowdown >= STRAGGLING else "ok",
        sizes=SIZES,
        discrepancy=0.01,
        headline=None,
        published=None,
        step_time_s=None,
        measured_s=None,
        causes=(),
        lost_by_cause={},
        worst=(VerdictWorker(0, 0, None, slowdown or 1.0),),
        worst_rank=0,
        worst_step=None,
        top_optype="forward-compute",
        fix=None,
        measures=PaperMeasures(None, None, None, None, {}, ()),
    )
    if slowdown is not None:
        made = replace(
            made,
            headline=Slowdown(slowdown, None, 1.0, HeadlineKind.CAUSES),
            published=Slowdown(slowdown, None, 1.0, HeadlineKind.PUBLISHED),
            step_time_s=10.0,
            measured_s=60.0,
            measures=PaperMeasures(
                0.1, 0.2, 0.3, None, dict.fromkeys(KINDS, 0.01), (1.0,) * QUANTILES
            ),
        )
    return replace(made, **changes)


def verdict_with(facts: Facts) -> SessionVerdict:
    """Return a verdict with these facts; the headline is S unless the facts have one."""
    published = None
    if facts.slowdown is not None:
        lost = facts.gpu_hours_lost or 0.0
        published = Slowdown(facts.slowdown, facts.slowdown_ci95, lost, HeadlineKind.PUBLISHED)
    return made_verdict(
        facts.slowdown,
        headline=facts.headline or published,
        published=published,
        discrepancy=facts.discrepancy or 0.0,
        step_time_s=facts.step_time_s,
        causes=tuple(
            VerdictCause(
                cause.cause,
                cause.where,
                cause.confidence,
                cause.contribution,
                cause.evidence,
                cause.gpus,
            )
            for cause in facts.causes
        ),
        worst=facts.worst or made_verdict().worst,
        worst_step=facts.worst_step,
        fix=facts.fix,
    )


def evaluate_session(container: Container, tx: UnitOfWork, job_id: int, found: Facts) -> None:
    """Store the rows that an analysis of a session writes for alerts, and evaluate the rules."""
    tx.session.add(
        Session(
            id=found.session,
            job_id=job_id,
            attempt=found.attempt,
            number=found.number,
            content_sha256=found.session.bytes,
            state="analyzed",
            meta={"labels": dict(found.labels)},
            labels=dict(found.labels),
            dp=2,
            pp=2,
            tp=1,
            cp=1,
            vpp=1,
            world=4,
            trace_format="ndjson",
            body_bytes=0,
            operations=0,
            steps=12,
            trace_blob=found.session,
            received_at=found.received_at,
        )
    )
    tx.session.flush()
    tx.session.add(StoredVerdict(session_id=found.session, document=verdict_with(found)))
    tx.session.flush()
    look(container, tx, group_of_job(tx, job_id))


# Number of consecutive jobs that blame the same host.
JOBS_OF_A_HOST: Final = 4

JOBS: Final = """
INSERT INTO job (project_id, name) SELECT :project, :name || n FROM generate_series(1, :jobs) AS n
"""
# A copy of a session for each job and number, half an hour apart, with random slowdowns.
SESSIONS: Final = """
INSERT INTO session ({columns})
SELECT {values}
FROM session, job, generate_series(1, :sessions) AS copy
WHERE session.id = :template AND job.name LIKE :name || '%'
"""
# Rows of the template in the ledgers, repeated for each of its copies.
READ: Final = """
INSERT INTO {table} ({columns})
SELECT {values}
FROM {table} AS was, session JOIN job ON job.id = session.job_id,
    LATERAL (SELECT to_jsonb(1 + random() * 0.5 + 0 * session.number) AS times) AS drawn
WHERE was.session_id = :template AND job.name LIKE :name || '%'
"""
COPIED: Final = {
    "id": "gen_random_uuid()",
    "job_id": "job.id",
    "number": "copy",
    "content_sha256": "NULL",
    "received_at": "now() - (:sessions - copy) * interval '30 minutes' - interval '1 minute'",
}
OF_SESSION: Final = {
    "session_id": "session.id",
}
SLOWED: Final = {
    "document": "jsonb_set(jsonb_set(was.document, '{headline,slowdown}', drawn.times),"
    " '{published,slowdown}', drawn.times)",
}
# Each job has its own hosts.
HOSTS: Final = {
    "job_id": "session.job_id",
    "received_at": "session.received_at",
    "host": "was.host || '-of-' || session.job_id",
}


def copy_session(
    container: Container, template: uuid.UUID, name: str, jobs: int, sessions: int
) -> None:
    """Add jobs with sessions to the lists, the ledger of hosts and the fleet's figures.

    Parameters
    ----------
    container : Container
    template : UUID
        An analyzed session.
    name : str
        Prefix of the jobs' names; a number follows.
    jobs, sessions : int
        Number of jobs, and of sessions of each.
    """
    parameters = {
        "project": DEFAULT_PROJECT_ID,
        "template": template,
        "name": name,
        "jobs": jobs,
        "sessions": sessions,
    }
    names = [column.name for column in Session.__table__.columns]
    columns, values = _columns(names, COPIED)
    statements = [JOBS, SESSIONS.format(columns=columns, values=values)]
    for model, changed in ((StoredVerdict, SLOWED), (HostReading, HOSTS)):
        columns, values = _columns(
            [part.name for part in model.__table__.columns if part.computed is None],
            OF_SESSION | changed,
            "was",
        )
        statements.append(READ.format(table=model.__tablename__, columns=columns, values=values))
    with container.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), parameters)
        connection.execute(text("ANALYZE"))


def _columns(
    names: list[str], changed: Mapping[str, str], table: str = "session"
) -> tuple[str, str]:
    return ", ".join(names), ", ".join(changed.get(name, f"{table}.{name}") for name in names)


def let_fire(container: Container, name: str, jobs: int, first: int) -> None:
    """Add two slow sessions to each of some jobs, so that their alerts fire.

    Parameters
    ----------
    container : Container
    name : str
        See `copy_session`.
    jobs : int
        Number of jobs; `JOBS_OF_A_HOST` at a time blame one host.
    first : int
        Number of the first of the two sessions.
    """
    for number in range(1, jobs + 1):
        job = f"{name}{number}"
        host = f"node-{number // JOBS_OF_A_HOST}"
        for more in range(2):
            with container.uow() as tx:
                job_id = tx.session.execute(select(Job.id).where(Job.name == job)).scalar_one()
                facts = Facts(
                    session=uuid.uuid4(),
                    job=job,
                    attempt=1,
                    number=first + more,
                    received_at=tx.now,
                    slowdown=1.4,
                    causes=(
                        SuspectedCause("slow_worker", (host,), confidence=0.95, contribution=0.8),
                    ),
                    headline=Slowdown(1.4, (1.38, 1.42), 3.2, HeadlineKind.CAUSES),
                )
                evaluate_session(container, tx, job_id, facts)
    # Run at once, as autovacuum does within a minute, so that its timing does not affect the
    # result.
    with container.engine.begin() as connection:
        connection.execute(text("ANALYZE"))
