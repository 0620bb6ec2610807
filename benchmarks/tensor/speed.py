"""Step times under every alternative that the advisor has, predicted and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch.distributed as dist

from app.analysis.mitigation.tensor.advise import Problem, advise
from app.analysis.mitigation.tensor.costs import Costs, fit
from app.analysis.mitigation.tensor.document import Alternative, Criterion
from app.analysis.mitigation.tensor.group import Group
from benchmarks.tensor.job import Job, Measured
from benchmarks.tensor.ranks import RANKS, on_ranks
from paceline_client.tensor import Granularity, Method, Plan, RankShare, pre_test

BUDGET: Final = 0.25
# The straggler is one in the middle, so that its number plays no part.
CASES: Final[dict[str, tuple[float, ...]]] = {
    "χ = 2": (1.0, 1.0, 2.0, 1.0),
    "χ = 4": (1.0, 1.0, 4.0, 1.0),
    "χ = 8": (1.0, 1.0, 8.0, 1.0),
    "χ = 8 and 3": (1.0, 3.0, 8.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Parameters
    ----------
    speedup : float
        The step time without action ÷ that under the plan.
    predicted_s : float
        The advisor's, and what a step takes beside the slowest rank's own time without a plan.
    """

    case: str
    method: Method
    granularity: Granularity
    gamma: float
    within_budget: bool
    migrated: float
    predicted_s: float
    measured_s: float
    speedup: float
    target: str = ""

    @property
    def name(self) -> str:
        """The method, and what its criterion or budget is."""
        names = {
            Method.NONE: "no action",
            Method.ZERO: "ZERO",
            Method.MIGRATE: "MIG",
            Method.SEMI: "SEMI",
            Method.WATERFILL: "water-filled",
            Method.STICKY: "sticky",
        }
        units = self.granularity is Granularity.HIDDEN_UNITS and self.method is not Method.STICKY
        return f"{names[self.method]}{self.target}{', hidden units' if units else ''}"


def measure(steps: int) -> list[Row]:
    """Return the table's rows."""
    return on_ranks(partial(_on_rank, steps))[0]


def _on_rank(steps: int) -> list[Row]:
    rows: list[Row] = []
    for granularity in Granularity:
        job = Job(granularity)
        costs = _pre_test(job, steps)
        for case, slowdowns in CASES.items():
            rows += _case(job, case, slowdowns, costs, granularity, steps)
        job.workload.close()
    return rows


def _pre_test(job: Job, steps: int) -> Costs:
    """Sample what handing columns over and taking them apart costs, without a straggler."""
    job.slow_down([1.0] * RANKS)
    found = pre_test(job.workload, job.tp, job.train_step, steps)
    return Costs(communicate=fit(found.communicate), extract=fit(found.extract))


def _case(  # noqa: PLR0913, PLR0917 - what is measured, and how
    job: Job,
    case: str,
    slowdowns: Sequence[float],
    costs: Costs,
    granularity: Granularity,
    steps: int,
) -> Iterator[Row]:
    job.slow_down(slowdowns)
    without = job.measure(None, steps)
    alternatives: list[list[Alternative]] = [_alternatives(job, without, costs)]
    dist.broadcast_object_list(alternatives, 0)
    for alternative in alternatives[0]:
        method = Method(alternative.method.value)
        if granularity is Granularity.HIDDEN_UNITS and method in {Method.NONE, Method.STICKY}:
            continue
        shares = tuple(
            RankShare(
                share.rank,
                share.resized_columns,
                tuple((int(to), count) for to, count in share.to.items()),
            )
            for share in alternative.ranks
        )
        plan = _plan(job.workload.columns, method, shares)
        measured = without if method is Method.NONE else job.measure(plan, steps)
        yield Row(
            case,
            method,
            granularity,
            alternative.gamma,
            alternative.within_budget,
            alternative.migrated_columns / job.workload.columns,
            alternative.predicted_time_s + without.outside_s,
            measured.step_s,
            without.step_s / measured.step_s,
            _target(alternative),
        )


def _target(alternative: Alternative) -> str:
    """Return which time resizing is to reach, where there is a choice."""
    if alternative.method.value != Method.ZERO.value:
        return ""
    if alternative.criterion is Criterion.T_AVG:
        return " (T_avg)"
    return " (T_min, within the budget)" if alternative.gamma <= BUDGET else " (T_min)"


def _alternatives(job: Job, without: Measured, costs: Costs) -> list[Alternative]:
    group = Group(np.array(without.time_s), np.array(without.matmul_s), job.workload.columns)
    return list(advise(Problem(group, accuracy_budget=BUDGET, costs=costs)).alternatives)


def _plan(columns: int, method: Method, shares: tuple[RankShare, ...]) -> Plan:
    return Plan(1, method, columns, RANKS, shares)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Return the rows as Markdown, each case's by measured time."""
    yield "| straggler | method | γ | migrated | predicted, ms | measured, ms | error | speed-up |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for case in CASES:
        for row in sorted((r for r in rows if r.case == case), key=lambda r: -r.measured_s):
            beyond = "" if row.within_budget else " (beyond the budget)"
            yield (
                f"| {case} | {row.name} | {row.gamma:.3f}{beyond} | {row.migrated:.3f} | "
                f"{1000 * row.predicted_s:.0f} | {1000 * row.measured_s:.0f} | "
                f"{row.measured_s / row.predicted_s - 1:+.1%} | {row.speedup:.2f} × |"
            )
