"""The read side of plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import func, select

from app.db.blobs import read_blob
from app.db.models.plans import Plan
from app.db.models.tasks import PLAN_TEMPLATE, TaskRun
from app.db.scope import COUNTS_EVERYWHERE
from app.db.states import PlanState, TaskState
from app.errors import Fault, NotFoundError
from app.inputs.values import Name, Whole
from app.services.plans.stored import OUTLINE, PlanOutline, PlanResult, unpack_result

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping
    from datetime import datetime

    from sqlalchemy import Row

    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan as lists show it; `gap` is proven so far while it is planned, a fraction."""

    id: uuid.UUID
    name: str | None
    method: str
    objective: str
    time_limit_s: float
    layers: int
    gpus: int
    state: PlanState
    created_at: datetime
    state_changed_at: datetime
    gap: float | None
    reason_code: str | None
    reason: str | None
    outline: PlanOutline | None


@dataclass(frozen=True, slots=True)
class AskedDevice:
    """A device type of a specification, and its place in the cluster."""

    type: Name
    nodes: Whole
    gpus_per_node: Whole


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page says of a specification, whichever version took it."""

    devices: tuple[AskedDevice, ...]
    microbatches: Whole
    allow_idle: bool = False
    replicate: bool = False


_ASKED: Final = TypeAdapter(Asked)


@dataclass(frozen=True, slots=True)
class PlanView:
    """Everything of one plan.

    Parameters
    ----------
    row : PlanSummary
    spec : mapping
        The specification as it was sent.
    asked : Asked
        The same, as far as a page says it.
    faults : tuple of Fault
        Why there is no template: the nearest changes, or what is wrong.
    ahead : int
        Plans and sessions that workers will take first, while it is queued.
    result : PlanResult or None
        Of a plan that was found.
    now : datetime
        The database's time of this view.
    """

    row: PlanSummary
    spec: Mapping[str, Any]
    asked: Asked
    faults: tuple[Fault, ...]
    ahead: int
    result: PlanResult | None
    now: datetime


@dataclass(frozen=True, slots=True)
class PlanList:
    """Plans, newest first, and the database's time."""

    rows: tuple[PlanSummary, ...]
    now: datetime


_COLUMNS: Final = tuple(getattr(Plan, name) for name in PlanSummary.__slots__)


def list_plans(tx: Reads, limit: int) -> PlanList:
    """Return at most `limit` plans, newest first."""
    query = select(*_COLUMNS).order_by(Plan.created_at.desc(), Plan.id).limit(limit)
    return PlanList(tuple(_row(row) for row in tx.session.execute(query)), tx.now)


def get_plan(tx: Reads, plan_id: uuid.UUID) -> PlanView:
    """Return one plan.

    Raises
    ------
    NotFoundError
        If there is no such plan.
    """
    query = select(*_COLUMNS, Plan.spec, Plan.reason_detail, Plan.result_blob)
    found = tx.session.execute(query.where(Plan.id == plan_id)).one_or_none()
    if found is None:
        raise NotFoundError(f"There is no plan {plan_id}.")
    row, detail, blob = _row(found), found.reason_detail or {}, found.result_blob
    return PlanView(
        row=row,
        spec=found.spec,
        asked=asked_of(found.spec),
        faults=tuple(Fault(**fault) for fault in detail.get("faults", ())),
        ahead=_ahead(tx, plan_id) if row.state is PlanState.QUEUED else 0,
        result=None if blob is None else unpack_result(b"".join(read_blob(tx, blob))),
        now=tx.now,
    )


def asked_of(spec: Mapping[str, Any]) -> Asked:
    """Return what a page says of a stored specification."""
    return _ASKED.validate_python(spec)


def _row(found: Row[*tuple[Any, ...]]) -> PlanSummary:
    values = {name: getattr(found, name) for name in PlanSummary.__slots__}
    if found.outline is not None:
        values["outline"] = OUTLINE.validate_python(found.outline)
    return PlanSummary(**values)


def _ahead(tx: Reads, plan_id: uuid.UUID) -> int:
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
