"""Host overhead: hosts launch computations more slowly than devices run them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy
from app.analysis.diagnosis.finding import (
    Cause,
    Change,
    Evidence,
    Finding,
    HeldLaunches,
    Launches,
    Uncertainty,
)
from app.analysis.diagnosis.locations import (
    Hosts,
    JobFacts,
    RegionView,
    View,
    Where,
    Worker,
    WorkerView,
)
from app.analysis.diagnosis.observation import COMPUTATIONS, Observation, healthy_launches
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.adaptations.signs import lags_after_transfers
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, P2P
from app.analysis.replay.robust_statistics import median
from app.analysis.wording import percent

# Approximate number of steps for the quick check; the full check takes seconds for large sessions.
_CHECKED_STEPS: Final = 3
_NAMED: Final = 3
_NOTHING: Final = -1


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether hosts launch more slowly than devices compute."""

    # A host is slow when its device idles for launches during this share of its time: a job that
    # loses this share counts as straggling (what-if paper, section 4).
    least_share: float = 0.09
    # Other hosts are slow too when their devices' idle share is at least this share of the slowest
    # host's …
    to_slowest: float = 0.25
    # …or this share of the idle share of their stage's slowest DP rank, if that rank is slow.
    on_stage: float = 0.5
    # The first launch of a step also waits for the batch, so its delay counts up to this many
    # launch times.
    first_launches: float = 1.5
    # The quick check of a few steps passes at this share of `least_share`.
    at_a_glance: float = 0.7
    # Half of the relative 95 % interval of the step time if all hosts are slow: the trace does not
    # contain the launch time of a healthy host, and replays without launch times are short by 1.3 %
    # in the median (what-if paper, section 6).
    unsure: float = 0.015
    unsure_of_one: float = 0.0075  # the same for a single slow host, as healthy ones are recorded
    # A device has waited for a transfer that ends at least this share of a launch time after the
    # device's previous computation.
    kept: float = 0.3
    # Hosts wait for a computation's input before they launch it, if they launch at least this share
    # of a launch time after the input arrives; hosts that launch ahead need no time after the
    # input.
    waits_for_input: float = 0.25


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Idling:
    """Time that devices wait for their hosts, arrays of shape (pp, dp)."""

    # regular wait before computations whose inputs are ready, as a share of the computing time and
    # this wait
    share: FloatArray
    late_ns: FloatArray  # mean of that wait before a computation
    launch_ns: FloatArray  # median time from one launch to the next where devices wait


def _late_ns(observation: Observation, nodes: IntArray, steps: slice) -> FloatArray:
    """Return launch delays of nodes, with regular delays, shape (nodes, steps, dp), ns.

    The delay is 0 if a node's last input comes directly from another stage, as the delay then
    contains a transfer that was not recorded.
    """
    layout, stage = observation.layout, observation.layout.nodes.pp
    start, duration = layout.start_ns, layout.duration_ns
    late = start[nodes, steps]
    own_end, other_end = np.zeros_like(late), np.zeros_like(late)
    after = (observation.after[node] for node in nodes.tolist())
    # The loop handles all nodes at once: the first input of every node, then the second input of
    # every node, and so on.
    for others in zip_longest(*after, fillvalue=_NOTHING):
        before = np.array(others)
        own = stage[before] == stage[nodes]
        for ends, chosen in ((own_end, own), (other_end, ~own)):
            which = (chosen & (before != _NOTHING)).nonzero()[0]
            end = start[before[which], steps] + duration[before[which], steps]
            ends[which] = np.maximum(ends[which], end)
    late -= own_end
    late[own_end < other_end] = 0.0
    np.maximum(late, 0.0, out=late)
    return np.asarray(late)


