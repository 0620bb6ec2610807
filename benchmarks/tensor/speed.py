"""Predicted and measured step times for every alternative of the advisor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch.distributed as dist

from app.analysis.mitigation.tensor.advice import Problem, advise
from app.analysis.mitigation.tensor.control import shares_of
from app.analysis.mitigation.tensor.document import Alternative, Criterion
from app.analysis.mitigation.tensor.group import Costs, Group, fit, fit_communication
from app.analysis.mitigation.tensor.prediction import places, uneven_s
from app.tensor.measured import WrittenSizes
from benchmarks.tensor.job import HEALTHY_STEP_S, RANKS, Job, Measured, on_ranks
from paceline_client.tensor import Granularity, Method, Plan, RankShare, pre_test

BUDGET: Final = 0.25
# All alternatives are measured in several rounds, and the fastest step of each counts, because
# other load of the machine is temporary.
_ROUNDS: Final = 2
_STEPS: Final = 3
_LONG_S: Final = 1.0
# The straggler is a middle rank, so that its position has no effect.
CASES: Final[dict[str, tuple[float, ...]]] = {
    "χ = 2": (1.0, 1.0, 2.0, 1.0),
    "χ = 4": (1.0, 1.0, 4.0, 1.0),
    "χ = 8": (1.0, 1.0, 8.0, 1.0),
    "χ = 8 and 3": (1.0, 3.0, 8.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Parameters
    ----------
    speedup : float
        The step time without a plan ÷ that with the plan.
    predicted_s : float
        Sum of the advisor's prediction for the slowest rank, the waits of ranks for each other
        layer by layer, and the time of a step without a plan that is not work of the slowest rank.
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
        """The method, with its criterion or budget."""
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


def measure() -> list[Row]:
    """Return the table's rows."""
    return on_ranks(_on_rank)[0]


def _on_rank() -> list[Row]:
    rows: list[Row] = []
    for granularity in Granularity:
        job = Job(granularity)
        costs = _pre_test(job)
        # The time of a step that is not work of the slowest rank is measured without a straggler.
        outside_s = job.measure(None, 2 * _STEPS).outside_s
        for case, slowdowns in CASES.items():
            job.slow_down(slowdowns)
            without = job.measure(None, _steps(max(slowdowns) * HEALTHY_STEP_S))
            outside_s = min(outside_s, without.outside_s)
            rows += _case(job, case, without, _predicted(job, without, costs, outside_s))
        job.workload.close()
    return rows


def _pre_test(job: Job) -> Costs:
    """Measure the cost of migrating and extracting columns, without a straggler."""
    job.slow_down([1.0] * RANKS)
    costs = pre_test(job.workload, job.tp, job.train_step)
    return Costs(
        communicate=fit_communication(costs.communicate),
        extract=fit(costs.extract),
        lend=fit(costs.lend),
    )


@dataclass(frozen=True, slots=True)
class _Predicted:
    """An alternative of the advisor, with the plan that the job applies."""

    method: Method
    target: str
    gamma: float
    within_budget: bool
    migrated: float
    step_s: float
    ranks: tuple[RankShare, ...]

    @property
    def work(self) -> tuple[bool, tuple[RankShare, ...]]:
        """Return a key that is equal for alternatives that the job executes equally."""
        return self.method is Method.STICKY, self.ranks


def _case(job: Job, case: str, without: Measured, predicted: list[_Predicted]) -> Iterator[Row]:
    granularity, shared = job.granularity, [predicted]
    dist.broadcast_object_list(shared, 0)
    times: dict[tuple[bool, tuple[RankShare, ...]], float] = {}
    wanted = [
        alternative
        for alternative in shared[0]
        if granularity is Granularity.COLUMNS
        or alternative.method not in {Method.NONE, Method.STICKY}
    ]
    for done in range(_ROUNDS):
        for alternative in {
            alternative.work: alternative
            for alternative in wanted
            if alternative.method is not Method.NONE
        }.values():
            steps = _steps(alternative.step_s)
            if done and steps == 1:
                continue
            plan = Plan(1, alternative.method, job.workload.columns, RANKS, alternative.ranks)
            step_s = job.measure(plan, steps).step_s
            times[alternative.work] = min(step_s, times.get(alternative.work, step_s))
    for alternative in wanted:
        measured_s = (
            without.step_s if alternative.method is Method.NONE else times[alternative.work]
        )
        yield Row(
            case,
            alternative.method,
            granularity,
            alternative.gamma,
            alternative.within_budget,
            alternative.migrated,
            alternative.step_s,
            measured_s,
            without.step_s / measured_s,
            alternative.target,
        )


def _steps(step_s: float) -> int:
    """Return the number of measured steps: fewer of long ones, which other load hardly changes."""
    return _STEPS if step_s < _LONG_S else 1


def _predicted(job: Job, without: Measured, costs: Costs, outside_s: float) -> list[_Predicted]:
    """Return the advisor's alternatives for the group as measured without a plan."""
    columns = job.workload.columns
    sizes = tuple(
        WrittenSizes.model_validate(size).sizes()
        for size in job.workload.sizes(job.workload.take_rows())
    )
    group = Group(np.array(without.time_s), np.array(without.matmul_s), columns)
    problem = Problem(group, accuracy_budget=BUDGET, costs=costs, sizes=sizes)
    rows = []
    for item in advise(problem).alternatives:
        method = Method(item.method.value)
        divided = places(sizes, once=method is Method.STICKY)
        waits_s = uneven_s(group, shares_of(item, group), divided)
        rows.append(
            _Predicted(
                method,
                _target(item),
                item.gamma,
                item.within_budget,
                item.migrated_columns / columns,
                item.predicted_time_s + waits_s + outside_s,
                tuple(
                    RankShare(
                        share.rank,
                        share.resized_columns,
                        tuple((int(to), count) for to, count in share.to.items()),
                    )
                    for share in item.ranks
                ),
            )
        )
    return rows


def _target(alternative: Alternative) -> str:
    """Return the target time of resizing, if there is a choice."""
    if alternative.method.value != Method.ZERO.value:
        return ""
    if alternative.criterion is Criterion.T_AVG:
        return " (T_avg)"
    return " (T_min, within the budget)" if alternative.gamma <= BUDGET else " (T_min)"


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Return the rows as Markdown, those of each case by measured time."""
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
