"""Straggler metrics of a session (sections 3.3 to 6 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace import model as ops
from app.analysis.trace.model import Trace
from app.analysis.whatif.durations import FAULT_NS, Durations, own_durations
from app.analysis.whatif.graph import Graph, build_graph
from app.analysis.whatif.layout import FloatArray, Layout, lay_out
from app.analysis.whatif.replay import prepare
from app.analysis.whatif.variants import Keep, Simulator

NS: Final = 1e-9

# Share of the workers that M_W blames, of all (paper, equation 5).
WORST_SHARE: Final = 0.03
# Below this share of T there is too little lost time to attribute.
ATTRIBUTABLE: Final = 0.01
# Half of the lost time, for k50.
HALF: Final = 0.5
BOOTSTRAP_DRAWS: Final = 2_000

# Sends and receives of one direction carry the same bytes at the same time: one type.
MERGED_TYPES: Final = {
    ops.FORWARD_SEND: "forward-pp-comm",
    ops.FORWARD_RECV: "forward-pp-comm",
    ops.BACKWARD_SEND: "backward-pp-comm",
    ops.BACKWARD_RECV: "backward-pp-comm",
}


@dataclass(frozen=True, slots=True)
class Contribution:
    """Share of the lost time that a set of operations explains (M_W, M_S).

    `rem` idealizes only the set, `add` keeps only the set; None where there is too little lost
    time to attribute. `rem_s` and `add_s` are the mean step times behind them.
    """

    rem: float | None
    add: float | None
    rem_s: float
    add_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Metrics:
    """Everything that replay says about a session; times in seconds.

    Shapes: `*_s` of steps (steps,); `by_optype` maps a name to (steps,); `by_dp` (steps, dp);
    `by_pp` (steps, pp); `by_worker` (steps, dp, pp). The ``by_`` arrays are simulated step times
    with all but the named operations ideal.
    """

    recorded_s: FloatArray
    simulated_s: FloatArray
    ideal_s: FloatArray
    by_optype: dict[str, FloatArray]
    by_dp: FloatArray
    by_pp: FloatArray
    by_worker: FloatArray
    worst: tuple[tuple[int, int], ...]
    m_w: Contribution
    m_s: Contribution
    k50: int | None
    launch_by_optype: dict[str, float]
    clamped_delays: int

    @property
    def slowdown(self) -> float:
        """Return S, the job's slowdown (equation 1)."""
        return float(self.simulated_s.sum() / self.ideal_s.sum())

    @property
    def blamed(self) -> tuple[tuple[int, int], ...]:
        """Return the fewest of the worst workers that recover half of the lost time.

        All of the worst 3 % where even they do not.
        """
        return self.worst[: self.k50] if self.k50 is not None else self.worst

    @property
    def discrepancy(self) -> float:
        """Return how far the replay is from the recording, relative to the replay (section 6)."""
        return abs(float(self.recorded_s.mean() / self.simulated_s.mean()) - 1)

    @property
    def lost_s(self) -> float:
        """Return the time that a mean step loses."""
        return float(self.simulated_s.mean() - self.ideal_s.mean())

    def relative(self, simulated_s: FloatArray) -> FloatArray:
        """Return the slowdown of the mean step; steps are the first axis."""
        return np.asarray(simulated_s.mean(axis=0) / self.ideal_s.mean())

    def slowdown_interval(self) -> tuple[float, float]:
        """Return the 95 % bootstrap interval of S over the analyzed steps."""
        draws = np.random.default_rng(0).integers(
            len(self.simulated_s), size=(BOOTSTRAP_DRAWS, len(self.simulated_s))
        )
        ratios = self.simulated_s[draws].sum(axis=1) / self.ideal_s[draws].sum(axis=1)
        low, high = np.quantile(ratios, (0.025, 0.975))
        return float(low), float(high)


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A trace prepared for replay."""

    layout: Layout
    graph: Graph
    durations: Durations
    simulator: Simulator


def prepare_replay(trace: Trace) -> Replayed:
    """Lay a trace out, derive its dependencies and its ideal durations.

    Raises
    ------
    UnanalyzableError
        Where no replay can come from the trace; see `lay_out` and `build_graph`.
    """
    layout = lay_out(trace)
    graph = build_graph(layout)
    durations = own_durations(layout, graph)
    shortest = np.minimum(durations.recorded_ns.min(axis=(1, 2)), durations.ideal_ns)
    return Replayed(
        layout, graph, durations, Simulator(layout, durations, prepare(graph, shortest))
    )


def measure(replayed: Replayed) -> Metrics:
    """Replay a session in every variant that the metrics need."""
    layout, simulator = replayed.layout, replayed.simulator
    types = present_types(layout)
    merged = merge_types(types)
    stages = [_only_stage(layout, stage) for stage in range(layout.pp)]
    variants: list[Keep] = [
        simulator.keep(),
        *(simulator.keep(types=names) for names in merged.values()),
        *(simulator.keep(cells=cells) for cells in stages),
        simulator.keep(cells=~stages[-1]),
    ]
    times = simulator.step_times(variants) * NS
    simulated = times[0]
    by_optype = dict(zip(merged, times[1 : 1 + len(merged)], strict=True))
    by_pp = times[1 + len(merged) : -1]
    ideal = np.full(len(layout.steps), simulator.ideal_step_time() * NS)
    by_worker, by_dp = (array * NS for array in simulator.lone_lanes())

    lost = float(simulated.mean() - ideal.mean())
    attributable = lost >= ATTRIBUTABLE * simulated.mean()
    order = rank_workers(by_worker.mean(axis=0))
    worst = order[: int(np.ceil(WORST_SHARE * layout.dp * layout.pp))]
    kept = _cells(layout, worst)
    without, alone = (
        simulator.step_times([simulator.keep(cells=~kept), simulator.keep(cells=kept)]).mean(axis=1)
        * NS
    )
    delays, clamped = launch_delays(replayed)
    delayed = simulator.delayed_step_times(types, delays).mean(axis=1) * NS
    recorded = (layout.start_ns + layout.duration_ns).max(axis=(0, 2)) * NS
    late = (delayed - simulated.mean()) / recorded.mean()

    def share(rem_s: float, add_s: float) -> Contribution:
        if not attributable:
            return Contribution(None, None, rem_s, add_s)
        return Contribution(
            (float(simulated.mean()) - rem_s) / lost,
            (add_s - float(ideal.mean())) / lost,
            rem_s,
            add_s,
        )

    m_s = share(float(times[-1].mean()), float(by_pp[-1].mean()))
    if layout.pp == 1:  # with one stage there is no last one to blame (paper, section 5.2)
        m_s = Contribution(0.0, 0.0, m_s.rem_s, m_s.add_s)
    return Metrics(
        recorded_s=recorded,
        simulated_s=simulated,
        ideal_s=ideal,
        by_optype=by_optype,
        by_dp=by_dp,
        by_pp=by_pp.T,
        by_worker=by_worker,
        worst=worst,
        m_w=share(float(without), float(alone)),
        m_s=m_s,
        k50=_fewest_for_half(simulator, order, float(simulated.mean()), lost)
        if attributable
        else None,
        launch_by_optype=dict(zip(types, late.tolist(), strict=True)),
        clamped_delays=clamped,
    )


def present_types(layout: Layout) -> list[str]:
    """Return the names of the op types that a layout holds."""
    return [layout.op_names[code] for code in np.unique(layout.nodes.op)]


def merge_types(types: Sequence[str]) -> dict[str, list[str]]:
    """Group op types under the names that they are reported by."""
    merged: dict[str, list[str]] = {}
    for name in types:
        merged.setdefault(MERGED_TYPES.get(name, name), []).append(name)
    return merged


def rank_workers(by_worker: FloatArray) -> tuple[tuple[int, int], ...]:
    """Sort (DP rank, stage) by slowdown, worst first; of equals the lower DP rank, then stage."""
    order = np.argsort(-by_worker.ravel(), kind="stable")
    return tuple((int(i // by_worker.shape[1]), int(i % by_worker.shape[1])) for i in order)


def launch_delays(replayed: Replayed) -> tuple[FloatArray, int]:
    """Return how late each operation was launched after all that it depends on.

    Returns
    -------
    delays : float64 array, shape (nodes, steps, dp)
        Nanoseconds. Slightly negative values are clock noise and kept.
    clamped : int
        Delays at fault (-10 ms or less) that count as 0.
    """
    layout = replayed.layout
    delays = layout.start_ns.copy()
    for unit in replayed.graph.units:
        for node, after in zip(unit.members, unit.after, strict=True):
            if after:
                latest = layout.start_ns[after[0]] + layout.duration_ns[after[0]]
                for other in after[1:]:
                    np.maximum(
                        latest, layout.start_ns[other] + layout.duration_ns[other], out=latest
                    )
                delays[node] -= latest
    faulty = delays <= FAULT_NS
    clamped = int(faulty.sum())
    if clamped:
        delays[faulty] = 0.0
    return delays, clamped


def _fewest_for_half(
    simulator: Simulator, order: Sequence[tuple[int, int]], simulated_s: float, lost_s: float
) -> int | None:
    """Return how few of the worst workers, idealized, recover half of the lost time.

    More workers idealized recover more but for noise, so the count is bisected.
    """

    def recovers_half(count: int) -> bool:
        kept = ~_cells(simulator.layout, order[:count])
        time_s = float(simulator.step_times([simulator.keep(cells=kept)]).mean()) * NS
        return simulated_s - time_s >= HALF * lost_s

    high = 1
    while not recovers_half(high):
        if high == len(order):
            return None
        high = min(2 * high, len(order))
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if recovers_half(middle):
            high = middle
        else:
            low = middle
    return high


def _cells(layout: Layout, workers: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    cells = np.zeros((layout.dp, layout.pp), dtype=bool)
    for dp, pp in workers:
        cells[dp, pp] = True
    return cells


def _only_stage(layout: Layout, stage: int) -> NDArray[np.bool_]:
    cells = np.zeros((layout.dp, layout.pp), dtype=bool)
    cells[:, stage] = True
    return cells
