"""Recorded times that cannot be: durations are corrected, steps with other ones left out.

Device profilers record some kernels with durations of hours or years (CUPTI, see
facebookresearch/HolisticTraceAnalysis#325), recorders write 0 for an unknown time
(pytorch/kineto#109). A duration is impossible where it is far above that of its peers and its
rank starts an operation that depends on it in its first half.
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

# ---- Durations that cannot be: what follows on the same rank starts long before they could have en
#
# Profilers of devices record some kernels with durations of hours or years (CUPTI does, see
# facebookresearch/HolisticTraceAnalysis#325). One of them decides every mean. It shows: the
# duration is far above that of the same operation in other steps and on other DP ranks, and the
# rank goes on in the first half of it, with an operation that waits for this one. Operations that
# only may run at once, as communication and computation do, are no sign.
#
# Such an operation ends when the others of its group do; a computation takes what it usually takes
# on its rank, and no longer than until the rank goes on.


IntArray = NDArray[np.intp]

# A duration below this many times the usual one of its operation is believed.
FAR_ABOVE: Final = 4.0
# The rank goes on before this share of the duration has passed.
GOES_ON: Final = 0.5
# Shorter ones, as shares of a step, change nothing that is told.
WORTH_A_LOOK: Final = 0.02
# Without anything that follows, a duration is impossible from this many times the session on.
BEYOND_SESSION: Final = 100.0
# A row whose longest value is below this many times its mean has none that is far above.
_ABOVE_MEAN: Final = 2.0
NS_A_SECOND: Final = 1e9

# What ends a step waits for all computations of it.
_AFTER_COMPUTING: Final = (
    ops.LAYERNORM_ALL_REDUCE,
    ops.EMBEDDING_ALL_REDUCE,
    ops.OPTIMIZER_CLIP,
    ops.OPTIMIZER,
)
_RECEIVES: Final = (ops.FORWARD_RECV, ops.BACKWARD_RECV)


@dataclass(frozen=True, slots=True)
class ImpossibleDuration:
    """An operation whose recorded duration is not believed."""

    step: int
    """Its training step."""
    rank: int
    """The global rank that recorded it."""
    op_type: str
    """Its type."""
    recorded_s: float
    """The duration that was recorded, seconds."""
    taken_s: float
    """The one that it counts with."""


def without_impossible(
    layouts: Sequence[Layout], graphs: Sequence[Graph]
) -> tuple[list[Layout], tuple[ImpossibleDuration, ...]]:
    """Repair durations that cannot be; layouts without any stay the same objects."""
    mended = [_mended(*pair) for pair in zip(layouts, graphs, strict=True)]
    found = sorted(
        (one for _, some in mended for one in some), key=lambda one: (one.step, one.rank)
    )
    return [layout for layout, _ in mended], tuple(found)


def _mended(layout: Layout, graph: Graph) -> tuple[Layout, list[ImpossibleDuration]]:
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
        # looked at last: it takes as long as all the rest
        beyond = unfollowed[own[unfollowed] > BEYOND_SESSION * len(layout.steps) * step_ns]
        if len(beyond):
            impossible[beyond] |= own[beyond] > BEYOND_SESSION * _session_ns(layout)
    if not impossible.any():
        return layout, []
    bad, goes_on = long.of(np.flatnonzero(impossible)), goes_on[impossible]
    duration = layout.duration_ns.copy()
    duration[bad.at] = _taken(layout, graph, bad, goes_on)
    return replace(layout, duration_ns=duration), _named(layout, duration, bad)


@dataclass(frozen=True, slots=True)
class _Operations:
    """Some operations of a layout, arrays of shape (operations,)."""

    node: IntArray
    step: IntArray
    dp: IntArray

    @property
    def at(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return the index of these in arrays of shape (nodes, steps, dp)."""
        return self.node, self.step, self.dp

    def of(self, chosen: IntArray) -> _Operations:
        """Return some of them."""
        return _Operations(self.node[chosen], self.step[chosen], self.dp[chosen])


