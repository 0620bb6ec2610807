"""Hosts that launch computations more slowly than devices run them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, Turn
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
from app.analysis.replay.adaptations.signs import lags_after_transfers
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, P2P
from app.analysis.replay.robust_statistics import median
from app.analysis.wording import percent

# Steps that tell whether a closer look pays, and from which share of the limit on.
_GLANCE: Final = 3
_NAMED: Final = 3
_NOTHING: Final = -1


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether hosts launch more slowly than devices run."""

    # A device is held up when it idles this share of its time for launches: a job that loses as
    # much counts as straggling (paper, section 4).
    least_share: float = 0.09
    # Other hosts are slow when their devices idle this share of what the slowest one does.
    to_slowest: float = 0.25
    # …or this share of what the slowest DP rank of their stage does, where that is slow.
    on_stage: float = 0.5
    # The first launch of a step waits for the batch too; this many launches of it are the
    # host's.
    first_launches: float = 1.5
    # A few steps tell that a closer look pays when devices idle this share of `least_share`
    # there.
    at_a_glance: float = 0.7
    # Half of a 95 % interval where all hosts are slow: what a healthy host takes to launch is
    # nowhere in the trace, and replays without it are short by 1.3 % in the median (paper,
    # section 6).
    unsure: float = 0.015
    unsure_of_one: float = 0.0075  # the same of a single slow host, of which others tell a part
    # A transfer has kept a device waiting when it ends this share of a launch after what was
    # computed before.
    kept: float = 0.3
    # Hosts wait for their input when they then take this share of a launch; those that launch
    # ahead launch at once.
    waits_for_input: float = 0.25


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Idling:
    """How devices wait for their hosts, shapes (pp, dp)."""

    # Of a worker's time between computations and in them, what regularly passes before the former
    # although all that they need is there.
    share: FloatArray
    late_ns: FloatArray  # how long that is before the median computation
    launch_ns: FloatArray  # the median time from one launch to the next where devices wait


def _late_ns(observation: Observation, nodes: IntArray, steps: slice) -> FloatArray:
    """Return how late nodes are launched, what regularly passes included.

    Shape (nodes, steps, dp). It is not the host's where the input comes right from another stage:
    then a transfer that was not recorded is among it.
    """
    layout, stage = observation.layout, observation.layout.nodes.pp
    start, duration = layout.start_ns, layout.duration_ns
    late = start[nodes, steps]
    here, there = np.zeros_like(late), np.zeros_like(late)
    after = (observation.after[node] for node in nodes.tolist())
    # All nodes at once: first what each of them follows first, then what it follows second…
    for others in zip_longest(*after, fillvalue=_NOTHING):
        before = np.array(others)
        own = stage[before] == stage[nodes]
        for ends, chosen in ((here, own), (there, ~own)):
            which = (chosen & (before != _NOTHING)).nonzero()[0]
            end = start[before[which], steps] + duration[before[which], steps]
            ends[which] = np.maximum(ends[which], end)
    late -= here
    late[here < there] = 0.0
    np.maximum(late, 0.0, out=late)
    return np.asarray(late)


def _idling(observation: Observation, steps: slice, *, glance: bool = False) -> _Idling:
    """Return how devices wait for their hosts in some steps.

    At a glance, which is at few of them, all stages are looked at at once, and `launch_ns` is 0.
    """
    layout = observation.layout
    share, late_ns, launch_ns = (np.zeros((layout.pp, layout.dp)) for _ in range(3))
    every = list(range(layout.pp))
    for stages in [every] if glance else [[stage] for stage in every]:
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
            waits = _typical_waits(late[mine], kind[mine])
            share[stage] = waits / np.maximum(waits + computes[mine].sum(axis=0), 1.0)
            late_ns[stage] = waits / len(mine)
            if not glance:
                pace = layout.start_ns[nodes, steps] - layout.start_ns[previous, steps]
                pace[late <= 0] = np.nan
                launch_ns[stage] = _median_of_known(pace)
    return _Idling(share, late_ns, launch_ns)


