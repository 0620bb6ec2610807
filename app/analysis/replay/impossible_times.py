"""Impossible recorded times: durations are replaced, and steps with other faults are dropped.

Device profilers record some kernels with durations of hours or years (CUPTI, see
facebookresearch/HolisticTraceAnalysis#325), and a single such duration decides every mean. A
duration is impossible if it is far above the durations of the same operation in other steps and on
other DP ranks, and its rank starts a dependent operation before half of it has passed. Operations
that do not depend on it prove nothing, for example communication next to a computation. The
replacement ends a communication with the other members of its group. A computation gets its usual
duration on its rank, but ends before the dependent operation at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import DroppedStep, FloatArray, Layout, no_complete_step
from app.analysis.replay.layout.dependency_graph import LOCAL, Graph
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.replay.robust_statistics import median, median_of_rows, peers_median
from app.analysis.trace import model as ops
from app.analysis.trace.model import Trace

IntArray = NDArray[np.intp]

# A duration is suspect if it exceeds this many times the median duration of the same operation…
FAR_ABOVE: Final = 4.0
# …and this share of a step, since shorter durations do not change a report.
WORTH_A_LOOK: Final = 0.02
# A suspect duration is impossible if a dependent operation starts before this share of the duration
# has passed…
GOES_ON: Final = 0.5
# …or, without a recorded dependent operation, if it exceeds this many times the length of the
# session.
BEYOND_SESSION: Final = 100.0
# Precheck: an operation can have a suspect duration only if its longest duration exceeds this many
# times its mean duration.
_ABOVE_MEAN: Final = 2.0
NS_A_SECOND: Final = 1e9

# Operations at the end of a step, which depend on all computations of the step.
_AFTER_COMPUTING: Final = (
    ops.LAYERNORM_ALL_REDUCE,
    ops.EMBEDDING_ALL_REDUCE,
    ops.OPTIMIZER_CLIP,
    ops.OPTIMIZER,
)
_RECEIVES: Final = (ops.FORWARD_RECV, ops.BACKWARD_RECV)


@dataclass(frozen=True, slots=True)
class ImpossibleDuration:
    """An operation whose impossible recorded duration was replaced."""

    step: int
    """Its training step."""
    rank: int
    """The global rank that recorded it."""
    op_type: str
    """Its type."""
    recorded_s: float
    """The recorded duration, seconds."""
    taken_s: float
    """The duration that replaces it, seconds."""


def without_impossible(
    layouts: Sequence[Layout], graphs: Sequence[Graph]
) -> tuple[list[Layout], tuple[ImpossibleDuration, ...]]:
    """Return layouts with impossible durations replaced, and the replaced operations."""
    repaired = [_repaired(*pair) for pair in zip(layouts, graphs, strict=True)]
    replaced = sorted(
        (item for _, items in repaired for item in items), key=lambda item: (item.step, item.rank)
    )
    return [layout for layout, _ in repaired], tuple(replaced)


def _repaired(layout: Layout, graph: Graph) -> tuple[Layout, list[ImpossibleDuration]]:
    step_ns = _step_ns(layout)
    long = _far_above(layout, step_ns)
    if not len(long.node):
        return layout, []
    own = layout.duration_ns[long.at]
    goes_on = _goes_on(layout, graph, long)
    impossible = goes_on < GOES_ON * own
    unfollowed = np.flatnonzero(~impossible & ~np.isfinite(goes_on))
    if len(unfollowed):
        chosen = long.of(unfollowed)
        impossible[unfollowed] = _ends_alone(layout, graph, chosen)
        # This test comes last, since computing the exact length of a session takes as long as all
        # other tests.
        beyond = unfollowed[own[unfollowed] > BEYOND_SESSION * len(layout.steps) * step_ns]
        if len(beyond):
            step_ns = float(median((layout.start_ns + layout.duration_ns).max(axis=(0, 2))))
            session_ns = max(step_ns * len(layout.steps), float(np.ptp(layout.begin_ns)))
            impossible[beyond] |= own[beyond] > BEYOND_SESSION * session_ns
    if not impossible.any():
        return layout, []
    bad, goes_on = long.of(np.flatnonzero(impossible)), goes_on[impossible]
    duration = layout.duration_ns.copy()
    duration[bad.at] = _replacements(layout, graph, bad, goes_on)
    nodes = layout.nodes
    return replace(layout, duration_ns=duration), [
        ImpossibleDuration(
            step=int(layout.steps[step]),
            rank=int(layout.ranks[dp, nodes.pp[node]]),
            op_type=layout.op_names[nodes.op[node]],
            recorded_s=float(layout.duration_ns[node, step, dp]) / NS_A_SECOND,
            taken_s=float(duration[node, step, dp]) / NS_A_SECOND,
        )
        for node, step, dp in zip(*(axis.tolist() for axis in bad.at), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Operations:
    """Some operations of a layout as arrays of shape (operations,)."""

    node: IntArray
    step: IntArray
    dp: IntArray

    @property
    def at(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return the operations' index into arrays of shape (nodes, steps, dp)."""
        return self.node, self.step, self.dp

    def of(self, chosen: IntArray) -> _Operations:
        """Return the operations at the given indices."""
        return _Operations(self.node[chosen], self.step[chosen], self.dp[chosen])