def _idling(observation: Observation, steps: slice, *, quick: bool = False) -> _Idling:
    """Return the time that devices wait for their hosts in some steps.

    With `quick`, for few steps, all stages are computed at once, and `launch_ns` is 0.
    """
    layout = observation.layout
    share, late_ns, launch_ns = (np.zeros((layout.pp, layout.dp)) for _ in range(3))
    every = list(range(layout.pp))
    for stages in [every] if quick else [[stage] for stage in every]:
        before = [item for s in stages for item in _computed_before(observation, s).items()]
        if not before:
            continue
        nodes, previous = np.array(before).T
        late = _late_ns(observation, nodes, steps)
        kind = layout.nodes.op[nodes].astype(np.int64) * len(layout.op_names)
        kind += layout.nodes.op[previous]
        computes = np.mean(observation.recorded_ns[nodes, steps], axis=1)
        for stage in stages:
            mine = (layout.nodes.pp[nodes] == stage).nonzero()[0]
            if not len(mine):
                continue
            own, own_kind = late[mine], kind[mine]
            alike = [own[own_kind == number] for number in dict.fromkeys(own_kind.tolist())]
            # Each computation gets the median lateness of its kind.
            medians = [len(some) * median(some.reshape(-1, layout.dp)) for some in alike]
            waits = np.asarray(np.sum(medians, axis=0))
            share[stage] = waits / np.maximum(waits + computes[mine].sum(axis=0), 1.0)
            late_ns[stage] = waits / len(mine)
            if not quick:
                pace = layout.start_ns[nodes, steps] - layout.start_ns[previous, steps]
                by_rank = np.where(late > 0, pace, np.nan).reshape(-1, layout.dp).T
                waited = [row[~np.isnan(row)] for row in by_rank]
                launch_ns[stage] = [np.median(row) if len(row) else 0.0 for row in waited]
    return _Idling(share, late_ns, launch_ns)


def _computed_before(observation: Observation, stage: int) -> dict[int, int]:
    """Return, for each computation of a stage, the previous one by launch order."""
    layout = observation.layout
    computes = np.flatnonzero(layout.of_types(*COMPUTATIONS) & (layout.nodes.pp == stage))
    ordered = computes[np.argsort(layout.launch[computes], kind="stable")].tolist()
    return dict(zip(ordered[1:], ordered, strict=False))


@dataclass(frozen=True, slots=True)
class _SlowHosts:
    """Workers whose hosts launch slowly."""

    workers: tuple[Worker, ...]  # the slowest first
    everywhere: bool  # whether all hosts of the job do

    def uncertainty(self, dp: int) -> Uncertainty:
        """Return the uncertainty of the step time without the cause, given the DP ranks."""
        if self.everywhere:
            return Uncertainty(THRESHOLDS.unsure)
        return Uncertainty(THRESHOLDS.unsure_of_one * len({rank for rank, _ in self.workers}) / dp)


def _slow_hosts(observation: Observation, share: FloatArray) -> _SlowHosts | None:
    """Return the workers that wait for their hosts, given `_Idling.share`; None if none do."""
    slow = share >= max(THRESHOLDS.least_share, THRESHOLDS.to_slowest * float(share.max()))
    if not slow.any():
        return None
    of_stage = share.max(axis=1, keepdims=True)
    slow |= slow.any(axis=1, keepdims=True) & (share >= THRESHOLDS.on_stage * of_stage)
    workers = sorted(
        ((int(dp), int(pp)) for pp, dp in np.argwhere(slow)),
        key=lambda w: -float(share[w[1], w[0]]),
    )
    # Stages without a slow host are ignored: their wait for data may hide the wait for the host.
    alike = bool(slow[slow.any(axis=1)].all())
    everywhere = alike and observation.hosts.whole_host(workers) is None
    return _SlowHosts(tuple(workers), everywhere or bool(slow.all()))


