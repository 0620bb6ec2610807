"""Late launches: all late launches, those by interpreter pauses, and those that begin steps.

A replay with all late launches reproduces the recording. A paused interpreter launches no
operation; backwards are launched from C++, so pauses delay only forwards, occasionally and on
changing workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.observation import COMPUTATIONS, Observation, robust_deviation, sample
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.host_delays import delays_of, launch_delays
from app.analysis.replay.layout.dependency_graph import P2P, gathers_at_end
from app.analysis.replay.robust_statistics import median
from app.analysis.replay.session import begins_of
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether pauses launch single forwards late."""

    # A forward is late when its delay exceeds its median delay by this share of its duration …
    late: float = 0.12
    to_scatter: float = 7.0  # …and by this many standard deviations
    backwards: float = 0.25  # highest ratio of late backwards to late forwards
    min_stalls: int = 5  # fewest stalls
    min_workers: int = 3  # …on at least this many workers, or on all of fewer
    # Highest share of the stalls on a single worker. If this limit is lowered by a fifth, the
    # verdict of a recorded job changes: its four workers collect garbage unevenly.
    top_share: float = 0.5
    most: float = 0.35  # a larger share of late forwards is no series of single stalls
    # The first forward of a step may wait for its batch, so it stalls at most this many times as
    # often as other forwards.
    as_often: float = 3.0
    # Lowest cost of all stalls, as a share of a step, computed as if each stall held up the whole
    # job.
    least_share: float = 0.01


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class StalledLaunches:
    """Single forwards that are launched late, and their delays."""

    nodes: IntArray  # (forwards,)
    # (forwards, steps, dp): delay beyond the typical delay; 0 for forwards launched on time
    late_ns: FloatArray


def late_launches(observation: Observation) -> dict[int, FloatArray]:
    """Return the launch delays of late operations, by node, shape (steps, dp), ns.

    If the gradient reduction is not recorded, the operation after the last computation waits in the
    reduction for the slowest DP rank. This wait is no delay: all ranks get the delay of the last
    rank.
    """
    layout = observation.layout
    delays, _ = launch_delays(observation.group)
    np.maximum(delays, 0.0, out=delays)
    if reduces_unrecorded(observation):
        for node in _after_computing(observation):
            delays[node] = delays[node].min(axis=-1, keepdims=True)
    late = np.flatnonzero(delays.reshape(len(layout.nodes), -1).any(axis=1))
    return {node: delays[node] for node in late.tolist()}


def reduces_unrecorded(observation: Observation) -> bool:
    """Return whether the DP ranks reduce gradients without recording the reduction."""
    return observation.layout.dp > 1 and GRADS_REDUCE_SCATTER not in observation.op_types


def unrecorded_reducing(observation: Observation) -> dict[int, tuple[int, FloatArray]]:
    """Return the time of the unrecorded gradient reduction, by stage; empty if it is recorded.

    The value of a stage is the operation after its last computation and the wait of this operation,
    shape (steps, dp), ns: on every rank the wait of the DP rank that computes longest.
    """
    if not reduces_unrecorded(observation):
        return {}
    nodes = observation.layout.nodes
    shape = observation.recorded_ns.shape[1:]
    return {
        int(nodes.pp[node]): (
            node,
            np.array(
                np.broadcast_to(observation.delay_ns(node).min(axis=-1, keepdims=True), shape)
            ),
        )
        for node in _after_computing(observation)
    }


def _after_computing(observation: Observation) -> list[int]:
    """Return the operation after the last computation of each stage, without transfers."""
    nodes, layout = observation.layout.nodes, observation.layout
    computing, transfers = (
        np.isin(nodes.op, layout.codes(*names)) for names in (COMPUTATIONS, P2P)
    )
    following = []
    for stage in range(layout.pp):
        mine = np.flatnonzero(computing & (nodes.pp == stage))
        last = int(mine[np.argmax(layout.launch[mine])])
        following += [
            node
            for node, after in observation.after.items()
            if last in after and nodes.pp[node] == stage and not transfers[node]
        ]
    return following


def on_many_workers(by_worker: IntArray) -> bool:
    """Return whether stalls, counted by worker, are spread over as many workers as pauses are."""
    count, possible = int(by_worker.sum()), by_worker.size
    workers = int((by_worker > 0).sum())
    return (
        count >= THRESHOLDS.min_stalls
        and workers >= min(THRESHOLDS.min_workers, possible)
        and int(by_worker.max()) <= max(THRESHOLDS.top_share, 1.5 / possible) * count
    )


