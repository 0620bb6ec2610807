"""Queries of plans: the list of plans, and one plan with its result."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter
from sqlalchemy import Double, Integer, func, select

from app.errors import Fault, NotFoundError
from app.plans.models import Plan
from app.plans.requests import JobResult, PlanOutline, PlanResult, unpack_result
from app.platform.blobs import read_blob
from app.platform.database.states import PlanState, TaskState
from app.platform.database.task_runs import PLAN_TEMPLATE, TaskRun
from app.platform.database.tenant_scope import COUNTS_EVERYWHERE
from app.platform.database.unit_of_work import Reads
from app.platform.validation import Name, Whole
from app.web.lists import Column, Listing


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """Row of a plan in lists; `gap` is the proven optimality gap so far, a fraction."""

    id: uuid.UUID
    name: str | None
    state: PlanState
    method: str
    objective: str
    time_limit_s: Annotated[float, Column(csv=None)]
    layers: int
    gpus: int
    created_at: datetime
    state_changed_at: Annotated[datetime, Column(csv=None)]
    gap: float | None
    reason_code: Annotated[str | None, Column(csv=None)]
    reason: Annotated[str | None, Column(csv=None)]
    outline: Annotated[
        PlanOutline | None,
        Column(csv=None),
        Field(serialization_alias="headline"),
    ]
    iteration_ms: Annotated[
        float | None,
        Column(
            Plan.outline["iteration_time_ms"]["simulated"].astext.cast(Double), csv="iteration_ms"
        ),
        Field(exclude=True),
    ] = None
    stages: Annotated[
        int | None,
        Column(Plan.outline["stages"].astext.cast(Integer), csv="stages"),
        Field(exclude=True),
    ] = None


PLANS: Final = Listing(PlanSummary, ties=(Plan.created_at.desc(), Plan.id.expression), model=Plan)


@dataclass(frozen=True, slots=True)
class RequestedDevice:
    """Device type of a specification with its numbers of nodes and GPUs."""

    type: Name
    nodes: Whole
    gpus_per_node: Whole


@dataclass(frozen=True, slots=True)
class RequestedPlan:
    """Summary of a stored specification of any version for pages."""

    devices: tuple[RequestedDevice, ...]
    microbatches: Whole | None = None
    global_batch: Whole | None = None
    allow_idle: bool = False
    replicate: bool = False


_REQUESTED: Final = TypeAdapter(RequestedPlan)


@dataclass(frozen=True, slots=True)
class PlanView:
    """Plan with its specification and its result."""

    row: PlanSummary
    spec: Mapping[str, Any]
    """The specification as submitted."""
    requested: RequestedPlan
    """Summary of the specification."""
    faults: tuple[Fault, ...]
    """Nearest changes with which a template exists, or faults of the specification."""
    ahead: int
    """Number of tasks that workers take first, while the plan is queued."""
    result: PlanResult | JobResult | None
    """Stored result of the search; None unless the state is ``planned``."""
    now: datetime
    """Database time of this view."""


def get_plan(tx: Reads, plan_id: uuid.UUID) -> PlanView:
    """Return one plan with its result.

    Raises
    ------
    NotFoundError
        If there is no such plan.
    """
    query = PLANS.query().add_columns(Plan.spec, Plan.reason_detail, Plan.result_blob)
    stored = tx.session.execute(query.where(Plan.id == plan_id)).mappings().one_or_none()
    if stored is None:
        raise NotFoundError(f"There is no plan {plan_id}.")
    [row] = PLANS.rows([stored])
    detail, blob = stored["reason_detail"] or {}, stored["result_blob"]
    return PlanView(
        row=row,
        spec=stored["spec"],
        requested=requested_plan(stored["spec"]),
        faults=tuple(Fault(**fault) for fault in detail.get("faults", ())),
        ahead=_queue_ahead(tx, plan_id) if row.state is PlanState.QUEUED else 0,
        result=None if blob is None else unpack_result(b"".join(read_blob(tx, blob))),
        now=tx.now,
    )


def requested_plan(spec: Mapping[str, Any]) -> RequestedPlan:
    """Return the summary of a stored specification."""
    return _REQUESTED.validate_python(spec)


def _queue_ahead(tx: Reads, plan_id: uuid.UUID) -> int:
    """Return how many queued tasks of all projects workers take before a plan's task."""
    mine = (
        select(TaskRun.created_at)
        .where(
            TaskRun.kind == PLAN_TEMPLATE,
            TaskRun.subject_id == plan_id,
            TaskRun.state == TaskState.QUEUED,
        )
        .scalar_subquery()
    )
    return tx.session.execute(
        select(func.count()).where(TaskRun.state == TaskState.QUEUED, TaskRun.created_at < mine),
        execution_options=COUNTS_EVERYWHERE,
    ).scalar_one()
