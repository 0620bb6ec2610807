"""Straggler metrics of a session: S, S_t, S_w, M_W, M_S, and launch delays by op type.

Source: sections 3.3 to 6 of "Understanding Stragglers in Large Model Training Using What-if
Analysis", which this module calls "the paper". Its section 5.3 correlates forward and backward
times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.engine.simulator import Keep
from app.analysis.replay.host_delays import kept_delays
from app.analysis.replay.layout.dense import MAX_NAMED_FAULTS, FloatArray
from app.analysis.replay.robust_statistics import mean, peers_median
from app.analysis.replay.session import Replayed, ShapeGroup, filled_ns, recorded_step_times
from app.analysis.trace import model as ops
from app.errors import Fault, UnanalyzableError

NS: Final = 1e-9

# Smallest slowdown of a straggling job (paper, section 4).
STRAGGLING: Final = 1.1

# M_W is computed from this share of all workers, which are the slowest (paper, equation 5).
WORST_SHARE: Final = 0.03
# Smallest share of the step time T that must be lost for the loss to be attributed to operations.
ATTRIBUTABLE: Final = 0.01
# k50 is the number of slowest workers that recover this share of the lost time if they are ideal.
HALF: Final = 0.5
# Number of worker counts that each replay of the search for k50 tests, after the first guesses.
COUNTS_A_REPLAY: Final = 4

# Sends and receives of a direction transfer the same bytes at the same time, so they are reported
# as one type.
MERGED_TYPES: Final = {
    ops.FORWARD_SEND: "forward-pp-comm",
    ops.FORWARD_RECV: "forward-pp-comm",
    ops.BACKWARD_SEND: "backward-pp-comm",
    ops.BACKWARD_RECV: "backward-pp-comm",
}


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """Step times from which the share of lost time of a set of operations is computed."""

    removed_s: FloatArray  # (steps,): with only the set ideal
    kept_s: FloatArray  # (steps,): with all but the set ideal


@dataclass(frozen=True, slots=True, eq=False)
class Metrics:
    """Straggler metrics of a session from replays; times in seconds.

    Arrays ending in `_s` have the shape (steps,). `by_optype` maps a name to an array (steps,);
    `by_dp` has the shape (steps, dp), `by_pp` (steps, pp), and `by_worker` (steps, dp, pp). The
    ``by_`` arrays are simulated step times with all but the named operations ideal (T^-t, T^-w of
    the paper).
    """

    recorded_s: FloatArray
    simulated_s: FloatArray
    ideal_s: FloatArray
    by_optype: dict[str, FloatArray]
    by_dp: FloatArray
    by_pp: FloatArray
    by_worker: FloatArray
    ranked: tuple[tuple[int, int], ...]  # all workers, (DP rank, stage), the slowest first
    worst: tuple[tuple[int, int], ...]
    worst_workers: Contribution
    # The same for the slowest workers by the paper's approximation of S_w.
    published_worst: tuple[tuple[int, int], ...]
    published_worst_workers: Contribution
    last_stage: Contribution
    k50: int | None
    launch_by_optype: dict[str, float]
    clamped_delays: int
    # Means over steps, stored because nearly all other figures are relative to them.
    recorded_step_s: float = field(init=False)
    simulated_step_s: float = field(init=False)
    ideal_step_s: float = field(init=False)

    def __post_init__(self) -> None:
        for name, times_s in (
            ("recorded_step_s", self.recorded_s),
            ("simulated_step_s", self.simulated_s),
            ("ideal_step_s", self.ideal_s),
        ):
            object.__setattr__(self, name, float(mean(times_s)))

    @property
    def slowdown(self) -> float:
        """Return S, the job's slowdown (equation 1)."""
        return float(self.simulated_s.sum() / self.ideal_s.sum())

    @property
    def blamed(self) -> tuple[tuple[int, int], ...]:
        """Return the k50 slowest workers, which recover half of the lost time if they are ideal.

        If no number of workers recovers half of the lost time, return the slowest 3 % of the
        workers.
        """
        return self.worst[: self.k50] if self.k50 is not None else self.worst

    @property
    def discrepancy(self) -> float:
        """Return the relative difference between recorded and replayed step time (section 6)."""
        return abs(self.recorded_step_s / self.simulated_step_s - 1)

    @property
    def lost_s(self) -> float:
        """Return the difference between simulated and ideal time of the mean step, seconds."""
        return self.simulated_step_s - self.ideal_step_s

    @property
    def attributable(self) -> bool:
        """Return whether enough time is lost for attribution to operations."""
        return self.lost_s >= ATTRIBUTABLE * self.simulated_step_s

    @property
    def m_w(self) -> float | None:
        """Return M_W, the share of lost time due to the slowest 3 % of the workers (equation 5).

        Workers are ranked by their exact slowdown. None if too little time is lost to be
        attributed.
        """
        return self.removal(self.worst_workers)

    @property
    def published_m_w(self) -> float | None:
        """Return M_W as the paper computes it: workers are ranked by `approximate_slowdowns`."""
        return self.removal(self.published_worst_workers)

    @property
    def m_s(self) -> float | None:
        """Return M_S, the share of lost time due to the last stage (section 5.2); 0 with one stage.

        None if too little time is lost to be attributed.
        """
        return self.removal(self.last_stage) if self.by_pp.shape[1] > 1 else 0.0

    def removal(self, contribution: Contribution) -> float | None:
        """Return the share of the lost time that is recovered if the set of operations is ideal."""
        if not self.attributable:
            return None
        return (self.simulated_step_s - float(mean(contribution.removed_s))) / self.lost_s

    def addition(self, contribution: Contribution) -> float | None:
        """Return the share of the lost time that remains if all other operations are ideal."""
        if not self.attributable:
            return None
        return (float(mean(contribution.kept_s)) - self.ideal_step_s) / self.lost_s

    @property
    def worker_slowdowns(self) -> FloatArray:
        """Return S_w, the slowdown due to each worker alone, shape (dp, pp) (equation 4)."""
        return self.relative(self.by_worker)

    @property
    def approximate_slowdowns(self) -> FloatArray:
        """Return the paper's approximation of S_w, min(S_dp, S_pp), shape (dp, pp)."""
        return approximate_workers(self.relative(self.by_dp), self.relative(self.by_pp))

    def relative(self, simulated_s: FloatArray) -> FloatArray:
        """Return the ratio of simulated to ideal time of the mean step; axis 0 has the steps.

        For the step times with only op type t as recorded the ratio is S_t (equation 3), and for
        those with only worker w as recorded it is S_w (equation 4).
        """
        return np.asarray(mean(simulated_s) / self.ideal_step_s)