def stalled_launches(observation: Observation, step_ns: float) -> StalledLaunches | None:
    """Return the forwards that pauses launch late; None without a sign of pauses.

    `step_ns` is the mean recorded step.
    """
    layout, nodes = observation.layout, observation.layout.nodes
    forwards, backwards = (
        np.flatnonzero(nodes.op == layout.codes(name)[0])
        for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE)
    )
    if not len(forwards) or not len(backwards):
        return None
    least = THRESHOLDS.late * float(median(sample(observation.recorded_ns[forwards])))
    delays = delays_of(observation.group, forwards)
    late = _beyond_typical(delays)
    limit = max(least, THRESHOLDS.to_scatter * robust_deviation(late))
    often = float((late > limit).mean())
    if not 0 < often <= THRESHOLDS.most:
        return None
    of_backwards = delays_of(observation.group, backwards)
    if (_beyond_typical(of_backwards) > limit).mean() > THRESHOLDS.backwards * often:
        return None
    late = np.where(late > limit, late, 0.0)
    late[_awaits_send(observation, forwards, late > 0, least)] = 0.0
    firsts = []  # the first forward of each stage
    for stage in range(layout.pp):
        own = layout.of(FORWARD_COMPUTE, stage)
        if len(own):
            firsts.append(int(own[np.argmin(layout.launch[own])]))
    first = np.isin(forwards, firsts)
    others = late[~first] > 0
    if not others.size or float(np.mean(late[first] > 0)) > THRESHOLDS.as_often * float(
        np.mean(others)
    ):
        late[first] = 0.0
    by_worker = np.zeros((layout.pp, layout.dp), dtype=np.int64)
    np.add.at(by_worker, nodes.pp[forwards], (late > 0).sum(axis=1))
    costly = late.sum() >= THRESHOLDS.least_share * step_ns * len(layout.steps)
    if not costly or not on_many_workers(by_worker):
        return None
    stalled = late.any(axis=(1, 2))
    return StalledLaunches(forwards[stalled], late[stalled])


def _awaits_send(
    observation: Observation, forwards: IntArray, late: BoolArray, soon_ns: float
) -> BoolArray:
    """Return which `late` forwards begin right after a send of their worker, shape of `late`.

    Blocking sends keep a host from launching until the receiver is ready, which is no pause. `late`
    has the shape (forwards, steps, dp); `soon_ns` is the longest time after the send.
    """
    layout, nodes = observation.layout, observation.layout.nodes
    sends = layout.of_types(FORWARD_SEND, BACKWARD_SEND)
    awaits = np.zeros(late.shape, dtype=bool)
    for stage in np.unique(nodes.pp[forwards]).tolist():
        mine = np.flatnonzero(nodes.pp[forwards] == stage)
        own = np.flatnonzero(sends & (nodes.pp == stage))
        row, step, dp = np.nonzero(late[mine])
        if not len(own) or not len(row):
            continue
        starts = layout.start_ns[forwards[mine[row]], step, dp]
        at = (own[:, None], step, dp)
        since = starts - (layout.start_ns[at] + layout.duration_ns[at])
        awaits[mine[row], step, dp] = ((since >= 0) & (since <= soon_ns)).any(axis=0)
    return awaits


def _beyond_typical(delays: FloatArray) -> FloatArray:
    """Return each node's delay beyond the node's median delay, in the shape of `delays`."""
    flat = np.maximum(delays, 0.0).reshape(len(delays), -1)
    return np.asarray((flat.T - median(flat.T)).T.reshape(delays.shape))


def first_delays(observation: Observation) -> dict[int, FloatArray]:
    """Return launch delays of the first operations of each stage, by node, (steps, dp), ns.

    First operations are the first all-gather of parameters, the first forward on stage 0, and the
    first receive on the other stages (on stage 0 only if launched before that forward: a recorder
    may write a receive without a peer, and virtual stages have receives amid the step).
    """
    layout = observation.layout
    late_ns = {}
    at_end = gathers_at_end(layout)
    gathers, receives, forwards = (
        _firsts(observation, name) for name in (PARAMS_ALL_GATHER, FORWARD_RECV, FORWARD_COMPUTE)
    )
    for stage in range(layout.pp):
        gather, receive, forward = gathers.get(stage), receives.get(stage), forwards.get(stage)
        if gather is not None and gather not in at_end:
            # A stage that ends a step later than other stages also begins the next step later,
            # which is no wait.
            late = observation.delay_ns(gather)
            since = layout.start_ns[gather] - begins_of(observation.group, stage)
            late[1:] = np.minimum(np.maximum(since[1:], 0.0), late[1:])
            late_ns[gather] = late
        if receive is not None and (
            stage > 0 or forward is None or layout.launch[receive] < layout.launch[forward]
        ):
            late_ns[receive] = observation.delay_ns(receive)
        if forward is not None and stage == 0:
            # A framework that gathers the parameters of all chunks first launches no forward before
            # the last of these all-gathers ends.
            late = observation.delay_ns(forward)
            for node in layout.of(PARAMS_ALL_GATHER, stage).tolist():
                since = layout.start_ns[forward] - layout.start_ns[node] - layout.duration_ns[node]
                late = np.where(since >= 0, np.minimum(late, since), late)
            late_ns[forward] = late
    return late_ns


def _firsts(observation: Observation, name: str) -> dict[int, int]:
    """Return the first operation of a type on each stage, by stage, if the stage has the type."""
    layout, nodes = observation.layout, observation.layout.nodes
    if name not in layout.op_names:
        return {}
    some = (nodes.op == layout.codes(name)[0]).nonzero()[0]
    latest_first = some[np.lexsort((layout.launch[some], nodes.pp[some]))][::-1]
    return dict(zip(nodes.pp[latest_first].tolist(), latest_first.tolist(), strict=True))
