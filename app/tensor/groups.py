"""Groups in the database: the one that a job's request is about, and what holds of its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select

from app.analysis.mitigation.tensor.document import RankShare
from app.analysis.mitigation.tensor.group import Shares
from app.errors import ConflictError, NotFoundError
from app.jobs.models import Job
from app.platform.database.states import TensorMode
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.tensor.models import TensorGroup, TensorPlan, TensorSwitch

# Steps for which a plan holds after the report that made or renewed it.
EXPIRES_AFTER_STEPS: Final = 200


@dataclass(frozen=True, slots=True)
class Switch:
    """What the server's switch says of a job."""

    mode: TensorMode = TensorMode.ADVISE
    max_gamma: float | None = None
    """Lowers the job's own accuracy budget."""
    expires_after_steps: int = EXPIRES_AFTER_STEPS

    def budget(self, max_gamma: float) -> float:
        """Return the accuracy budget of a job; never above its own."""
        return max_gamma if self.max_gamma is None else min(max_gamma, self.max_gamma)


def switch_of(tx: Reads, job_id: int) -> Switch:
    """Return what holds of a job; a job that was never switched gets advice only."""
    row = tx.session.execute(
        select(TensorSwitch)
        .where(TensorSwitch.job_id == job_id)
        .order_by(TensorSwitch.id.desc())
        .limit(1)
    ).scalar()
    if row is None:
        return Switch()
    return Switch(row.mode, row.max_gamma, row.expires_after_steps)


def job_id_of(tx: Reads, job: str) -> int:
    """Return a job's id.

    Raises
    ------
    NotFoundError
    """
    found = tx.session.execute(select(Job.id).where(Job.name == job)).scalar()
    if found is None:
        raise NotFoundError(f"There is no job {job}.")
    return found


def locked_group(tx: UnitOfWork, job: str, name: str, attempt: int) -> TensorGroup:
    """Return the group that a request is about; no other changes it in this transaction.

    Raises
    ------
    NotFoundError
        Nothing was reported of it.
    ConflictError
        ``tensor.old_attempt``: the job was started again since.
    """
    job_id = job_id_of(tx, job)
    refuse_old_attempt(tx, job_id, name, attempt)
    group = tx.session.execute(
        select(TensorGroup)
        .where(
            TensorGroup.job_id == job_id,
            TensorGroup.name == name,
            TensorGroup.attempt == attempt,
        )
        .with_for_update()
    ).scalar()
    if group is None:
        raise _unknown(job, name, attempt)
    return group


def group_of(tx: Reads, job: str, name: str, attempt: int | None = None) -> TensorGroup:
    """Return a group; of its newest attempt where none is named.

    Raises
    ------
    NotFoundError
    """
    newest_first = (
        select(TensorGroup)
        .join(Job, Job.id == TensorGroup.job_id)
        .where(Job.name == job, TensorGroup.name == name)
        .order_by(TensorGroup.attempt.desc())
        .limit(1)
    )
    if attempt is not None:
        newest_first = newest_first.where(TensorGroup.attempt == attempt)
    found = tx.session.execute(newest_first).scalar()
    if found is None:
        raise _unknown(job, name, attempt)
    return found


def _unknown(job: str, name: str, attempt: int | None) -> NotFoundError:
    of = "" if attempt is None else f" in its attempt {attempt}"
    return NotFoundError(f"Job {job} has no tensor-parallel group {name}{of}.")


def refuse_old_attempt(tx: Reads, job_id: int, name: str, attempt: int) -> None:
    """Refuse what comes from before the job's latest start.

    Raises
    ------
    ConflictError
        ``tensor.old_attempt``.
    """
    newest = tx.session.execute(
        select(func.max(TensorGroup.attempt)).where(
            TensorGroup.job_id == job_id, TensorGroup.name == name
        )
    ).scalar()
    if newest is not None and newest > attempt:
        raise ConflictError(
            f"Attempt {attempt} is over: attempt {newest} has reported.",
            code="tensor.old_attempt",
        )


def shares_in(ranks: Sequence[RankShare], unit: int) -> Shares:
    """Return who does what under a stored plan."""
    shares = Shares.nothing(len(ranks))
    for entry in ranks:
        shares.resized[entry.rank] = entry.resized_columns // unit
        for to, count in entry.to.items():
            shares.moved[entry.rank, int(to)] = count // unit
    return shares


def plan_of(tx: Reads, group_id: int, version: int) -> TensorPlan | None:
    """Return a version of a group's plan."""
    return tx.session.get(TensorPlan, (group_id, version))
