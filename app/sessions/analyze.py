"""Analyze a stored session and store its report.

All results (report, verdict, state, end of the task run, notification) are written in one
transaction at the end; running it twice gives the same result.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import func, select, type_coerce

from app.analysis.diagnosis.causes.kind import Plan
from app.analysis.diagnosis.causes.registry import KINDS, cause_of
from app.analysis.diagnosis.earlier_sessions import EarlierSession
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.replay.layout.dense import MAX_NAMED_FAULTS
from app.analysis.report.build import Analysis, analyze
from app.analysis.report.coverage import Chunks
from app.analysis.report.document import Report
from app.analysis.report.session_verdict import verdict_of
from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.model import Trace
from app.analysis.trace.rank_metadata import MovedGpu
from app.analysis.trace.storage import read_stored
from app.errors import Fault, NotFoundError, UnanalyzableError
from app.fixes.applied import measure_fixes
from app.hosts.places import moved_gpus, places_of, with_known_hosts, with_moved
from app.hosts.readings import write_readings
from app.incidents.evaluate import evaluate_session
from app.installation.models import count_duration
from app.jobs.models import Job
from app.platform.blobs import open_blob
from app.platform.container import Claim, Container
from app.platform.database.states import SessionState
from app.platform.database.task_runs import REQUEST_RECORDING
from app.platform.tasks.runs import finish
from app.platform.telemetry import span
from app.sessions.chunks.intake import move_session
from app.sessions.chunks.merge import merge_session
from app.sessions.models.reports import delete_report, replace_report, stage_report
from app.sessions.models.tables import COMPUTING, Intake, Session, StoredVerdict

# Reason code for a missing verdict: the replayed step time deviates too far from the recorded step
# time (What-if paper, section 2.4).
LOW_FIDELITY: Final = "report.low_fidelity"
# Number of the job's latest sessions that the analysis compares a session with.
EARLIER_SESSIONS: Final = 16


@dataclass(frozen=True, slots=True)
class _Loaded:
    trace: Trace
    job: str
    metadata: Mapping[str, Any]
    moved: tuple[MovedGpu, ...]
    earlier: tuple[EarlierSession, ...]  # the latest one first
    chunks: Chunks | None
    """Coverage of merged chunks; None if the session was received in one body."""


def analyze_session(container: Container, claim: Claim) -> None:
    """Read the trace of a claimed session, analyze it and store the report.

    Chunks are merged first; the merge persists even if the analysis fails.

    Raises
    ------
    LostClaimError
        Another worker has taken the task over; nothing is stored.
    NotFoundError
        The session was deleted meanwhile.
    """
    begun_s = time.monotonic()
    try:
        with span("read trace"):
            merge_session(container, claim.subject_id)
            loaded = _load(container, claim.subject_id)
        with span("analyze"):
            analysis = analyze(loaded.trace, earlier=loaded.earlier)
    except UnanalyzableError as error:
        _discard(container, claim, error)
    else:
        _store(container, claim, analysis, loaded, begun_s)


def _load(container: Container, session_id: uuid.UUID) -> _Loaded:
    with container.uow() as tx:
        row = tx.session.execute(
            select(
                *(Session.meta, Session.trace_blob, Session.received_at, Session.job_id),
                *(Job.name, Intake.merged),
            )
            .join(Job, Job.id == Session.job_id)
            .outerjoin(Intake, Intake.session_id == Session.id)
            .where(Session.id == session_id)
        ).one_or_none()
        if row is None or row.trace_blob is None:
            raise NotFoundError(f"session {session_id} is gone")
        parts = open_blob(tx, row.trace_blob)
        meta = parse_metadata(row.meta)
        places = places_of(tx, meta.uuids.values())
        computing = type_coerce(StoredVerdict.document["computing"], COMPUTING)
        earlier = tx.session.execute(
            select(Session.number, computing)
            .join(StoredVerdict, StoredVerdict.session_id == Session.id)
            .where(
                Session.job_id == row.job_id,
                Session.received_at < row.received_at,
                func.jsonb_typeof(StoredVerdict.document["computing"]) == "object",
            )
            .order_by(Session.received_at.desc())
            .limit(EARLIER_SESSIONS)
        ).all()
    meta = with_known_hosts(meta, places)
    return _Loaded(
        read_stored(parts, meta),
        row.name,
        row.meta,
        moved_gpus(meta, places, row.received_at),
        tuple(EarlierSession(number, computed) for number, computed in earlier),
        row.merged,
    )


def _discard(container: Container, claim: Claim, error: UnanalyzableError) -> None:
    with container.uow() as tx:
        finish(tx, claim)
        delete_report(tx, claim.subject_id)
        faults = list(error.faults)
        # A missing verdict may be due to producers whose recording ended early.
        intake = tx.session.get(Intake, claim.subject_id)
        if intake is not None and intake.merged is not None:
            faults += [
                Fault("ended_early", f"The recording ended early: {early.words}")
                for early in intake.merged.ended_early[:MAX_NAMED_FAULTS]
            ]
        move_session(
            tx,
            claim.subject_id,
            state=SessionState.DISCARDED,
            reason_code=error.stable_code,
            reason=error.message,
            reason_detail={"faults": [fault.as_dict() for fault in faults]},
        )
        write_readings(tx, claim.subject_id, None)
        evaluate_session(container, tx, claim.subject_id)


def _store(
    container: Container, claim: Claim, analysis: Analysis, loaded: _Loaded, begun_s: float
) -> None:
    report = replace(
        with_moved(analysis.report, loaded.moved),
        job=loaded.job,
        session=str(claim.subject_id),
        coverage=replace(analysis.report.coverage, chunks=loaded.chunks),
    )
    fidelity = report.fidelity
    staged = stage_report(container.stage, report, analysis.heatmaps)
    with span("store report"), container.uow() as tx:
        finish(tx, claim)
        replace_report(tx, claim.subject_id, staged, verdict_of(report, loaded.metadata))
        move_session(
            tx,
            claim.subject_id,
            state=SessionState.ANALYZED if report.has_verdict else SessionState.NO_VERDICT,
            reason_code=None if report.has_verdict else LOW_FIDELITY,
            reason=fidelity.reason,
            reason_detail=None,
            report_removed_at=None,
        )
        write_readings(tx, claim.subject_id, report)
        measure_fixes(tx, claim.subject_id, report)
        evaluate_session(container, tx, claim.subject_id)
        if _lacks_rank_groups(report):
            tx.enqueue(REQUEST_RECORDING, claim.subject_id)
        count_duration(tx, time.monotonic() - begun_s)


def _lacks_rank_groups(report: Report) -> bool:
    """Return whether collectives of a group's ranks may show why a job is slow, and are missing.

    A slow worker is a whole group of ranks: one of them may be slow, or wait for its memory.
    """
    if report.verdict.level != "slow":
        return False
    named = {cause.cause for cause in report.causes}
    unjudged = {item.cause for item in report.diagnosis.cannot_judge}
    return not named.isdisjoint({cause_of(Plan.REPLACE_WORKERS), UNKNOWN}) and any(
        kind.of_rank_groups for name, kind in KINDS.items() if name in unjudged
    )
