"""Tensor-parallel groups in the database: look-ups, the switch of their job, stored plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from app.analysis.mitigation.tensor.advice import Problem
from app.analysis.mitigation.tensor.document import Method, RankShare
from app.analysis.mitigation.tensor.group import Group, Shares
from app.errors import ConflictError, NotFoundError
from app.jobs.models import Job
from app.platform.database.states import TensorMode
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.tensor.models import TensorGroup, TensorPlan, TensorSwitch
from app.tensor.spec import EXPIRES_AFTER_STEPS


@dataclass(frozen=True, slots=True)
class Switch:
    """The server's switch for the plans of a job: advice or application."""

    mode: TensorMode = TensorMode.ADVISE
    max_gamma: float | None = None
    """Upper bound of the job's own accuracy budget γ; None: no bound."""
    expires_after_steps: int = EXPIRES_AFTER_STEPS

    def budget(self, max_gamma: float) -> float:
        """Return a job's accuracy budget: its own budget, or the switch's if that is lower."""
        return max_gamma if self.max_gamma is None else min(max_gamma, self.max_gamma)


def switch_of(tx: Reads, job_id: int) -> Switch:
    """Return the latest switch of a job; by default, plans are advice only."""
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
    job_id = tx.session.execute(select(Job.id).where(Job.name == job)).scalar()
    if job_id is None:
        raise NotFoundError(f"There is no job {job}.")
    return job_id


def locked_group(tx: UnitOfWork, job: str, name: str, attempt: int) -> TensorGroup:
    """Return a group of an attempt, locked until the end of the transaction.

    Raises
    ------
    NotFoundError
        The group has not reported in this attempt.
    ConflictError
        ``tensor.old_attempt``: a later attempt of the job has reported.
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
    """Return a group of an attempt, by default of the newest attempt.

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
    group = tx.session.execute(newest_first).scalar()
    if group is None:
        raise _unknown(job, name, attempt)
    return group


def _unknown(job: str, name: str, attempt: int | None) -> NotFoundError:
    of = "" if attempt is None else f" in its attempt {attempt}"
    return NotFoundError(f"Job {job} has no tensor-parallel group {name}{of}.")


def refuse_old_attempt(tx: Reads, job_id: int, name: str, attempt: int) -> None:
    """Raise an error if a later attempt of the job has replaced a request's attempt.

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
    """Return the units of columns that each rank leaves out or migrates under a stored plan.

    Parameters
    ----------
    unit : int
        Number of columns that must stay together.
    """
    shares = Shares.nothing(len(ranks))
    for entry in ranks:
        shares.resized[entry.rank] = entry.resized_columns // unit
        for to, count in entry.to.items():
            shares.moved[entry.rank, int(to)] = count // unit
    return shares


def plan_of(tx: Reads, group_id: int, version: int) -> TensorPlan | None:
    """Return a version of a group's plan by its number."""
    return tx.session.get(TensorPlan, (group_id, version))


def problem_of(row: TensorGroup, group: Group, switch: Switch) -> Problem:
    """Return the mitigation problem of a group: its times, budget, costs and allowed methods."""
    allowed = {Method(method) for method in row.methods if method not in row.refused}
    return Problem(
        group=group,
        accuracy_budget=switch.budget(row.max_gamma),
        costs=row.costs,
        sizes=row.sizes or (),
        methods=frozenset({Method.NONE, *allowed}),
    )
