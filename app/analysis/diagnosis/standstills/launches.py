"""First launches that are late, and what ranks are recorded to do meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.between.period import FEWEST, interval, listed
from app.analysis.diagnosis.finding import Change, Evidence, Finding
from app.analysis.diagnosis.late_launches import first_delays
from app.analysis.diagnosis.observation import Observation, summed
from app.analysis.diagnosis.places import StepView, Where
from app.analysis.diagnosis.signs import Signs
from app.analysis.replay.layout.dense import FloatArray, IntArray, Layout
from app.analysis.replay.layout.host_operations import HostOperations
from app.analysis.trace.model import BETWEEN_STEPS
from app.analysis.wording import named

# A rank waits when it does so for this share of what the latest one does; all load their batches.
_WAITS: Final = 0.1

# By node, shape (steps, dp), ns.
ByNode = Mapping[int, FloatArray]


def recorded_delays(signs: Signs, name: str) -> ByNode:
    """Return how late launches are while their rank is recorded to do something between steps."""
    if signs.passing is None or not len(signs.passing.host_operations):
        return {}
    operations = signs.passing.host_operations.of(name)
    return _delays(signs.observation, operations) if len(operations) else {}


def with_recorded(signs: Signs, name: str, found: Finding | None) -> Finding | None:
    """Return a finding with the launches that wait while ranks are recorded to do what it is."""
    recorded = recorded_delays(signs, name)
    if not recorded:
        return found
    every = np.max(np.stack(list(recorded.values())), axis=0)
    layout = signs.observation.layout
    by_rank = every.sum(axis=0)
    ranks = np.flatnonzero(by_rank >= _WAITS * by_rank.max()).tolist()
    by_step = every.max(axis=1)
    steps = layout.steps[by_step > 0]
    apart = interval(layout.steps, by_step > 0)
    who = "all DP ranks" if len(ranks) == layout.dp else named("DP rank", [str(r) for r in ranks])
    often = f", every {apart} steps" if apart and len(steps) >= FEWEST else ""
    line = Evidence(
        f"Launches wait for {by_step[by_step > 0].mean() / 1e6:.0f} ms while {who} "
        f"{'is' if len(ranks) == 1 else 'are'} recorded to be at {name}, in "
        f"{listed(steps.tolist())}{often}",
        StepView(step=int(layout.steps[int(by_step.argmax())])),
    )
    late_ns = dict(recorded)
    if found is None:
        where = Where(dp=ranks[0]) if len(ranks) == 1 < layout.dp else Where()
        found = Finding(Change(), (), where)
    else:
        late_ns = summed([found.launches.late_ns, recorded])
    return replace(
        found,
        change=Change(on_time={node: late > 0 for node, late in late_ns.items()}),
        evidence=(*found.evidence, line),
        launches=replace(found.launches, late_ns=late_ns),
    )


def unnamed_first_delays(signs: Signs) -> dict[int, FloatArray]:
    """Return how late first operations are launched but for what their ranks are recorded to do."""
    late = signs.observation.once(first_delays)
    named = [of for name in BETWEEN_STEPS if (of := recorded_delays(signs, name))]
    if not named:
        return late
    return {
        node: np.maximum(delay - sum((of.get(node, 0.0) for of in named), 0.0), 0.0)
        for node, delay in late.items()
    }


def _delays(observation: Observation, operations: HostOperations) -> dict[int, FloatArray]:
    """Return how late what is launched next is, and what is first, because of host operations."""
    layout = observation.layout
    first = observation.once(first_delays)
    late: dict[int, FloatArray] = {}
    for stage in range(layout.pp):
        nodes = layout.nodes.on(stage)
        begins = [node for node in first if layout.nodes.pp[node] == stage]
        left = np.flatnonzero(operations.pp == stage)
        # What ends a step holds up the next one.
        for following in (0, 1):
            if not len(left):
                break
            there, at = _in_steps(layout, operations, left, following)
            of_next = _next_launches(layout, nodes, there)
            for node in sorted({*of_next[of_next >= 0].tolist(), *begins}):
                own = late.setdefault(node, np.zeros(layout.start_ns.shape[1:]))
                mine = (of_next == node) | (node in begins)
                _add_delays(observation, node, there.chosen(mine), own)
            left = np.delete(left, at[of_next >= 0])
    return {node: late_ns for node, late_ns in late.items() if late_ns.any()}


@dataclass(frozen=True, slots=True, eq=False)
class _InSteps:
    """Host operations in steps of the most frequent shape, times since the begins of these, ns."""

    step: IntArray  # index
    dp: IntArray
    start_ns: FloatArray
    end_ns: FloatArray

    def chosen(self, mine: NDArray[np.bool_]) -> _InSteps:
        """Return some of them."""
        return _InSteps(self.step[mine], self.dp[mine], self.start_ns[mine], self.end_ns[mine])


def _in_steps(
    layout: Layout, operations: HostOperations, some: IntArray, following: int
) -> tuple[_InSteps, IntArray]:
    """Return host operations in their steps, or the ones after these, and which have any."""
    number = operations.step[some] + following
    step = np.minimum(np.searchsorted(layout.steps, number), len(layout.steps) - 1)
    begin_ns = layout.begin_ns[step]
    found = _InSteps(
        step,
        operations.dp[some],
        operations.start_ns[some] - begin_ns,
        operations.end_ns[some] - begin_ns,
    )
    there = layout.steps[step] == number
    return found.chosen(there), np.flatnonzero(there)


def _next_launches(layout: Layout, nodes: IntArray, operations: _InSteps) -> IntArray:
    """Return which of some nodes is launched next after each; -1 where none is."""
    if not len(operations.step):
        return np.empty(0, dtype=np.int64)
    starts = layout.start_ns[nodes[:, None], operations.step, operations.dp]
    after = np.where(_follows(starts, operations), starts, np.inf)
    first = after.argmin(axis=0)
    return np.where(np.isfinite(after.min(axis=0)), nodes[first], -1)


def _follows(starts: FloatArray, operations: _InSteps) -> NDArray[np.bool_]:
    # What begins in its second half or later follows it: clocks are read one after the other.
    return np.asarray(starts >= (operations.start_ns + operations.end_ns) / 2)


def _add_delays(
    observation: Observation, node: int, operations: _InSteps, late_ns: FloatArray
) -> None:
    """Add how late a node is launched while its rank does something."""
    delay = observation.delay_ns(node)
    at = (operations.step, operations.dp)
    launched = observation.layout.start_ns[node][at]
    since = np.maximum(operations.start_ns, launched - delay[at])
    meanwhile = np.minimum(operations.end_ns, launched) - since
    np.add.at(
        late_ns, at, np.where(_follows(launched, operations), np.maximum(meanwhile, 0.0), 0.0)
    )
    np.minimum(late_ns, delay, out=late_ns)
