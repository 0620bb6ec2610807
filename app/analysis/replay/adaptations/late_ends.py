"""Sends that are recorded until the job waits for them, shortened to the end of the transfer.

A recorder that takes the end of an asynchronous send at `work.wait()` may record an interval until
the end of the step. The data have arrived when the receive ends, so the send is shortened to end
with its receive. A receive may also be recorded until its wait, and may have ended while its rank
still computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.candidate import Draft, Proposal
from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.signs import sampled
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import Graph
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.trace import model as ops

# Sends of a type on a stage end late if at least this share of them ends after the end of the
# computation that uses the received data…
_REGULARLY: Final = 0.9
# …or if at least this share of them ends at the same time although they started at different times:
# the job then waited for all of them at once (or only for the last send).
_TOGETHER_NS: Final = 500_000
_APART_NS: Final = 4 * _TOGETHER_NS
_OFTEN_TOGETHER: Final = 0.5
_RECEIVES: Final = frozenset({ops.FORWARD_RECV, ops.BACKWARD_RECV})


@dataclass(frozen=True, slots=True)
class _Kind:
    """Sends of a type from one stage to another."""

    op_type: str
    stage: int
    target: int

    def back(self) -> _Kind:
        """Return the kind of the sends in the other direction between the same stages."""
        forward = self.op_type == ops.FORWARD_SEND
        other = ops.BACKWARD_SEND if forward else ops.FORWARD_SEND
        return _Kind(other, self.target, self.stage)


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """A send, its receive, and the computation that uses the received data."""

    send: int
    receive: int
    fed: int


def propose_late_ends(draft: Draft) -> Proposal | None:
    """Propose to end sends when their receives end, if sends are recorded for longer."""
    pairs = zip(draft.arranged, draft.graphs, strict=True)
    return draft.proposal([end_with_receives(layout, graph) for layout, graph in pairs])


def end_with_receives(
    layout: Layout, graph: Graph, regularly: float = _REGULARLY
) -> tuple[Layout, Sign] | None:
    """Return the layout with sends that end with their receives; None if no send ends late.

    A clock difference makes the sends of one direction seem late and the sends of the other
    direction seem early by the same time, so the sum over both directions is tested.

    Parameters
    ----------
    regularly : float
        Share of the sends of a type on a stage that must end late for the layout to be changed.
    """
    by_kind: dict[_Kind, list[_Pair]] = {}
    for pair in _pairs(layout, graph):
        op_type = layout.op_names[layout.nodes.op[pair.send]]
        stages = int(layout.nodes.pp[pair.send]), int(layout.nodes.pp[pair.receive])
        by_kind.setdefault(_Kind(op_type, *stages), []).append(pair)
    few = sampled(layout)
    ends = few.start_ns + few.duration_ns
    # Shape (pairs, steps, dp): time from the end of the computation that a send feeds to the end of
    # the send, ns
    late: dict[_Kind, FloatArray] = {
        kind: ends[[pair.send for pair in pairs]] - ends[[pair.fed for pair in pairs]]
        for kind, pairs in by_kind.items()
    }
    shares = {}
    for kind, values in late.items():
        back = late.get(kind.back())
        apart = 0.0 if back is None else np.median(back, axis=0)
        shares[kind] = float((values + apart > 0).mean())
    chosen = {kind: share for kind, share in shares.items() if share >= regularly}
    for kind, pairs in by_kind.items():
        together = _share_ending_together(few, pairs)
        if kind not in chosen and together >= _OFTEN_TOGETHER:
            chosen[kind] = together
    if not chosen:
        return None
    duration = layout.duration_ns.copy()
    for kind in chosen:
        computes = [
            node
            for node in np.flatnonzero(layout.nodes.pp == kind.target).tolist()
            if layout.op_names[layout.nodes.op[node]] in COMPUTE
        ]
        for pair in by_kind[kind]:
            end = _arrival(layout, pair, computes)
            for node in (pair.send, pair.receive):
                shorter = np.minimum(end - layout.start_ns[node], duration[node])
                duration[node] = np.maximum(shorter, 0.0)
    where = tuple(sorted(f"{kind.op_type} on stage {kind.stage}" for kind in chosen))
    sign = Sign(where, float(np.mean(list(chosen.values()))))
    return replace(layout, duration_ns=duration), sign


def _pairs(layout: Layout, graph: Graph) -> list[_Pair]:
    """Return all sends whose receive is recorded and delivers the input of a computation."""
    names = [layout.op_names[code] for code in layout.nodes.op.tolist()]
    fed = {
        other: node
        for unit in graph.units
        for node, after in zip(unit.members, unit.after, strict=True)
        for other in after
        if names[other] in _RECEIVES and not unit.communication
    }
    pairs = []
    for unit in graph.units:
        match unit.members:
            case (send, receive) if names[receive] in _RECEIVES and receive in fed:
                pairs.append(_Pair(send, receive, fed[receive]))
            case _:
                pass
    return pairs


def _arrival(layout: Layout, pair: _Pair, computes: list[int]) -> FloatArray:
    """Return a lower bound of the time at which the data arrived, shape (steps, dp), ns.

    A receive may be recorded until its wait, so the transfer may have run while its rank computed.
    Only the part of the receive after this computation is certainly transfer.
    """
    ends = layout.start_ns + layout.duration_ns
    end = ends[pair.receive]
    begin = np.maximum(layout.start_ns[pair.send], layout.start_ns[pair.receive])
    computed = ends[computes]
    busy = np.where(computed <= end, computed, -np.inf).max(axis=0)
    return np.asarray(end - np.maximum(busy - begin, 0.0))


def _share_ending_together(layout: Layout, pairs: list[_Pair]) -> float:
    """Return the share of sends that end together with a send that started at another time."""
    start = layout.start_ns[[pair.send for pair in pairs]]
    end = start + layout.duration_ns[[pair.send for pair in pairs]]
    order = np.argsort(start, axis=0)
    start, end = np.take_along_axis(start, order, 0), np.take_along_axis(end, order, 0)
    next_too = (np.abs(np.diff(end, axis=0)) <= _TOGETHER_NS) & (np.diff(start, axis=0) > _APART_NS)
    none = np.zeros((1, *next_too.shape[1:]), np.bool_)
    both = np.concatenate([next_too, none]) | np.concatenate([none, next_too])
    return float(both.mean())