def _far_above(layout: Layout, step_ns: float) -> _Operations:
    """Return the operations far longer than the same node in other steps and on other DP ranks.

    `step_ns` is the approximate length of a step.
    """
    by_node = layout.duration_ns.reshape(len(layout.nodes), -1)
    mean = by_node.sum(axis=1) / by_node.shape[1]
    least_ns = WORTH_A_LOOK * step_ns
    rows = np.flatnonzero(by_node.max(axis=1) > np.maximum(_ABOVE_MEAN * mean, least_ns))
    values = layout.duration_ns[rows]
    usual = median(by_node[rows].T) if len(rows) else np.zeros(0)
    long = values > np.maximum(FAR_ABOVE * usual, least_ns)[:, None, None]
    if layout.missing is not None:
        long &= ~layout.missing[rows]
    row, step, dp = np.nonzero(long)
    return _Operations(rows[row], step, dp)


def _step_ns(layout: Layout) -> float:
    """Return the approximate length of a step, ns: the largest time between starts on a stage."""
    ends = []
    for stage in range(layout.pp):
        mine = layout.nodes.on(stage)
        if len(mine):
            launch = layout.launch[mine]
            ends += [mine[launch.argmin()], mine[launch.argmax()]]
    if not ends:
        return 0.0
    typical = median_of_rows(layout.start_ns[ends].reshape(len(ends), -1))
    return float((typical[1::2] - typical[::2]).max())


def _goes_on(layout: Layout, graph: Graph, long: _Operations) -> FloatArray:
    """Return the time from each operation's start to the next dependent start on its rank, ns.

    The time is infinite if no dependent start is recorded after the operation.
    """
    stage = layout.nodes.pp[long.node].astype(np.intp)
    began = layout.start_ns[long.at]
    after = np.full(len(began), np.inf)
    follower = _followers(layout, graph, long.node)[long.node]
    followed = np.flatnonzero(follower >= 0)
    later = (
        layout.start_ns[follower[followed], long.step[followed], long.dp[followed]]
        - began[followed]
    )
    after[followed] = np.where(later > 0, later, np.inf)
    for ends in (_step_ends(layout, stage, long), _next_begins(layout)[stage, long.step, long.dp]):
        later = ends - began
        np.minimum(after, np.where(later > 0, later, np.inf), out=after)
    return after


def _followers(layout: Layout, graph: Graph, chosen: IntArray) -> IntArray:
    """Return a node that depends on each node on the same stage; -1 if none certainly does.

    A computation depends on the previous computation and on its own receive. Of receives, only
    those among `chosen` are looked up.
    """
    follower = np.full(len(layout.nodes), -1)
    computes = layout.of_types(*COMPUTE)
    for stage in range(layout.pp):
        mine = np.flatnonzero(computes & (layout.nodes.pp == stage))
        mine = mine[np.argsort(layout.launch[mine], kind="stable")]
        follower[mine[:-1]] = mine[1:]
    receives = layout.of_types(*_RECEIVES)
    wanted, computing = set(chosen[receives[chosen]].tolist()), computes.tolist()
    for unit in graph.units if wanted else ():
        # A computation's unit has a single member.
        if computing[unit.members[0]]:
            for other in wanted.intersection(unit.after[0]):
                follower[other] = unit.members[0]
    return follower