def _typical_waits(late_ns: FloatArray, kind: IntArray) -> FloatArray:
    """Return how long computations wait together, each as long as the median of its kind."""
    dp = late_ns.shape[-1]
    waits = []
    for number in dict.fromkeys(kind.tolist()):
        alike = late_ns[kind == number]
        waits.append(len(alike) * median(alike.reshape(-1, dp)))
    return np.asarray(np.sum(waits, axis=0))


def _median_of_known(values: FloatArray) -> FloatArray:
    """Return the median of the last axis's values that are numbers; 0 where there is none."""
    flat = values.reshape(-1, values.shape[-1])
    numbers = [own[~np.isnan(own)] for own in flat.T]
    return np.array([np.median(own) if len(own) else 0.0 for own in numbers])


def _computed_before(observation: Observation, stage: int) -> dict[int, int]:
    """Return (computation → the one before it) of a stage."""
    layout = observation.layout
    computes = np.flatnonzero(layout.of_types(*COMPUTATIONS) & (layout.nodes.pp == stage))
    ordered = computes[np.argsort(layout.launch[computes], kind="stable")].tolist()
    return dict(zip(ordered[1:], ordered, strict=False))


@dataclass(frozen=True, slots=True)
class _Slow:
    """Workers whose hosts launch slowly, the slowest first, and whether that is all of the job."""

    workers: tuple[Worker, ...]
    everywhere: bool

    def uncertainty(self, dp: int) -> Uncertainty:
        """Return how far a step may be off: what one rank would launch weighs as its share."""
        if self.everywhere:
            return Uncertainty(THRESHOLDS.unsure)
        return Uncertainty(THRESHOLDS.unsure_of_one * len({rank for rank, _ in self.workers}) / dp)


def _slow(observation: Observation, share: FloatArray) -> _Slow | None:
    """Return which workers wait for their hosts; None where none does."""
    slow = share >= max(THRESHOLDS.least_share, THRESHOLDS.to_slowest * float(share.max()))
    if not slow.any():
        return None
    of_stage = share.max(axis=1, keepdims=True)
    slow |= slow.any(axis=1, keepdims=True) & (share >= THRESHOLDS.on_stage * of_stage)
    found = sorted(
        ((int(dp), int(pp)) for pp, dp in np.argwhere(slow)),
        key=lambda w: -float(share[w[1], w[0]]),
    )
    # On other stages waiting for data may hide what waiting for the host is.
    alike = bool(slow[slow.any(axis=1)].all())
    everywhere = alike and observation.hosts.whole_host(found) is None
    return _Slow(tuple(found), everywhere or bool(slow.all()))


def _hides(signs: Signs) -> bool:
    """Return whether hosts are slow though replays, the ideal one too, have what that takes."""
    observation = signs.observation
    return bool(observation.group.graph.lags_ns) and _may_be_slow(observation)


