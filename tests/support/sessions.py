"""Stored sessions of synthetic jobs, without HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Sizes, Trace
from app.analysis.trace.storage import pack
from app.jobs.models import Job
from app.platform.blobs import BlobPart, write_blob
from app.platform.database.task_runs import ANALYZE_SESSION, TaskRun
from app.sessions.models.tables import Session, StoredReport, StoredVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.analysis.report.session_verdict import SessionVerdict
    from app.platform.container import Container


@dataclass(frozen=True, slots=True)
class Stored:
    """A session and the task run of its analysis."""

    session: uuid.UUID
    run: uuid.UUID


@cache
def small_trace() -> Trace:
    """Return a session that is analyzed in milliseconds; worker (1, 1) is slow."""
    job = JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12)
    return synthesize(job, [SlowWorker((1, 1), 1.8)], seed=1).trace


@cache
def refused_trace() -> Trace:
    """Return a session without a complete step, of which no report can be made."""
    trace = synthesize(JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=2), seed=1).trace
    return trace.of_rows(np.flatnonzero(trace.step % 2 != trace.dp))


@cache
def large_trace() -> Trace:
    """Return a session whose analysis takes long enough to be interrupted."""
    job = JobModel(Sizes(dp=64, pp=8), microbatches=48, steps=12)
    return synthesize(job, [SlowWorker((1, 1), 1.8)], seed=1).trace


def store(container: Container, trace: Trace, *, job: str = "llm") -> Stored:
    """Store a session and its queued analysis, as if it had just been received."""
    sizes = trace.meta.sizes
    with container.uow() as tx:
        tx.session.execute(insert(Job).values(name=job).on_conflict_do_nothing())
        job_id = tx.session.execute(
            select(Job.id).where(Job.name == job).with_for_update()
        ).scalar_one()
        number = tx.session.execute(
            select(func.count()).select_from(Session).where(Session.job_id == job_id)
        ).scalar_one()
        session = Session(
            id=uuid.uuid4(),
            job_id=job_id,
            attempt=1,
            number=number + 1,
            content_sha256=hashlib.sha256(uuid.uuid4().bytes).digest(),
            state="queued",
            meta=metadata_document(trace.meta),
            dp=sizes.dp,
            pp=sizes.pp,
            tp=sizes.tp,
            cp=sizes.cp,
            vpp=sizes.vpp,
            world=sizes.world,
            trace_format="parquet",
            body_bytes=0,
            operations=len(trace),
            steps=len(np.unique(trace.step)),
            trace_blob=write_blob(tx, pack(trace)),
        )
        tx.session.add(session)
        tx.session.flush()
        return Stored(session.id, tx.enqueue(ANALYZE_SESSION, session.id))


@contextlib.contextmanager
def held_analyses(container: Container) -> Iterator[None]:
    """Block every analysis at the point where it reads its trace, while the context lasts.

    A lock on the table of blobs also blocks writing and reading of all other blobs.
    """
    with container.engine.begin() as connection:
        # PostgreSQL is configured to end transactions that are idle for a minute.
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        connection.execute(text("LOCK TABLE blob_part IN ACCESS EXCLUSIVE MODE"))
        yield


def session_row(container: Container, stored: Stored) -> Session:
    """Return the session's row in the database."""
    with container.uow() as tx:
        return tx.session.execute(select(Session).where(Session.id == stored.session)).scalar_one()


def stored_verdict(container: Container, stored: Stored) -> SessionVerdict | None:
    """Return the stored verdict on a session; None without one."""
    with container.reading() as tx:
        return tx.session.execute(
            select(StoredVerdict.document).where(StoredVerdict.session_id == stored.session)
        ).scalar()


def task_row(container: Container, stored: Stored) -> TaskRun:
    """Return the task run's row in the database."""
    with container.uow() as tx:
        return tx.session.execute(select(TaskRun).where(TaskRun.id == stored.run)).scalar_one()


def count_reports(container: Container) -> int:
    """Return the number of stored reports."""
    with container.uow() as tx:
        return tx.session.execute(select(func.count()).select_from(StoredReport)).scalar_one()


def count_blobs(container: Container) -> int:
    """Return the number of blobs, of all owners."""
    with container.uow() as tx:
        return tx.session.execute(select(func.count(func.distinct(BlobPart.blob_id)))).scalar_one()