def _step_ends(layout: Layout, stage: IntArray, long: _Operations) -> FloatArray:
    """Return when operations that end the step first start after each computation, ns.

    The time is infinite for other operations than computations, and if no such start is recorded.
    Operations that end the step are those of `_AFTER_COMPUTING`.
    """
    begins = np.full(len(stage), np.inf)
    ending = layout.of_types(*_AFTER_COMPUTING)
    computing = layout.of_types(*COMPUTE)[long.node]
    for own_stage in np.unique(stage[computing]).tolist():
        nodes = np.flatnonzero(ending & (layout.nodes.pp == own_stage))
        mine = np.flatnonzero(computing & (stage == own_stage))
        if len(nodes):
            starts = layout.start_ns[nodes[:, None], long.step[mine], long.dp[mine]]
            begins[mine] = starts.min(axis=0)
    return begins


def _next_begins(layout: Layout) -> FloatArray:
    """Return each worker's first computation start in the next step, shape (pp, steps, dp), ns.

    Times count from the begin of the current step. They are infinite in the last step, and if steps
    have no common clock.
    """
    begins = np.full((layout.pp, len(layout.steps), layout.dp), np.inf)
    since = np.diff(layout.begin_ns)
    if not since.any():
        return begins
    computes = layout.of_types(*COMPUTE)
    for stage in range(layout.pp):
        mine = np.flatnonzero(computes & (layout.nodes.pp == stage))
        if len(mine):
            first = mine[np.argmin(layout.launch[mine])]
            begins[stage, :-1] = layout.start_ns[first, 1:] + since[:, None]
    return begins


def _ends_alone(layout: Layout, graph: Graph, long: _Operations) -> NDArray[np.bool_]:
    """Return a mask of operations that end long after all others of their rank and their group.

    Ends of a group are compared after subtracting the usual difference between the clocks of its
    members.
    """
    alone = np.zeros(len(long.node), dtype=bool)
    ends = layout.start_ns + layout.duration_ns
    own_stage = layout.nodes.pp[long.node]
    for stage in np.unique(own_stage).tolist():
        mine = layout.nodes.on(stage)
        on_stage = np.flatnonzero(own_stage == stage)
        # Only operations that end last on their rank need the comparison, and few do.
        last = ends[mine].max(axis=0)
        some = long.of(on_stage)
        on_stage = on_stage[ends[some.at] >= last[some.step, some.dp]]
        some = long.of(on_stage)
        others = ends[mine[:, None], some.step, some.dp]
        others[mine[:, None] == some.node] = -np.inf
        own = layout.duration_ns[some.at]
        alone[on_stage] = ends[some.at] - others.max(axis=0, initial=-np.inf) > GOES_ON * own
    left = np.flatnonzero(alone)
    late = ends[long.of(left).at] - _ends_of_group(layout, graph, long.of(left))
    alone[left] = late > GOES_ON * layout.duration_ns[long.of(left).at]
    return alone


def _ends_of_group(layout: Layout, graph: Graph, some: _Operations) -> FloatArray:
    """Return each operation's end estimated from the ends of its group, by its own clock, ns.

    The end is NaN for operations without a group.
    """
    ends = np.full(len(some.node), np.nan)
    wanted = set(some.node.tolist())
    for unit in graph.units if wanted else ():
        for node in wanted.intersection(unit.members) if unit.communication else ():
            others = [other for other in unit.members if other != node]
            mine = np.flatnonzero(some.node == node)
            own = layout.start_ns[node] + layout.duration_ns[node]
            if others:
                theirs = median(layout.start_ns[others] + layout.duration_ns[others])
            elif unit.across_dp and layout.dp > 1:
                theirs = peers_median(own)
            else:
                continue
            usual = median((own - theirs).reshape(-1))
            ends[mine] = (theirs + usual)[some.step[mine], some.dp[mine]]
    return ends


