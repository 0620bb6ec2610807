"""A fleet of many jobs out of one analyzed session: rows that only lists and sums read."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from sqlalchemy import select, text

from app.access.models import DEFAULT_PROJECT_ID
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.session_verdict import Slowdown, SuspectedCause
from app.hosts.models import HostReading
from app.incidents.models.facts import Facts
from app.jobs.models import Job
from app.sessions.models.tables import Session, StoredVerdict
from benchmarks.support.alerts import evaluate_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.platform.container import Container

# Jobs that blame the same machine, one after the other.
JOBS_OF_A_HOST: Final = 4

JOBS: Final = """
INSERT INTO job (project_id, name) SELECT :project, :name || n FROM generate_series(1, :jobs) AS n
"""
# A copy of a session for each job and number, half an hour apart, slowed down by chance.
SESSIONS: Final = """
INSERT INTO session ({columns})
SELECT {values}
FROM session, job, generate_series(1, :sessions) AS copy
WHERE session.id = :template AND job.name LIKE :name || '%'
"""
# What the template is in the ledgers, for each of its copies.
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
# Each job has machines of its own.
HOSTS: Final = {
    "job_id": "session.job_id",
    "received_at": "session.received_at",
    "host": "was.host || '-of-' || session.job_id",
}


def copy_session(
    container: Container, template: uuid.UUID, name: str, jobs: int, sessions: int
) -> None:
    """Add jobs with sessions that are in the lists, the ledger of hosts and the fleet's figures.

    Parameters
    ----------
    container : Container
    template : UUID
        An analyzed session.
    name : str
        What the names of the jobs begin with; a number follows.
    jobs, sessions : int
        How many, and of each.
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
            [one.name for one in model.__table__.columns if one.computed is None],
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
    return ", ".join(names), ", ".join(changed.get(one, f"{table}.{one}") for one in names)


def let_fire(container: Container, name: str, jobs: int, first: int) -> None:
    """Let two more sessions of each of some jobs be slow.

    Parameters
    ----------
    container : Container
    name : str
        See `copy_session`.
    jobs : int
        How many; `JOBS_OF_A_HOST` at a time blame one machine.
    first : int
        The number of the first of the two sessions.
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
    # As autovacuum does within a minute: whether it was there already is not what is measured.
    with container.engine.begin() as connection:
        connection.execute(text("ANALYZE"))