def _far_above(layout: Layout, step_ns: float) -> _Operations:
    """Return the operations that take far longer than the same one elsewhere and at other times.

    `step_ns` is about how long a step is.
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
    """Return about how long a step is: from the first start on a stage to the last one."""
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
    """Return how long after each one's start its rank goes on with what waits for it.

    Infinite where nothing tells. What started before the operation did not wait for it.
    """
    stage = layout.nodes.pp[long.node].astype(np.intp)
    began = layout.start_ns[long.at]
    after = np.full(len(began), np.inf)
    follower = _followers(layout, graph, long.node)[long.node]
    known = np.flatnonzero(follower >= 0)
    later = layout.start_ns[follower[known], long.step[known], long.dp[known]] - began[known]
    after[known] = np.where(later > 0, later, np.inf)
    for ends in (_step_ends(layout, stage, long), _next_begins(layout)[stage, long.step, long.dp]):
        later = ends - began
        np.minimum(after, np.where(later > 0, later, np.inf), out=after)
    return after


def _followers(layout: Layout, graph: Graph, asked: IntArray) -> IntArray:
    """Return the node on the same stage that waits for each, -1 where none surely does.

    Computations run one after another, and one waits for what it receives; of receives only those
    are looked at that are asked for.
    """
    follower = np.full(len(layout.nodes), -1)
    computes = layout.of_types(*COMPUTE)
    for stage in range(layout.pp):
        mine = np.flatnonzero(computes & (layout.nodes.pp == stage))
        mine = mine[np.argsort(layout.launch[mine], kind="stable")]
        follower[mine[:-1]] = mine[1:]
    receives = layout.of_types(*_RECEIVES)
    wanted, computing = set(asked[receives[asked]].tolist()), computes.tolist()
    for unit in graph.units if wanted else ():
        # a computation is a unit of its own
        if computing[unit.members[0]]:
            for other in wanted.intersection(unit.after[0]):
                follower[other] = unit.members[0]
    return follower


def _step_ends(layout: Layout, stage: IntArray, long: _Operations) -> FloatArray:
    """Return when the ends of their steps begin, of computations; infinite where nothing tells."""
    begins = np.full(len(stage), np.inf)
    ending = layout.of_types(*_AFTER_COMPUTING)
    computing = layout.of_types(*COMPUTE)[long.node]
    for one in np.unique(stage[computing]).tolist():
        nodes = np.flatnonzero(ending & (layout.nodes.pp == one))
        mine = np.flatnonzero(computing & (stage == one))
        if len(nodes):
            starts = layout.start_ns[nodes[:, None], long.step[mine], long.dp[mine]]
            begins[mine] = starts.min(axis=0)
    return begins


def _next_begins(layout: Layout) -> FloatArray:
    """Return when each worker's first computation of the next step begins, (pp, steps, dp).

    On the clock of the step; infinite where there is none, or times count from each step's begin.
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
    """Return which communications end long after all else of their rank, and their own group.

    What ends together shows the clocks of several ranks: their usual difference is taken off.
    """
    alone = np.zeros(len(long.node), dtype=bool)
    ends = layout.start_ns + layout.duration_ns
    own_stage = layout.nodes.pp[long.node]
    for stage in np.unique(own_stage).tolist():
        mine = layout.nodes.on(stage)
        here = np.flatnonzero(own_stage == stage)
        # few end last of their rank
        last = ends[mine].max(axis=0)
        some = long.of(here)
        here = here[ends[some.at] >= last[some.step, some.dp]]
        some = long.of(here)
        others = ends[mine[:, None], some.step, some.dp]
        others[mine[:, None] == some.node] = -np.inf
        own = layout.duration_ns[some.at]
        alone[here] = ends[some.at] - others.max(axis=0, initial=-np.inf) > GOES_ON * own
    left = np.flatnonzero(alone)
    late = ends[long.of(left).at] - _ends_of_group(layout, graph, long.of(left))
    alone[left] = late > GOES_ON * layout.duration_ns[long.of(left).at]
    return alone