def _may_be_slow(observation: Observation) -> bool:
    """Return whether hosts look slow in a few steps, as a quick check."""
    few = slice(None, None, -(-len(observation.layout.steps) // _CHECKED_STEPS))
    return _records_inputs(observation) and bool(
        _idling(observation, few, quick=True).share.max()
        >= THRESHOLDS.at_a_glance * THRESHOLDS.least_share
    )


def _find(signs: Signs) -> Finding | None:
    """Return the slow hosts; without the cause their operations launch as soon as possible."""
    observation = signs.observation
    if not _may_be_slow(observation):
        return None
    idling = _idling(observation, slice(None))
    slow = _slow_hosts(observation, idling.share)
    if slow is None:
        return None
    step_gap_ns = _launch_gap_ns(signs, idling) if slow.everywhere else 0.0
    late_ns, on_time = _late_launches(observation, idling, slow, step_gap_ns)
    # If only a single host is slow, healthy hosts give the reference.
    waiting = slow.everywhere and _await_inputs(observation, idling, slow)
    healthy = healthy_launches(observation) if waiting else None
    regular = frozenset(node for node, _ in observation.group.graph.lags_ns) & late_ns.keys()
    by_step = np.sum(
        [np.where(on_time[node], late, 0.0).sum(axis=1) for node, late in late_ns.items()], axis=0
    )
    return Finding(
        change=Change(on_time=on_time),
        evidence=tuple(_evidence(observation, idling, slow)),
        where=Where(workers=() if slow.everywhere else slow.workers),
        figure=HeldLaunches(by_step_s=tuple((by_step / 1e9).tolist())),
        launches=Launches(
            late_ns,
            regular,
            _lags_of_others(observation, slow, regular) if healthy is None else healthy.lags_ns,
            step_gap_ns,
        ),
        uncertainty=(
            slow.uncertainty(observation.layout.dp) if healthy is None else healthy.uncertainty
        ),
    )


def _lags_of_others(
    observation: Observation, slow: _SlowHosts, regular: frozenset[int]
) -> dict[tuple[int, int], float]:
    """Return healthy hosts' regular launch lags after transfers, by (node, transfer), ns.

    The recorded lags of the nodes `regular` are left out, as slow hosts' lags are among them. Empty
    if all hosts are slow.
    """
    if slow.everywhere:
        return {}
    group = observation.group
    kept = {edge: lag for edge, lag in group.graph.lags_ns.items() if edge[0] not in regular}
    graph, takes_ns = replace(group.graph, lags_ns=kept), group.durations.ideal_ns
    return dict(lags_after_transfers(group.layout, graph, takes_ns, also=slow.workers))


def _await_inputs(observation: Observation, idling: _Idling, slow: _SlowHosts) -> bool:
    """Return whether slow hosts wait for a transfer before launching its receiving computation."""
    layout = observation.layout
    start, duration = layout.start_ns, layout.duration_ns
    transfers = observation.layout.of_types(*P2P)
    taken: list[FloatArray] = []
    for stage in sorted({pp for _, pp in slow.workers}):
        ranks = [dp for dp, pp in slow.workers if pp == stage]
        launch_ns = np.maximum(idling.launch_ns[stage, ranks], 1.0)
        for node, before in _computed_before(observation, stage).items():
            others = [other for other in observation.after[node] if transfers[other]]
            if not others:
                continue
            free = (start[before] + duration[before])[:, ranks]
            input_ns = (start[others] + duration[others]).max(axis=0)[:, ranks]
            kept = input_ns > free + THRESHOLDS.kept * launch_ns
            launched = (start[node][:, ranks] - input_ns) / launch_ns
            taken.append(launched[kept])
    all_taken = np.concatenate([np.empty(0), *taken])
    return bool(all_taken.size and median(all_taken) >= THRESHOLDS.waits_for_input)


def _late_launches(
    observation: Observation, idling: _Idling, slow: _SlowHosts, step_gap_ns: float
) -> tuple[dict[int, FloatArray], dict[int, BoolArray]]:
    """Return launch delays by node, shape (steps, dp), ns, and which DP ranks' hosts are slow.

    Nodes are computations, transfers and data-parallel collectives. A node with regular delays has
    the delays of all DP ranks, any other node only the delays of the slow hosts' DP ranks.

    Parameters
    ----------
    step_gap_ns : float
        The part of the regular gap between steps that counts as late launch.
    """
    layout, lags = observation.layout, {node for node, _ in observation.group.graph.lags_ns}
    launched = np.isin(layout.nodes.op, layout.codes(*COMPUTATIONS, *P2P, *DP_COLLECTIVES))
    late_ns: dict[int, FloatArray] = {}
    on_time: dict[int, BoolArray] = {}
    for stage in range(layout.pp):
        mine = np.zeros(layout.dp, dtype=bool)
        mine[[dp for dp, pp in slow.workers if pp == stage]] = True
        mine |= slow.everywhere
        later = _computed_before(observation, stage)
        for node in np.flatnonzero(launched & (layout.nodes.pp == stage)).tolist():
            if not mine.any() and node not in lags:
                continue
            begins = not observation.after[node]
            late = observation.delay_ns(node, regular=step_gap_ns > 0 or not begins)
            if node not in later and begins:
                late = np.minimum(late, THRESHOLDS.first_launches * idling.launch_ns[stage])
            late_ns[node] = np.where(mine, late, late if node in lags else 0.0)
            on_time[node] = np.broadcast_to(mine, late.shape)
    return late_ns, on_time


def _launch_gap_ns(signs: Signs, idling: _Idling) -> float:
    """Return the part of the gap between steps during which devices wait for a launch, ns.

    A host that is never ahead of its device has launched no operation of the next step when a step
    ends. Recorded operations between steps, such as loading a batch, are not part of this wait.
    """
    step_gap_ns, gaps = signs.observation.group.graph.step_gap_ns, signs.step_gaps
    if not step_gap_ns > 0 or gaps is None or not len(gaps.steps):
        return 0.0
    has_gap = gaps.turns.known
    recorded_ns = np.sum([np.zeros(len(has_gap)), *gaps.recorded_ns.values()], axis=0)
    empty_ns = step_gap_ns - float(np.median(recorded_ns[has_gap]))
    longest_ns = THRESHOLDS.first_launches * float(idling.launch_ns.min())
    return min(max(empty_ns, 0.0), longest_ns)


def _evidence(observation: Observation, idling: _Idling, slow: _SlowHosts) -> list[Evidence]:
    lines = []
    for dp, pp in slow.workers[:_NAMED]:
        view: View = WorkerView(dp=dp, pp=pp)
        lines.append(
            Evidence(
                f"{observation.hosts.subject((dp, pp))}: its device waits for its host for "
                f"{percent(float(idling.share[pp, dp]), 0)} of its time, "
                f"{idling.late_ns[pp, dp] / 1e6:.1f} ms before each computation, with all that it "
                "needs there",
                view,
            )
        )
    more = len(slow.workers) - _NAMED
    if more > 0:
        lines.append(Evidence(f"{more} more workers wait for their hosts", RegionView(view="map")))
    return lines


def _records_inputs(observation: Observation) -> bool:
    """Return whether the transfers that computations wait for are recorded."""
    return observation.layout.pp == 1 or bool(P2P & observation.op_types)


def _because(cause: Cause, job: JobFacts) -> str:
    workers = cause.where.workers
    if not workers:
        return "hosts launch computations more slowly than devices run them"
    host = job.whole_host(workers)
    if host is not None:
        return f"{host} launches computations more slowly than its devices run them"
    if len(workers) > 1:
        return f"the hosts of {len(workers)} workers launch more slowly than their devices run"
    return f"the host of {job.name_workers(workers[0])} launches more slowly than its device runs"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    workers = cause.where.workers
    who = "all hosts"
    if workers:
        who = hosts.whole_host(workers) or f"the hosts of {hosts.name_workers(*workers)}"
    return Remedy(
        "launch_faster",
        f"Launch faster on {who}",
        "Replayed with computations and transfers launched when they may be. CUDA graphs, fused "
        "kernels and fewer synchronizations leave less to launch; too few processors, power "
        "saving, other programs and profilers make a host slow.",
    )


HOST_OVERHEAD: Final = CauseKind(
    name="host_overhead",
    title="Host overhead",
    word="launching",
    sign="Devices wait for their hosts before most computations, with all that these need there: "
    "on one host, or on all.",
    blames_machine=True,
    cannot_judge=lambda signs: (
        None
        if _records_inputs(signs.observation)
        else "no transfers recorded, so waiting for them cannot be told from waiting for the host"
    ),
    because=_because,
    find=_find,
    # All replays, also the ideal replay, contain the regular launch lags.
    slows_ideal=lambda signs: (
        bool(signs.observation.group.graph.lags_ns) and _may_be_slow(signs.observation)
    ),
    remedy=_remedy,
    phase=Phase.SPECIAL,
    recurs=True,
)
