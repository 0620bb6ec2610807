"""Requests for plans: submission, cancellation, and the stored form of results."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import zstandard
from pydantic import TypeAdapter
from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.access.audit import Action, record
from app.analysis.json_text import to_json
from app.analysis.planning.document import SCHEMA, IterationTimes, PlanDocument, SimulatedIteration
from app.analysis.planning.job.document import JobDocument
from app.errors import ConflictError, NotFoundError, UnknownDocumentError
from app.plans.models import Plan
from app.plans.specs.spec import PlanRequest
from app.platform.container import Container
from app.platform.database.states import PlanState, TaskState
from app.platform.database.task_runs import PLAN_TEMPLATE, TaskRun
from app.platform.database.unit_of_work import UnitOfWork
from app.sessions.models.reports import ZSTD_LEVEL


@dataclass(frozen=True, slots=True)
class Submitted:
    """Plan of a submitted request; `created` is False if the plan already existed."""

    id: uuid.UUID
    state: PlanState
    created: bool


def submit_plan(container: Container, request: PlanRequest) -> Submitted:
    """Store a plan and its task, and return the plan after the commit.

    Equal requests share a plan, even if they are concurrent. A canceled or failed plan is planned
    again.
    """
    identity = {
        "spec": request.document,
        "method": request.method,
        "objective": request.objective,
        "time_limit_s": request.time_limit_s,
        "name": request.name,
    }
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    content = hashlib.sha256(canonical.encode()).digest()
    with container.uow() as tx:
        made = tx.session.execute(
            insert(Plan)
            .values(
                id=uuid.uuid4(),
                content_sha256=content,
                name=request.name,
                method=request.method,
                objective=request.objective,
                time_limit_s=request.time_limit_s,
                spec=request.document,
                layers=request.layers,
                gpus=request.spec.gpus,
                state=PlanState.QUEUED,
                created_at=tx.now,
                state_changed_at=tx.now,
            )
            .on_conflict_do_nothing()
            .returning(Plan.id)
        ).scalar()
        again = (
            made
            or tx.session.execute(
                update(Plan)
                .where(Plan.content_sha256 == content, Plan.state.in_(PlanState.REPEATABLE))
                .values(
                    state=PlanState.QUEUED,
                    state_changed_at=func.now(),
                    gap=None,
                    reason_code=None,
                    reason=None,
                    reason_detail=None,
                )
                .returning(Plan.id)
            ).scalar()
        )
        if again is None:
            existing = tx.session.execute(
                select(Plan.id, Plan.state).where(Plan.content_sha256 == content)
            ).one()
            return Submitted(existing.id, existing.state, created=False)
        tx.enqueue(PLAN_TEMPLATE, again)
    return Submitted(again, PlanState.QUEUED, created=True)


def cancel_plan(container: Container, plan_id: uuid.UUID) -> None:
    """Cancel a queued or running plan; canceling it again has no effect.

    The plan's task ends in the database, so that a worker cannot store the task's result.

    Raises
    ------
    NotFoundError
        If there is no such plan.
    ConflictError
        ``plan.ended``: the plan has already ended, but was not canceled.
    """
    with container.uow() as tx:
        ended = tx.session.execute(
            update(TaskRun)
            .where(
                TaskRun.kind == PLAN_TEMPLATE,
                TaskRun.subject_id == plan_id,
                TaskRun.state.in_(TaskState.OPEN),
            )
            .values(state=TaskState.DONE, claim_token=None, lease_until=None, finished_at=tx.now)
        )
        if cast("CursorResult[Any]", ended).rowcount:
            tx.session.execute(
                update(Plan)
                .where(Plan.id == plan_id)
                .values(state=PlanState.CANCELED, state_changed_at=func.now(), gap=None)
            )
            record(tx, container.principal, Action.CANCELED, f"plan {plan_id}")
            return
        state = tx.session.execute(select(Plan.state).where(Plan.id == plan_id)).scalar()
    if state is None:
        raise NotFoundError(f"There is no plan {plan_id}.")
    if state is not PlanState.CANCELED:
        raise ConflictError(f"The plan is {state}: there is nothing to cancel.", code="plan.ended")


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Stored result of a plan: its document and its executed iteration."""

    plan: PlanDocument
    timeline: SimulatedIteration


@dataclass(frozen=True, slots=True)
class JobResult:
    """Stored result of a whole job's plan: its document and the slowest pipeline's iteration."""

    plan: JobDocument
    timeline: SimulatedIteration


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """Outline of a plan's result, for lists."""

    iteration_time_ms: IterationTimes
    stages: int
    optimal: bool
    over: Mapping[str, float]
    """Relative excess of the other methods' executed times over the plan's."""

    @classmethod
    def of(cls, document: PlanDocument | JobDocument) -> Self:
        """Return a plan's outline; a whole job's stages are those of its longest pipeline."""
        if isinstance(document, JobDocument):
            times = document.iteration_time_ms
            return cls(
                iteration_time_ms=IterationTimes(times.t_std, None, times.simulated),
                stages=document.parallelism.pp,
                optimal=document.optimal,
                over={},
            )
        return cls(
            iteration_time_ms=document.iteration_time_ms,
            stages=len(document.stages),
            optimal=document.optimal,
            over={name: document.over(other) for name, other in document.others.items()},
        )


@dataclass(frozen=True, slots=True)
class _Version:
    """Schema version of a stored plan."""

    schema: str


@dataclass(frozen=True, slots=True)
class _VersionedResult:
    """Fields common to stored results of all versions."""

    plan: _Version


_VERSION: Final = TypeAdapter(_VersionedResult)
_RESULT: Final[TypeAdapter[PlanResult | JobResult]] = TypeAdapter(PlanResult | JobResult)


def pack_result(result: PlanResult | JobResult) -> bytes:
    """Return the stored form of a result: zstd-compressed JSON."""
    return zstandard.compress(to_json(result, compact=True).encode(), ZSTD_LEVEL)


def unpack_result(stored: bytes) -> PlanResult | JobResult:
    """Return the result in its stored form `data`, decompressed and validated.

    Raises
    ------
    UnknownDocumentError
        ``plan.unknown_version``: a later version of Paceline stored it.
    """
    text = zstandard.decompress(stored)
    schema = _VERSION.validate_json(text).plan.schema
    if schema != SCHEMA:
        raise UnknownDocumentError(
            f"The plan is {schema}; this version of Paceline reads {SCHEMA}. A later one stored "
            "it.",
            code="plan.unknown_version",
        )
    return _RESULT.validate_json(text)


def move_plan(tx: UnitOfWork, plan_id: uuid.UUID, **values: Any) -> None:  # noqa: ANN401 - columns differ in type
    """Update columns of a plan, including the time of its change of state."""
    tx.session.execute(
        update(Plan).where(Plan.id == plan_id).values(state_changed_at=func.now(), **values)
    )