def _replacements(
    layout: Layout, graph: Graph, bad: _Operations, goes_on: FloatArray
) -> FloatArray:
    """Return the durations that replace the impossible durations, shape (operations,), ns."""
    began = layout.start_ns[bad.at]
    by_group = _ends_of_group(layout, graph, bad) - began
    taken = np.empty(len(began))
    for index, (node, dp) in enumerate(zip(bad.node.tolist(), bad.dp.tolist(), strict=True)):
        believed = np.ones(layout.duration_ns.shape[1:], dtype=bool)
        of_node = bad.node == node
        believed[bad.step[of_node], bad.dp[of_node]] = False
        own = layout.duration_ns[node, believed[:, dp], dp]
        own = own if len(own) else layout.duration_ns[node][believed]
        taken[index] = median(own) if len(own) else 0.0
    local = layout.of_types(*LOCAL)[bad.node]
    taken = np.where(local | np.isnan(by_group), taken, by_group)
    return np.maximum(np.minimum(taken, goes_on), 0.0)


# A start at or before 0 is a recorder's fault (stray) if the median start of its step is more than
# this many steps later.
_STRAY: Final = 20
_COLUMNS: Final = (
    "rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns",
)  # fmt: skip


def without_unusable(trace: Trace) -> tuple[Trace, tuple[DroppedStep, ...]]:
    """Return the trace without steps that contain a negative duration or a stray start.

    Recorders write 0 for an unknown time (pytorch/kineto#109), and an operation ends before it
    starts if its clock is set back meanwhile. Without such steps the given trace is returned.

    Returns
    -------
    trace : Trace
    dropped : tuple of DroppedStep

    Raises
    ------
    UnanalyzableError
        ``trace.no_complete_step``: no step is left.
    """
    reasons = dict[int, str]()
    negative: list[int] = []
    if len(trace) and trace.duration_ns.min() < 0:
        negative = np.flatnonzero(trace.duration_ns < 0).tolist()
    for row in (*negative, *_stray(trace)):
        name, duration = trace.op_names[trace.op[row]], int(trace.duration_ns[row])
        reason = (
            f"of negative duration, {duration / 1e6:,.3f} ms"
            if duration < 0
            else f"at the time {int(trace.start_ns[row])}, far from the others"
        )
        reasons.setdefault(int(trace.step[row]), f"rank {trace.rank[row]} has a {name} {reason}")
    if not reasons:
        return trace, ()
    dropped = tuple(DroppedStep(step, reason) for step, reason in sorted(reasons.items()))
    kept = ~np.isin(trace.step, list(reasons))
    if not kept.any():
        raise no_complete_step(dropped)
    rest = replace(trace, **{name: getattr(trace, name)[kept] for name in _COLUMNS})
    return rest, dropped


def _stray(trace: Trace) -> list[int]:
    """Return the rows of operations that start at or before 0 although their step runs much later.

    Small starts are right if a clock begins at 0 with the session; the rest of the step then
    follows soon.
    """
    stretches = trace.stretches()
    if trace.step_relative or stretches.earliest_ns.min() > 0:
        return []
    suspected = np.flatnonzero(stretches.earliest_ns <= 0)
    # Median time from a step of a rank to the next step of the same rank
    first = stretches.first
    order = np.lexsort((trace.step[first], trace.rank[first]))
    rank = trace.rank[first][order]
    apart = np.diff(stretches.earliest_ns[order])[rank[1:] == rank[:-1]]
    usual_ns = float(np.median(np.abs(apart))) if len(apart) else 0.0
    rows: list[int] = []
    end = np.append(first[1:], len(trace))
    for stretch in suspected.tolist():
        inside = np.arange(first[stretch], end[stretch])
        starts = trace.start_ns[inside]
        gap = np.median(starts) - starts
        rows += inside[(starts <= 0) & (gap > _STRAY * usual_ns)].tolist()
    return rows