def _ends_of_group(layout: Layout, graph: Graph, some: _Operations) -> FloatArray:
    """Return when the others of each one's group say that it ended, on its own clock.

    NaN of what has no group.
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


def _session_ns(layout: Layout) -> float:
    """Return about how long the steps of a layout take, all of them."""
    step_ns = float(median((layout.start_ns + layout.duration_ns).max(axis=(0, 2))))
    return max(step_ns * len(layout.steps), float(np.ptp(layout.begin_ns)))


def _taken(layout: Layout, graph: Graph, bad: _Operations, goes_on: FloatArray) -> FloatArray:
    """Return the durations that operations count with instead of their own."""
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


def _named(layout: Layout, taken_ns: FloatArray, bad: _Operations) -> list[ImpossibleDuration]:
    nodes = layout.nodes
    return [
        ImpossibleDuration(
            step=int(layout.steps[step]),
            rank=int(layout.ranks[dp, nodes.pp[node]]),
            op_type=layout.op_names[nodes.op[node]],
            recorded_s=float(layout.duration_ns[node, step, dp]) / NS_A_SECOND,
            taken_s=float(taken_ns[node, step, dp]) / NS_A_SECOND,
        )
        for node, step, dp in zip(*(axis.tolist() for axis in bad.at), strict=True)
    ]


# ---- Steps of which an operation was recorded with times that cannot be; they are left out by name
#
# Recorders write a time of 0 where they know none (pytorch/kineto#109), and clocks that are set
# back make an operation end before it starts. What else such a step holds may be right, but no
# replay of it has all operations.


# A step lasts at most this many times as long as the others before its first start.
_STRAY: Final = 20
_COLUMNS: Final = (
    "rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns",
)  # fmt: skip


def without_unusable(trace: Trace) -> tuple[Trace, tuple[DroppedStep, ...]]:
    """Return the trace without the steps whose times cannot be, and which these are and why.

    The same object where all can be.

    Raises
    ------
    UnanalyzableError
        ``trace.no_complete_step`` where that is all of them.
    """
    reasons = dict[int, str]()
    for row in (*_negative(trace), *_stray(trace)):
        reasons.setdefault(int(trace.step[row]), _reason(trace, row))
    if not reasons:
        return trace, ()
    dropped = tuple(DroppedStep(step, reason) for step, reason in sorted(reasons.items()))
    kept = ~np.isin(trace.step, list(reasons))
    if not kept.any():
        raise no_complete_step(dropped)
    rest = replace(trace, **{name: getattr(trace, name)[kept] for name in _COLUMNS})
    return rest, dropped


def _negative(trace: Trace) -> list[int]:
    if len(trace) == 0 or trace.duration_ns.min() >= 0:
        return []
    return np.flatnonzero(trace.duration_ns < 0).tolist()


def _stray(trace: Trace) -> list[int]:
    """Return operations at or before 0 in a session that runs much later.

    A clock that begins with the session may show 0, but then the rest of the step follows soon.
    """
    stretches = trace.stretches()
    if trace.step_relative or stretches.earliest_ns.min() > 0:
        return []
    suspected = np.flatnonzero(stretches.earliest_ns <= 0)
    usual_ns = _usual_step_ns(trace, stretches.earliest_ns)
    rows: list[int] = []
    end = np.append(stretches.first[1:], len(trace))
    for one in suspected.tolist():
        inside = np.arange(stretches.first[one], end[one])
        starts = trace.start_ns[inside]
        gap = np.median(starts) - starts
        rows += inside[(starts <= 0) & (gap > _STRAY * usual_ns)].tolist()
    return rows


def _usual_step_ns(trace: Trace, earliest_ns: NDArray[np.int64]) -> float:
    """Return about how far apart the steps of a rank begin."""
    first = trace.stretches().first
    order = np.lexsort((trace.step[first], trace.rank[first]))
    rank = trace.rank[first][order]
    apart = np.diff(earliest_ns[order])[rank[1:] == rank[:-1]]
    return float(np.median(np.abs(apart))) if len(apart) else 0.0


def _reason(trace: Trace, row: int) -> str:
    name, rank = trace.op_names[trace.op[row]], trace.rank[row]
    duration = int(trace.duration_ns[row])
    if duration < 0:
        return f"rank {rank} has a {name} of negative duration, {duration / 1e6:,.3f} ms"
    return f"rank {rank} has a {name} at the time {int(trace.start_ns[row])}, far from the others"
