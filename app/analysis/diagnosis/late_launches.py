"""Launches that are late: all of them, with which a replay is the recording, and single ones.

An interpreter that pauses launches nothing meanwhile. Backwards are launched from C++, so that
forwards alone come late, now and then and on one worker or another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.observation import COMPUTATIONS, Observation, robust_deviation, sample
from app.analysis.replay.host_delays import delays_of, launch_delays
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.layout.dependency_graph import P2P
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
    """What decides whether forwards are launched late one by one."""

    # A forward is launched late when it is so by this share of a forward more than its median.
    late: float = 0.12
    to_scatter: float = 7.0  # …and by this many standard deviations of that
    backwards: float = 0.25  # backwards are late at most this often, against forwards
    min_stalls: int = 5  # pauses make at least this many stalls
    min_workers: int = 3  # …on at least this many workers, or on all that could have them
    # …of which one worker has this share at most. A fifth less changes the verdict of a recorded
    # job: four workers of one collect garbage unevenly.
    top_share: float = 0.5
    most: float = 0.35  # where a larger share of the forwards is late they do not stall one by one
    # The first forward of a step, which may wait for its batch, stalls at most this many times
    # as often as others.
    as_often: float = 3.0
    # If all stalls held the whole job up one after another, they would cost this share of a
    # step.
    least_share: float = 0.01


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class StalledLaunches:
    """Forwards that are launched late, one here and one there."""

    nodes: NDArray[np.int64]  # (forwards,)
    # (forwards, steps, dp): by how much more than typical; 0 where they are not
    late_ns: FloatArray


def late_launches(observation: Observation) -> dict[int, FloatArray]:
    """Return how late operations are launched, by node, shape (steps, dp), ns; not what is on time.

    Where no reduce-scatter of gradients is recorded, what follows the last computation waits in it
    for the other DP ranks. That is no delay of its own: all of them are late by what the last one
    is.
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
    """Return whether DP ranks reduce their gradients without that being recorded."""
    return observation.layout.dp > 1 and GRADS_REDUCE_SCATTER not in observation.op_types


def unrecorded_reducing(observation: Observation) -> dict[int, tuple[int, FloatArray]]:
    """Return by stage what follows its last computation, and how long that waits, if reducing.

    The wait, shape (steps, dp), is as long as that of the DP rank that computes longest.
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
    """Return what follows the last computation of each stage, transfers apart."""
    nodes, layout = observation.layout.nodes, observation.layout
    computing, transfers = (
        np.isin(nodes.op, layout.codes(*names)) for names in (COMPUTATIONS, P2P)
    )
    found = []
    for stage in range(layout.pp):
        mine = np.flatnonzero(computing & (nodes.pp == stage))
        last = int(mine[np.argmax(layout.launch[mine])])
        found += [
            node
            for node, after in observation.after.items()
            if last in after and nodes.pp[node] == stage and not transfers[node]
        ]
    return found


def on_many_workers(by_worker: NDArray[np.int64]) -> bool:
    """Return whether stalls, counted by worker, come on one or another as pauses do."""
    count, possible = int(by_worker.sum()), by_worker.size
    workers = int((by_worker > 0).sum())
    return (
        count >= THRESHOLDS.min_stalls
        and workers >= min(THRESHOLDS.min_workers, possible)
        and int(by_worker.max()) <= max(THRESHOLDS.top_share, 1.5 / possible) * count
    )


def stalled_launches(observation: Observation, step_ns: float) -> StalledLaunches | None:
    """Return the forwards whose launches stall; None where that has no sign of pauses.

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
    first = np.isin(forwards, _first_forwards(observation))
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
    observation: Observation, forwards: NDArray[np.int64], late: NDArray[np.bool_], soon_ns: float
) -> NDArray[np.bool_]:
    """Return which late forwards begin as soon as a send of their worker has ended.

    Hosts whose sends block launch nothing until the other end is there, which is no pause. `late`
    is of shape (forwards, steps, dp).
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
    """Return by how much more than its own median each node is late."""
    flat = np.maximum(delays, 0.0).reshape(len(delays), -1)
    return np.asarray((flat.T - median(flat.T)).T.reshape(delays.shape))


def _first_forwards(observation: Observation) -> list[int]:
    """Return the first forward of each stage."""
    layout = observation.layout
    firsts = []
    for stage in range(layout.pp):
        mine = layout.of(FORWARD_COMPUTE, stage)
        if len(mine):
            firsts.append(int(mine[np.argmin(layout.launch[mine])]))
    return firsts


def first_delays(observation: Observation) -> dict[int, FloatArray]:
    """Return how late the operations of each stage that come first are launched, by node.

    That is what gathers its parameters, then the first forward on stage 0 and the first receive of
    a forward elsewhere, or also there where it is launched before that forward: a recorder may
    write one that has no peer. With virtual stages stage 0 has receives too, amid the step.
    """
    layout = observation.layout
    found = {}
    gathers, receives, forwards = (
        _firsts(observation, name) for name in (PARAMS_ALL_GATHER, FORWARD_RECV, FORWARD_COMPUTE)
    )
    for stage in range(layout.pp):
        gather, receive, forward = gathers.get(stage), receives.get(stage), forwards.get(stage)
        if gather is not None:
            found[gather] = _since_its_step(observation, gather)
        if receive is not None and (
            stage > 0 or forward is None or layout.launch[receive] < layout.launch[forward]
        ):
            found[receive] = observation.delay_ns(receive)
        if forward is not None and stage == 0:
            found[forward] = _since_gathered(observation, forward)
    return found


def _firsts(observation: Observation, name: str) -> dict[int, int]:
    """Return the first operation of a type of each stage that has one."""
    layout, nodes = observation.layout, observation.layout.nodes
    if name not in layout.op_names:
        return {}
    some = (nodes.op == layout.codes(name)[0]).nonzero()[0]
    latest_first = some[np.lexsort((layout.launch[some], nodes.pp[some]))][::-1]
    return dict(zip(nodes.pp[latest_first].tolist(), latest_first.tolist(), strict=True))


def _since_gathered(observation: Observation, forward: int) -> FloatArray:
    """Return how late a stage's first forward is, but for any gathering that ends before it.

    A framework that gathers the parameters of all chunks first computes none of them before that.
    """
    layout, nodes = observation.layout, observation.layout.nodes
    late = observation.delay_ns(forward)
    for gather in layout.of(PARAMS_ALL_GATHER, int(nodes.pp[forward])).tolist():
        since = layout.start_ns[forward] - layout.start_ns[gather] - layout.duration_ns[gather]
        late = np.where(since >= 0, np.minimum(late, since), late)
    return late


def _since_its_step(observation: Observation, gather: int) -> FloatArray:
    """Return how late a stage's first operation is, but for the end of the stage's step before.

    A stage that ends a step later than others begins the next one later, and waits for nothing.
    """
    layout = observation.layout
    late = observation.delay_ns(gather)
    since = layout.start_ns[gather] - begins_of(observation.group, int(layout.nodes.pp[gather]))
    late[1:] = np.minimum(np.maximum(since[1:], 0.0), late[1:])
    return late