def measure(replayed: Replayed) -> Metrics:
    """Return the metrics of a session, computed from replays of all variants that they need.

    Raises
    ------
    UnanalyzableError
        ``trace.no_time``: a step takes no time, so that no ratio can be computed.
    """
    dp, pp = replayed.layout.dp, replayed.layout.pp
    merged = merge_types(present_types(replayed))
    stages = [_cells(dp, pp, [(d, stage) for d in range(dp)]) for stage in range(pp)]
    every = np.ones((dp, pp), dtype=bool)

    def variants(group: ShapeGroup) -> FloatArray:
        simulator = group.simulator
        keeps: list[Keep] = [
            simulator.keep(),
            simulator.keep(cells=~stages[-1]),
            *(simulator.keep(cells=every, types=names) for names in merged.values()),
            *(simulator.keep(cells=cells) for cells in stages),
        ]
        return simulator.step_times(keeps).T * NS

    times = replayed.over_steps(variants)
    ideal = replayed.over_steps(lambda group: group.simulator.ideal_step_times() * NS)
    simulated, without_last = times[:, 0], times[:, 1]
    by_optype = dict(zip(merged, times[:, 2 : 2 + len(merged)].T, strict=True))
    by_pp = times[:, 2 + len(merged) :]

    def worker_step_times(group: ShapeGroup) -> FloatArray:
        workers, whole_ranks = group.simulator.worker_step_times()
        return np.concatenate([workers, whole_ranks[:, :, None]], axis=2) * NS

    lanes = replayed.over_steps(worker_step_times)
    by_worker, by_dp = lanes[:, :, :-1], lanes[:, :, -1]
    of_mean_step = mean(by_worker)
    order = rank_workers(of_mean_step)
    worst = order[: int(np.ceil(WORST_SHARE * dp * pp))]
    approximate = approximate_workers(mean(by_dp), mean(by_pp))
    published_worst = rank_workers(approximate)[: len(worst)]
    search = _Removals(replayed, order)
    # First guesses of k50: a single worker, and all workers at least half as slow as the slowest
    # worker
    excess_s = of_mean_step - float(mean(ideal))
    apart = int(np.count_nonzero(excess_s >= HALF * excess_s.max()))
    search.replay([len(worst), 1, max(1, apart - 1), apart], keep=worst)
    worst_workers = Contribution(search.times_s[len(worst)], search.kept_s)
    recorded = replayed.over_steps(recorded_step_times) * NS
    _require_time(replayed, {"recorded": recorded, "replayed": simulated, "ideal": ideal})
    launch_by_optype, clamped = _launch_shares(replayed, merged, simulated, recorded)
    lost_s = float(mean(simulated)) - float(mean(ideal))
    attributable = lost_s >= ATTRIBUTABLE * float(mean(simulated))
    return Metrics(
        recorded_s=recorded,
        simulated_s=simulated,
        ideal_s=ideal,
        by_optype=by_optype,
        by_dp=by_dp,
        by_pp=by_pp,
        by_worker=by_worker,
        ranked=order,
        worst=worst,
        worst_workers=worst_workers,
        published_worst=published_worst,
        published_worst_workers=worst_workers
        if set(published_worst) == set(worst)
        else _contribution(replayed, published_worst),
        last_stage=Contribution(without_last, by_pp[:, -1]),
        k50=_fewest_for_half(search, simulated, lost_s) if attributable else None,
        launch_by_optype=launch_by_optype,
        clamped_delays=clamped,
    )


