"""Ranked methods against the stragglers of a tensor-parallel group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.mitigation.tensor.document import (
    SCHEMA,
    Alternative,
    Criterion,
    LossRisk,
    Method,
    MitigationDocument,
    RankShare,
    risk_of,
)
from app.analysis.mitigation.tensor.group import Costs, Group, Shares
from app.analysis.mitigation.tensor.methods import even, fill, migrate, resize, semi
from app.analysis.mitigation.tensor.prediction import (
    Sizes,
    can_move,
    extra_bytes,
    places,
    predicted_s,
)

ALL_METHODS = frozenset(Method)


@dataclass(frozen=True, slots=True)
class Problem:
    """A tensor-parallel group with the constraints of its workload control."""

    group: Group  # times without a plan
    accuracy_budget: float  # largest accepted γ
    costs: Costs | None = None  # None without a pre-test: communication then counts as free
    sizes: tuple[Sizes, ...] = ()  # of the layers: for traffic in bytes and for coarse units
    methods: frozenset[Method] = ALL_METHODS  # methods that the job supports


# Minimum share by which a resizing plan must beat the plans without resizing: resizing certainly
# costs accuracy, while one per cent of a step time is within the noise.
LOSS_PAYS_FROM: Final = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    method: Method
    criterion: Criterion | None
    shares: Shares

    def key(self) -> tuple[Method, bytes, bytes]:
        """Return a key that is the same for candidates with the same method and shares."""
        return self.method, self.shares.resized.tobytes(), self.shares.moved.tobytes()


def advise(problem: Problem) -> MitigationDocument:
    """Return all alternatives, best first, and the chosen one.

    Examples
    --------
    >>> import numpy as np
    >>> times = np.array([2.0, 1.0, 1.0, 1.0])
    >>> found = advise(Problem(Group(times, times, 120), accuracy_budget=0.0))
    >>> found.chosen.value, round(found.best.predicted_time_s, 3)
    ('sticky', 1.142)
    """
    group = problem.group
    # Candidates of different criteria may have equal shares; the first of them is listed.
    unlike = {item.key(): item for item in reversed(list(_candidates(problem)))}
    order = list(Method)
    ranked = sorted(
        (_alternative(problem, item) for item in unlike.values()),
        key=lambda item: (
            not item.within_budget,
            _weighed_s(item),
            item.predicted_time_s,
            item.gamma,
            order.index(item.method),
        ),
    )
    stragglers = tuple(group.stragglers.tolist())
    return MitigationDocument(
        schema=SCHEMA,
        columns=group.columns,
        unit=group.unit,
        accuracy_budget=problem.accuracy_budget,
        fastest_time_s=group.fastest_s,
        slowest_time_s=float(group.time_s.max()),
        stragglers=stragglers,
        costs_sampled=problem.costs is not None,
        alternatives=tuple(ranked),
        chosen=ranked[0].method if stragglers else Method.NONE,
    )


def _weighed_s(item: Alternative) -> float:
    """Return the predicted time that ranks an alternative, seconds, longer if it resizes."""
    loses = item.loss_risk is not LossRisk.NONE
    return item.predicted_time_s * (1 + LOSS_PAYS_FROM) if loses else item.predicted_time_s


def _candidates(problem: Problem) -> Iterator[_Candidate]:
    group, budget, methods = problem.group, problem.accuracy_budget, problem.methods
    costs = problem.costs or Costs()
    fastest_s, mean_s = group.fastest_s, float(group.time_s.mean())
    t_min, t_avg = Criterion.T_MIN, Criterion.T_AVG
    yield _Candidate(Method.NONE, None, Shares.nothing(group.ranks))
    if Method.ZERO in methods:
        yield _Candidate(Method.ZERO, t_min, resize(group, fastest_s, budget))
        yield _Candidate(Method.ZERO, t_avg, resize(group, mean_s))
        yield _Candidate(Method.ZERO, t_min, resize(group, fastest_s))
    if Method.MIGRATE in methods:
        yield _Candidate(Method.MIGRATE, t_min, migrate(group))
    if Method.SEMI in methods:
        yield _Candidate(Method.SEMI, t_min, semi(group, costs, budget))
        yield _Candidate(Method.SEMI, t_min, semi(group, costs))
    if Method.WATERFILL in methods:
        yield _Candidate(Method.WATERFILL, None, fill(group, costs))
    if Method.STICKY in methods and can_move(problem.sizes):
        yield _Candidate(Method.STICKY, None, even(group))


def _alternative(problem: Problem, item: _Candidate) -> Alternative:
    group, shares = problem.group, item.shares
    moves_once = item.method is Method.STICKY
    times = predicted_s(
        group,
        shares,
        problem.costs or Costs(),
        each_step=not moves_once,
        places=places(problem.sizes, once=moves_once),
    ).tolist()
    most = float(shares.resized.max()) / group.units
    within = most <= problem.accuracy_budget
    return Alternative(
        method=item.method,
        criterion=item.criterion,
        predicted_time_s=max(times),
        speedup=float(group.time_s.max()) / max(times),
        loss_risk=risk_of(most, within_budget=within),
        within_budget=within,
        extra_bytes=extra_bytes(
            problem.sizes, int(shares.moved.sum()) * group.unit, group.columns, once=moves_once
        )
        if problem.sizes
        else None,
        ranks=rank_shares(group, shares, times),
    )


def rank_shares(group: Group, shares: Shares, times_s: list[float]) -> tuple[RankShare, ...]:
    """Return the share of work of each rank, in columns."""
    unit = group.unit
    return tuple(
        RankShare(
            rank=rank,
            time_s=time_s,
            predicted_time_s=predicted,
            gamma=resized / group.units,
            resized_columns=resized * unit,
            migrated_columns=migrated * unit,
            received_columns=received * unit,
            to={str(to): int(moved[to]) * unit for to in np.flatnonzero(moved).tolist()},
        )
        for rank, (time_s, predicted, resized, migrated, received, moved) in enumerate(
            zip(
                group.time_s.tolist(),
                times_s,
                shares.resized.tolist(),
                shares.migrated.tolist(),
                shares.received.tolist(),
                shares.moved,
                strict=True,
            )
        )
    )
