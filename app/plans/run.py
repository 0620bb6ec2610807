"""Task of a plan: search for its template, report progress, store the result.

The result is stored in a single transaction at the end, so an interrupted task can be run again.
"""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import exists, update

from app.analysis.json_text import plain
from app.analysis.planning.build import plan_document, simulated_iteration
from app.analysis.planning.job.build import job_document, slowest_iteration
from app.analysis.planning.job.plan import plan_job
from app.analysis.planning.job.spec import JobSpec
from app.analysis.planning.plan import plan, with_oobleck_templates
from app.analysis.planning.search.budget import SearchBudget
from app.errors import InfeasiblePlanError, InvalidSpecError, LostClaimError, NotFoundError
from app.plans.models import Plan
from app.plans.requests import JobResult, PlanOutline, PlanResult, move_plan, pack_result
from app.plans.specs.spec import parse_any_spec
from app.platform.blobs import write_blob
from app.platform.container import Claim, Container
from app.platform.database.states import PlanState, TaskState
from app.platform.database.task_runs import TaskRun
from app.platform.tasks.runs import finish

# Interval between a running search's progress reports and checks for cancellation, seconds.
PROGRESS_INTERVAL_S: Final = 0.5


def run_plan(container: Container, claim: Claim) -> None:
    """Search for the plan that a claim holds, and store the result.

    Raises
    ------
    LostClaimError
        If the plan was canceled or taken over by another worker; nothing is stored.
    NotFoundError
        If the plan was deleted meanwhile.
    """
    with container.uow() as tx:
        row = tx.session.get(Plan, claim.subject_id)
        if row is None:
            raise NotFoundError(f"plan {claim.subject_id} is gone")
    progress = _Progress(container, claim)
    budget = SearchBudget(progress.clock, time.monotonic() + row.time_limit_s, progress.report)
    try:
        result = _planned(row, budget, progress)
    except (InfeasiblePlanError, InvalidSpecError) as error:
        with container.uow() as tx:
            finish(tx, claim)
            move_plan(
                tx,
                claim.subject_id,
                state=PlanState.INFEASIBLE,
                gap=None,
                reason_code=error.stable_code,
                reason=error.message,
                reason_detail={"faults": [fault.as_dict() for fault in error.faults]},
            )
        return
    staged = container.stage([pack_result(result)])
    with container.uow() as tx:
        finish(tx, claim)
        move_plan(
            tx,
            claim.subject_id,
            state=PlanState.PLANNED,
            gap=result.plan.gap,
            result_blob=write_blob(tx, staged),
            outline=plain(PlanOutline.of(result.plan)),
            reason_code=None,
            reason=None,
            reason_detail=None,
        )


def _planned(row: Plan, budget: SearchBudget, progress: _Progress) -> PlanResult | JobResult:
    spec = parse_any_spec(row.spec)
    if isinstance(spec, JobSpec):
        job = plan_job(spec, budget)
        return JobResult(job_document(job), slowest_iteration(job.plan))
    result = plan(spec, method=row.method, objective=row.objective, budget=budget)
    if row.method == "ditto":
        result = with_oobleck_templates(result, SearchBudget(progress.clock))
    return PlanResult(plan_document(result), simulated_iteration(result.problem, result.template))


class _Progress:
    """Progress of a search: stores it, and stops the search if its claim is lost.

    Progress is stored and the claim checked when the search reads its clock, between its passes.
    """

    def __init__(self, container: Container, claim: Claim) -> None:
        self._container = container
        self._claim = claim
        self._gap: float | None = None
        self._next_s = time.monotonic() + PROGRESS_INTERVAL_S

    def clock(self) -> float:
        """Return the monotonic time, seconds.

        Raises
        ------
        LostClaimError
            The plan was canceled or taken over by another worker.
        """
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._store_progress()
            self._next_s = time.monotonic() + PROGRESS_INTERVAL_S
        return now_s

    def report(self, gap: float) -> None:
        """Record the proven optimality gap, a fraction; raises the same errors as `clock`."""
        self._gap = gap
        self.clock()

    def _store_progress(self) -> None:
        claim = self._claim
        held = exists().where(
            TaskRun.id == claim.run_id,
            TaskRun.claim_token == claim.token,
            TaskRun.state == TaskState.RUNNING,
        )
        with self._container.uow() as tx:
            updated = tx.session.execute(
                update(Plan)
                .where(Plan.id == claim.subject_id, held)
                .values(gap=self._gap)
                .returning(Plan.id)
            ).scalar()
        if updated is None:
            raise LostClaimError(f"plan {claim.subject_id} was canceled or taken over")
