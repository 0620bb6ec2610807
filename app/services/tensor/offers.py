"""Use cases: a job asks for a newer plan, and reports the outcome of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.db.states import TensorPlanState
from app.errors import ConflictError, Fault, InvalidTensorError, NotFoundError
from app.services.tensor.groups import group_of, locked_group, plan_of
from app.services.tensor.versions import OfferedPlan, end_plan, offered, withdraw

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.inputs.tensor.timings import WrittenAck
    from app.services.container import Container


def newer_plan(tx: Reads, job: str, name: str, attempt: int, after: int) -> OfferedPlan | None:
    """Return the newest version of a group's plan, if it is newer than what the job has.

    Raises
    ------
    NotFoundError
        Nothing was reported of the group in this attempt.
    """
    group = group_of(tx, job, name, attempt)
    if group.version <= after:
        return None
    plan = plan_of(tx, group.id, group.version)
    return None if plan is None else offered(group, plan)


def acknowledge(container: Container, job: str, name: str, version: int, ack: WrittenAck) -> None:
    """Note which ranks applied a version: when all have it is in force, when one could not refused.

    To acknowledge twice is harmless. After a refusal the version is taken back, and its method is
    not offered again in this attempt.

    Raises
    ------
    NotFoundError
        There is no such version.
    ConflictError
        ``tensor.superseded``: it is not, or no longer, to be applied.
    InvalidTensorError
        A rank that the group does not have.
    """
    with container.uow() as tx:
        group = locked_group(tx, job, name, ack.attempt)
        plan = plan_of(tx, group.id, version)
        if plan is None:
            raise NotFoundError(f"The group has no plan {version} in attempt {ack.attempt}.")
        unknown = [n for n, rank in enumerate(ack.ranks) if rank >= group.world_size]
        if unknown:
            place = f"ranks[{unknown[0]}]"
            message = f"{place}: the group has no rank {ack.ranks[unknown[0]]}"
            fault = Fault("unknown_rank", message, column=place)
            raise InvalidTensorError(message, faults=(fault,))
        if plan.state is TensorPlanState.REFUSED and not ack.applied:
            return
        if plan.state not in (TensorPlanState.OFFERED, TensorPlanState.IN_FORCE):
            raise ConflictError(f"Plan {version} is {plan.state}.", code="tensor.superseded")
        if not ack.applied:
            plan.reason = ack.reason
            group.refused = sorted({*group.refused, plan.method})
            # A job that could not even read it names no step of its own.
            step = max(ack.step, plan.created_step)
            withdraw(tx, group, plan, step)
            end_plan(plan, TensorPlanState.REFUSED, step)
            return
        plan.acknowledged = sorted({*plan.acknowledged, *ack.ranks})
        if len(plan.acknowledged) == group.world_size and plan.state is TensorPlanState.OFFERED:
            plan.state, plan.applied_step = TensorPlanState.IN_FORCE, ack.step
