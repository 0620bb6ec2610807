"""Use case: switch a job's plans between advice and application."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from app.analysis.mitigation.tensor.document import Method
from app.db.models.tensor import TensorGroup, TensorPlan, TensorSwitch
from app.db.states import TensorMode, TensorPlanState
from app.services.access.audit import Action, record
from app.services.tensor.groups import Switch, job_id_of, switch_of
from app.services.tensor.versions import reoffer, withdraw

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.services.container import Container

# Switches of a job that a page lists.
MOST_LISTED: Final = 50


@dataclass(frozen=True, slots=True)
class Switched:
    """Who switched a job's plans to what, and when."""

    at: datetime
    by: str
    mode: TensorMode
    max_gamma: float | None
    expires_after_steps: int


def history(tx: Reads, job_id: int) -> tuple[Switched, ...]:
    """Return who switched a job's plans, newest first."""
    rows = tx.session.execute(
        select(TensorSwitch)
        .where(TensorSwitch.job_id == job_id)
        .order_by(TensorSwitch.id.desc())
        .limit(MOST_LISTED)
    ).scalars()
    return tuple(
        Switched(row.at, row.by, row.mode, row.max_gamma, row.expires_after_steps) for row in rows
    )


def read_switch(tx: Reads, job: str) -> tuple[Switch, tuple[Switched, ...]]:
    """Return what holds of a job, and who switched it so.

    Raises
    ------
    NotFoundError
    """
    job_id = job_id_of(tx, job)
    return switch_of(tx, job_id), history(tx, job_id)


def _told(wanted: Switch) -> str:
    parts = [f"to {wanted.mode}"]
    if wanted.max_gamma is not None:
        parts.append(f"γ at most {wanted.max_gamma:g}")
    return ", ".join([*parts, f"for {wanted.expires_after_steps} steps"])


def switch_plans(
    container: Container, job: str, wanted: Switch, by: str | None = None
) -> list[str]:
    """Switch a job's plans; what stands becomes another version at once.

    Switched to application, advice is offered to the job; switched to advice, plans in force are
    taken back and stand as advice. A budget that is lowered works with the next report.

    Returns
    -------
    list of str
        The groups that have a new version.

    Raises
    ------
    NotFoundError
        There is no such job.
    """
    changed = []
    who = container.principal.called(by)
    with container.uow() as tx:
        job_id = job_id_of(tx, job)
        tx.session.add(
            TensorSwitch(
                job_id=job_id,
                by=who.name,
                mode=wanted.mode,
                max_gamma=wanted.max_gamma,
                expires_after_steps=wanted.expires_after_steps,
            )
        )
        record(tx, who, Action.SWITCHED, f"tensor plans of {job}", detail=_told(wanted))
        standing = tx.session.execute(
            select(TensorGroup, TensorPlan)
            .join(
                TensorPlan,
                (TensorPlan.group_id == TensorGroup.id)
                & (TensorPlan.version == TensorGroup.version),
            )
            .where(
                TensorGroup.job_id == job_id,
                TensorPlan.state.in_(TensorPlanState.STANDING),
                TensorPlan.method != Method.NONE.value,
            )
            .order_by(TensorGroup.id)
            .with_for_update(of=TensorGroup)
        ).all()
        for group, plan in standing:
            apply = group.apply and wanted.mode is TensorMode.APPLY
            if apply == plan.apply:
                continue
            step = group.step or plan.created_step
            if plan.apply:
                withdraw(tx, group, plan, step)
            else:
                reoffer(tx, group, plan, wanted, step)
            changed.append(group.name)
    return changed
