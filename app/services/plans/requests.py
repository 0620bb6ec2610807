"""Plans that are asked for: stored with the work that they cause, canceled."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.db.models.plans import Plan
from app.db.models.tasks import PLAN_TEMPLATE, TaskRun
from app.db.states import PlanState, TaskState
from app.errors import ConflictError, NotFoundError
from app.inputs.plans.request import PlanRequest
from app.services.access.audit import Action, record

if TYPE_CHECKING:
    from app.services.container import Container


@dataclass(frozen=True, slots=True)
class Submitted:
    """The plan that a request became, or already was."""

    id: uuid.UUID
    state: PlanState
    created: bool


def submit_plan(container: Container, request: PlanRequest) -> Submitted:
    """Store a plan with the work that it causes.

    The same question is the same plan, also when it is asked twice at the same time. One that was
    canceled or that failed is planned again.

    Returns
    -------
    Submitted
        Only after the commit: what it says survives a crash.
    """
    content = _content_sha256(request)
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
            known = tx.session.execute(
                select(Plan.id, Plan.state).where(Plan.content_sha256 == content)
            ).one()
            return Submitted(known.id, known.state, created=False)
        tx.enqueue(PLAN_TEMPLATE, again)
    return Submitted(again, PlanState.QUEUED, created=True)


def cancel_plan(container: Container, plan_id: uuid.UUID) -> None:
    """End a plan that waits or is being planned; to cancel it twice is harmless.

    The work ends here, in the database: what a worker still computes cannot be stored.

    Raises
    ------
    NotFoundError
        If there is no such plan.
    ConflictError
        If it has ended otherwise: ``plan.ended``.
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


def _content_sha256(request: PlanRequest) -> bytes:
    identity = {
        "spec": request.document,
        "method": request.method,
        "objective": request.objective,
        "time_limit_s": request.time_limit_s,
        "name": request.name,
    }
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).digest()