def _require_time(replayed: Replayed, times_s: Mapping[str, FloatArray]) -> None:
    """Raise ``trace.no_time`` if a step takes no time."""
    faults = [
        Fault("no_time", f"Step {step}: {time_s * 1e9:.0f} ns {kind}")
        for kind, values in times_s.items()
        for step, time_s in zip(replayed.steps.tolist(), values.tolist(), strict=True)
        if not time_s > 0
    ]
    if faults:
        raise UnanalyzableError(
            "Operations take no time: steps last 0 ns or less",
            code="trace.no_time",
            faults=tuple(faults[:MAX_NAMED_FAULTS]),
        )


def present_types(replayed: Replayed) -> list[str]:
    """Return the names of the op types that are replayed, in the order of their codes."""
    codes = np.unique(np.concatenate([group.layout.nodes.op for group in replayed.groups]))
    return [replayed.layout.op_names[code] for code in codes]


def merge_types(types: Sequence[str]) -> dict[str, list[str]]:
    """Return the op types grouped by the name under which they are reported."""
    merged: dict[str, list[str]] = {}
    for name in types:
        merged.setdefault(MERGED_TYPES.get(name, name), []).append(name)
    return merged


def rank_workers(by_worker: FloatArray) -> tuple[tuple[int, int], ...]:
    """Return workers (DP rank, stage) by slowdown, slowest first; ties in ascending order."""
    order = np.argsort(-by_worker.ravel(), kind="stable")
    return tuple((int(i // by_worker.shape[1]), int(i % by_worker.shape[1])) for i in order)


def approximate_workers(by_dp: FloatArray, by_pp: FloatArray) -> FloatArray:
    """Return the smaller value of each worker's DP rank and stage, shape (dp, pp).

    So the paper approximates S_w, since it replays whole DP ranks and stages only (section 5.1).
    """
    return np.minimum(by_dp[:, None], by_pp[None, :])


def _contribution(replayed: Replayed, workers: Sequence[tuple[int, int]]) -> Contribution:
    """Return the step times with only these workers ideal, and with all but these ideal."""
    cells = _cells(replayed.layout.dp, replayed.layout.pp, workers)

    def variants(group: ShapeGroup) -> FloatArray:
        keeps = [group.simulator.keep(cells=chosen) for chosen in (~cells, cells)]
        return group.simulator.step_times(keeps).T * NS

    return Contribution(*replayed.over_steps(variants).T)


def _launch_shares(
    replayed: Replayed,
    merged: Mapping[str, Sequence[str]],
    simulated_s: FloatArray,
    recorded_s: FloatArray,
) -> tuple[dict[str, float], int]:
    """Return the share of recorded step time that late launches of each op type add.

    Also return the number of faulty delays that count as 0; see `launch_delays`.
    """
    clamped = 0

    def delayed(group: ShapeGroup) -> FloatArray:
        nonlocal clamped
        delays, faulty = kept_delays(group)
        clamped += faulty
        return group.simulator.delayed_step_times(list(merged.values()), delays).T * NS

    times = replayed.over_steps(delayed)
    shares = (mean(times) - float(mean(simulated_s))) / float(mean(recorded_s))
    return dict(zip(merged, shares.tolist(), strict=True)), clamped


@dataclass(slots=True)
class _Removals:
    """Step times with the n slowest workers ideal, by n; each n is replayed at most once."""

    replayed: Replayed
    order: Sequence[tuple[int, int]]
    times_s: dict[int, FloatArray] = field(default_factory=dict)
    # Step times with all workers ideal, except the workers that `replay` keeps as recorded
    kept_s: FloatArray = field(default_factory=lambda: np.empty(0))

    def replay(self, counts: Sequence[int], keep: Sequence[tuple[int, int]] = ()) -> None:
        """Replay each new number of slowest workers being ideal; all numbers share a call."""
        dp, pp = self.replayed.layout.dp, self.replayed.layout.pp
        wanted = sorted({min(n, len(self.order)) for n in counts} - set(self.times_s))
        cells = [~_cells(dp, pp, self.order[:count]) for count in wanted]
        if keep:
            cells.append(_cells(dp, pp, keep))
        if not cells:
            return
        times = self.replayed.over_steps(
            lambda group: (
                group.simulator.step_times([group.simulator.keep(cells=c) for c in cells]).T * NS
            )
        )
        self.times_s.update(zip(wanted, times.T, strict=False))
        if keep:
            self.kept_s = times[:, -1]


def _fewest_for_half(removals: _Removals, simulated_s: FloatArray, lost_s: float) -> int | None:
    """Return k50: the smallest number of slowest workers that, made ideal, recover half the loss.

    More ideal workers recover more, except for noise. So this is a search between a number that
    does not suffice and a number that does, and each replay tests several numbers. Return None if
    even all workers do not suffice.
    """

    def recovers_half(count: int) -> bool:
        return float(mean(simulated_s)) - float(mean(removals.times_s[count])) >= HALF * lost_s

    low, high = 0, len(removals.order)
    while True:
        replayed = sorted(count for count in removals.times_s if low < count < high)
        high = min((count for count in replayed if recovers_half(count)), default=high)
        low = max((count for count in replayed if count < high), default=low)
        if high - low <= 1:
            break
        counts = np.linspace(low, high, COUNTS_A_REPLAY + 2).astype(int).tolist()
        removals.replay([count for count in counts if low < count < high])
    removals.replay([high])
    return high if recovers_half(high) else None


def _cells(dp: int, pp: int, workers: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    cells = np.zeros((dp, pp), dtype=bool)
    for dp_rank, stage in workers:
        cells[dp_rank, stage] = True
    return cells


MIN_POINTS: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBackward:
    """Forward and backward times of the same microbatches, shape (points,), seconds.

    `pearson` is None if all forward or all backward times are equal, or with fewer than three
    points.
    """

    stage: int
    forward_s: FloatArray
    backward_s: FloatArray
    pearson: float | None


def forward_backward(replayed: Replayed) -> ForwardBackward:
    """Return the correlation of forward and backward time over microbatches (paper, section 5.3).

    Stage 1 is used, because it computes neither the embedding nor (with more than two stages) the
    loss. With a single stage, stage 0 is used, without its first model chunk if it has several.
    """
    stage = min(1, replayed.layout.pp - 1)
    times = [_microbatch_times(group, stage) for group in replayed.groups]
    forward = np.concatenate([pair[0] for pair in times])
    backward = np.concatenate([pair[1] for pair in times])
    varies = len(forward) >= MIN_POINTS and forward.std() > 0 and backward.std() > 0
    return ForwardBackward(
        stage, forward, backward, float(np.corrcoef(forward, backward)[0, 1]) if varies else None
    )


def _microbatch_times(group: ShapeGroup, stage: int) -> tuple[FloatArray, FloatArray]:
    """Return forward and backward times of each microbatch on a stage, shape (points,), seconds."""
    layout, nodes = group.layout, group.layout.nodes
    forward_code, backward_code = layout.codes(ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE)
    on_stage = nodes.pp == stage
    chunks = nodes.mc[on_stage & (nodes.op == forward_code)]
    if stage == 0 and len(np.unique(chunks)) > 1:
        on_stage &= nodes.mc != chunks.min()
    pairs: list[tuple[int, int]] = []
    forwards = {}
    for code in (forward_code, backward_code):
        for position, node in enumerate(np.flatnonzero(on_stage & (nodes.op == code)).tolist()):
            mb = int(nodes.mb[node])
            key = (int(nodes.mc[node]), mb if mb != ops.ABSENT else position)
            if code == forward_code:
                forwards[key] = node
            elif key in forwards:
                pairs.append((forwards[key], node))
    recorded = group.durations.recorded_ns
    forward, backward = recorded[[f for f, _ in pairs]], recorded[[b for _, b in pairs]]
    if layout.padding is not None:
        ran = ~layout.padding.where()[[f for f, _ in pairs]]
        forward, backward = forward[ran], backward[ran]
    return forward.ravel() * NS, backward.ravel() * NS


def compute_ratios(replayed: Replayed) -> tuple[FloatArray, FloatArray]:
    """Return the ratio of each worker's mean forward and backward time to its peers' median.

    Peers are the other DP ranks of the same stage. Arrays have the shape (dp, pp), with NaN if a
    worker has no peers.
    """
    dp, pp = replayed.layout.dp, replayed.layout.pp
    ratios = []
    for code in replayed.layout.codes(ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE):
        ratio = np.full((pp, dp), np.nan)
        mean = np.array([_mean_times(replayed, code, stage) for stage in range(pp)])
        peers = peers_median(mean)
        np.divide(mean, peers, out=ratio, where=(peers > 0) & (dp > 1))
        ratios.append(ratio.T)
    return ratios[0], ratios[1]


def _mean_times(replayed: Replayed, code: int, stage: int) -> FloatArray:
    """Return the mean duration of an op type on each DP rank of a stage, shape (dp,), ns."""
    total, count = np.zeros(replayed.layout.dp), 0
    for group in replayed.groups:
        chosen = group.layout.nodes.of(code, stage)
        if len(chosen):
            # Nodes are sorted by type and stage, so a slice selects them without a copy.
            own = filled_ns(group)[chosen[0] : chosen[-1] + 1]
            total += own.sum(axis=(0, 1))
            count += len(chosen) * len(group.layout.steps)
    return total / max(count, 1)