def _may_be_slow(observation: Observation) -> bool:
    """Return whether a few steps look as if hosts were slow."""
    few = slice(None, None, -(-len(observation.layout.steps) // _GLANCE))
    return _can_be_told(observation) and bool(
        _idling(observation, few, glance=True).share.max()
        >= THRESHOLDS.at_a_glance * THRESHOLDS.least_share
    )


def _find(signs: Signs) -> Finding | None:
    """Return the hosts that launch slowly; without it what they launch is launched when it may."""
    observation = signs.observation
    if not _may_be_slow(observation):
        return None
    idling = _idling(observation, slice(None))
    slow = _slow(observation, idling.share)
    if slow is None:
        return None
    step_gap_ns = _step_gap_ns(signs, idling) if slow.everywhere else 0.0
    late_ns, on_time = _late_launches(observation, idling, slow, step_gap_ns)
    # A single slow host leaves healthy ones to compare with.
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
    observation: Observation, slow: _Slow, regular: frozenset[int]
) -> dict[tuple[int, int], float]:
    """Return what regularly passes before launches after transfers where hosts are not slow.

    What passes before launches of some nodes, `regular`, is taken for all hosts together, the slow
    ones among them.
    """
    if slow.everywhere:
        return {}
    group = observation.group
    kept = {edge: lag for edge, lag in group.graph.lags_ns.items() if edge[0] not in regular}
    graph, takes_ns = replace(group.graph, lags_ns=kept), group.durations.ideal_ns
    return dict(lags_after_transfers(group.layout, graph, takes_ns, also=slow.workers))


def _await_inputs(observation: Observation, idling: _Idling, slow: _Slow) -> bool:
    """Return whether slow hosts wait for transfers before they launch what needs these."""
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
    observation: Observation, idling: _Idling, slow: _Slow, step_gap_ns: float
) -> tuple[dict[int, FloatArray], dict[int, NDArray[np.bool_]]]:
    """Return launch delays by node, and whose they are.

    Those of computations, of transfers to be posted, and of collectives of DP ranks. A node whose
    delays are regular is there with those of all DP ranks.

    Parameters
    ----------
    step_gap_ns : float
        How much of what regularly passes between steps counts.
    """
    layout, lags = observation.layout, {node for node, _ in observation.group.graph.lags_ns}
    launched = np.isin(layout.nodes.op, layout.codes(*COMPUTATIONS, *P2P, *DP_COLLECTIVES))
    late_ns: dict[int, FloatArray] = {}
    on_time: dict[int, NDArray[np.bool_]] = {}
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


def _step_gap_ns(signs: Signs, idling: _Idling) -> float:
    """Return what of the time between steps passes for want of launches where all hosts are slow.

    A host that is never ahead of its device has launched nothing of the next step when that ends
    one. What ranks are recorded to do meanwhile, loading a batch for example, stays.
    """
    step_gap_ns, passing = signs.observation.group.graph.step_gap_ns, signs.passing
    if not step_gap_ns > 0 or passing is None or not len(passing.steps):
        return 0.0
    known = passing.turns.known
    named_ns = np.sum([np.zeros(len(known)), *passing.named_ns.values()], axis=0)
    empty_ns = step_gap_ns - float(np.median(named_ns[known]))
    longest_ns = THRESHOLDS.first_launches * float(idling.launch_ns.min())
    return min(max(empty_ns, 0.0), longest_ns)


def _evidence(observation: Observation, idling: _Idling, slow: _Slow) -> list[Evidence]:
    lines = []
    for dp, pp in slow.workers[:_NAMED]:
        view: View = WorkerView(dp=dp, pp=pp)
        lines.append(
            Evidence(
                f"W{observation.hosts.named((dp, pp))[1:]}: its device waits for its host for "
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


def _can_be_told(observation: Observation) -> bool:
    """Return whether what computations wait for is recorded."""
    return observation.layout.pp == 1 or bool(P2P & observation.op_types)


def _cannot_judge(signs: Signs) -> str | None:
    if _can_be_told(signs.observation):
        return None
    return "no transfers recorded, so waiting for them cannot be told from waiting for the host"


def _who(cause: Cause, hosts: Hosts) -> str:
    """Return whose hosts are slow; empty where all are."""
    workers = cause.where.workers
    host = hosts.whole_host(workers) if workers else None
    if host is not None:
        return host
    return f"the hosts of {hosts.named(*workers)}" if workers else ""


def _because(cause: Cause, job: JobFacts) -> str:
    workers = cause.where.workers
    if not workers:
        return "hosts launch computations more slowly than devices run them"
    host = job.whole_host(workers)
    if host is not None:
        return f"{host} launches computations more slowly than its devices run them"
    if len(workers) > 1:
        return f"the hosts of {len(workers)} workers launch more slowly than their devices run"
    return f"the host of {job.named(workers[0])} launches more slowly than its device runs"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    who = _who(cause, hosts)
    return Remedy(
        "launch_faster",
        f"Launch faster on {who}" if who else "Launch faster on all hosts",
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
    cannot_judge=_cannot_judge,
    because=_because,
    find=_find,
    hides=_hides,
    remedy=_remedy,
    turn=Turn.SPECIAL,
    recurs=True,
)
