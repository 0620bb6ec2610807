"""Regular launch delays without a recorded cause.

Unrecorded hand-overs between GPUs take some milliseconds every time, and hosts take time to launch
an operation. Such delays occur with stragglers and without, so they are a property of the job: the
typical delay of each kind of launch is added to every replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.candidate import Draft, Proposal
from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.signs import (
    MOST_OF,
    computes_of,
    regular_share,
    sampled,
    typical_ns,
)
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import Graph
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.trace import model as ops

# Types that hosts launch as soon as their input is ready. Other types are left out: receives are
# posted at any time, unless they are posted in turn, and operations that end a step also wait for
# operations that are not recorded.
_LAUNCHED: Final = COMPUTE | {ops.FORWARD_SEND, ops.BACKWARD_SEND}
# Type of each receive → type of the computation of the other direction: only a receive posted in
# turn waits for such a computation.
_RECEIVES: Final = {
    ops.FORWARD_RECV: ops.BACKWARD_COMPUTE,
    ops.BACKWARD_RECV: ops.FORWARD_COMPUTE,
}
# Launches of a kind are regularly late if at least this share of their delays is close to the
# median delay (see `MOST_OF`)…
_REGULARLY: Final = 0.75
# …and if the typical delays of a step add up to at least this share of the step.
_LEAST_SHARE: Final = 0.005
# Expected share of delays above `MOST_OF` times their median if delays are random (exponentially
# distributed). The share over all kinds must exceed it by `_CHANCE` standard deviations.
_BY_CHANCE: Final = 0.5**MOST_OF
_CHANCE: Final = 3.0
_MOST_NAMED: Final = 4
# Launches in which a dependency on another stage (or on the own stage) ends last form a kind if
# they are at least this share of the launches: rarer cases are exceptions with other delays.
_LEAST_OFTEN: Final = 0.25


@dataclass(frozen=True, slots=True)
class LaunchKind:
    """Launches with a common typical delay: they are equal in type, stage and dependencies."""

    op_type: str
    stage: int
    # Type of the previous computation on the stage, or empty: hosts may communicate between two
    # forwards, but not between a forward and a backward.
    previous: str
    remote: bool  # whether the last input came from another stage


def propose_regular_delays(draft: Draft) -> Proposal | None:
    """Propose launch lags equal to the typical launch delay of each kind."""
    delays: dict[LaunchKind, list[FloatArray]] = {}
    few = [sampled(layout) for layout in draft.layouts]
    for layout, graph in zip(few, draft.graphs, strict=True):
        for node, after in _followed(layout, graph):
            ends = np.stack(
                [layout.start_ns[before] + layout.duration_ns[before] for before in after]
            )
            last = ends.argmax(axis=0)
            remote = np.array([_is_remote(layout, node, before) for before in after])[last]
            late = layout.start_ns[node] - ends.max(axis=0)
            for from_other in (False, True):
                if (remote == from_other).any():
                    kind = _kind(layout, node, after, remote=from_other)
                    own = np.where(remote == from_other, late, np.nan)
                    delays.setdefault(kind, []).append(own)
    joined = {kind: np.concatenate(parts) for kind, parts in delays.items()}
    count = {kind: int((~np.isnan(values)).sum()) for kind, values in joined.items()}
    regular = {kind: regular_share(values) for kind, values in joined.items()}
    # A host takes some time to post a receive in turn, however irregular: no cause delays receives.
    posted = {kind for kind in joined if kind.op_type in _RECEIVES and regular[kind] > 0}
    launched = [(regular[kind], joined[kind]) for kind in joined if kind not in posted]
    chance = _is_chance(launched)
    if chance and not posted:
        return None
    typical: dict[LaunchKind, float] = {}
    shares = []
    for kind, values in joined.items():
        among = count[kind] + count.get(replace(kind, remote=not kind.remote), 0)
        is_regular = kind in posted or (regular[kind] >= _REGULARLY and not chance)
        if is_regular and count[kind] >= _LEAST_OFTEN * among:
            takes_ns = typical_ns(values)
            if takes_ns > 0:
                typical[kind] = takes_ns
                shares.append(regular[kind])
    layout = few[0]
    # Upper bound of the sum over sampled steps of the time by which the lags lengthen them, ns
    total = sum(ns * count[kind] for kind, ns in typical.items())
    lanes = sum(len(item.steps) for item in few) * layout.dp
    step_ns = float((layout.start_ns + layout.duration_ns).max(axis=(0, 2)).mean())
    if not typical or total < _LEAST_SHARE * step_ns * lanes:
        return None
    graphs = tuple(
        replace(graph, lags_ns=_lags(layout, graph, typical))
        for layout, graph in zip(draft.layouts, draft.graphs, strict=True)
    )
    where = [
        f"{ns * 1e-6:.1f} ms before {kind.op_type} on stage {kind.stage}"
        + (f" after {kind.previous}" if kind.previous else "")
        + (", input from another stage" if kind.remote else "")
        for kind, ns in sorted(typical.items(), key=lambda item: -item[1] * count[item[0]])
    ]
    return Proposal(
        Sign(tuple(where[:_MOST_NAMED]), float(np.mean(shares))), draft.with_graphs(graphs)
    )


def _is_chance(kinds: Sequence[tuple[float, FloatArray]]) -> bool:
    """Return whether the delays of all kinds together are no more regular than random delays.

    Of many kinds some look regular by chance, especially kinds with few launches. So the share of
    regular launches is averaged over all kinds, weighted by the total delay of each kind.

    Parameters
    ----------
    kinds : sequence of (float, float64 array)
        For each kind, the share of regular launches, and the delays with NaN for launches of other
        kinds.
    """
    late = [(share, values[~np.isnan(values)]) for share, values in kinds if share > 0]
    count = np.array([len(values) for _, values in late])
    time = np.array([np.median(values) for _, values in late])
    if not len(count):
        return True
    shares = np.array([share for share, _ in late])
    weights = count * time / (count * time).sum()
    spread = np.sqrt(_BY_CHANCE * (1 - _BY_CHANCE) * (weights**2 / count).sum())
    return bool((weights * shares).sum() < _BY_CHANCE + _CHANCE * spread)


def _followed(layout: Layout, graph: Graph) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each operation that hosts launch as soon as possible, with its dependencies.

    The first computation of each stage is left out, because it waits for its data.
    """
    names = [layout.op_names[code] for code in layout.nodes.op.tolist()]
    begins = set()
    for stage in range(layout.pp):
        computes = computes_of(layout, stage)
        if len(computes):
            begins.add(int(computes[np.argmin(layout.launch[computes])]))
    in_turn = _posted_in_turn(layout, graph, names)
    for unit in graph.units:
        for node, after in zip(unit.members, unit.after, strict=True):
            if names[node] in _LAUNCHED and after and node not in begins:
                yield node, after
            elif node in in_turn:
                yield node, (in_turn[node],)


def _posted_in_turn(layout: Layout, graph: Graph, names: Sequence[str]) -> dict[int, int]:
    """Return receives posted in turn, each with the computation right before it.

    Receives of a type on a stage count as posted in turn if a receive of this type and stage
    depends on a computation of the other direction.
    """
    after = {
        node: befores
        for unit in graph.units
        for node, befores in zip(unit.members, unit.after, strict=True)
        if names[node] in _RECEIVES
    }
    kinds = {
        (names[node], layout.nodes.pp[node])
        for node, befores in after.items()
        if any(names[other] == _RECEIVES[names[node]] for other in befores)
    }
    previous: dict[int, int] = {}
    for stage in {stage for _, stage in kinds}:
        computes = computes_of(layout, stage)
        computes = computes[np.argsort(layout.launch[computes])]
        for node, befores in after.items():
            if (names[node], layout.nodes.pp[node]) not in kinds or layout.nodes.pp[node] != stage:
                continue
            place = np.searchsorted(layout.launch[computes], layout.launch[node])
            before = int(computes[place - 1]) if place else -1
            # The end of a computation that waits for nested collectives depends on those
            # collectives.
            if before in befores and before not in graph.inside:
                previous[node] = before
    return previous


def _is_remote(layout: Layout, node: int, before: int) -> bool:
    """Return whether a node's dependency is an input from another stage."""
    nodes = layout.nodes
    received = layout.op_names[nodes.op[before]] in _RECEIVES
    return bool(nodes.pp[node] != nodes.pp[before]) or received


def _kind(layout: Layout, node: int, after: Sequence[int], *, remote: bool) -> LaunchKind:
    nodes, names = layout.nodes, layout.op_names
    stage = int(nodes.pp[node])
    computed = [
        names[nodes.op[other]]
        for other in after
        if nodes.pp[other] == stage and names[nodes.op[other]] in COMPUTE
    ]
    return LaunchKind(names[nodes.op[node]], stage, computed[0] if computed else "", remote)


def _lags(
    layout: Layout, graph: Graph, typical: dict[LaunchKind, float]
) -> dict[tuple[int, int], float]:
    """Return the typical launch delay of each (node, dependency), ns."""
    lags: dict[tuple[int, int], float] = {}
    for node, after in _followed(layout, graph):
        for other in after:
            kind = _kind(layout, node, after, remote=_is_remote(layout, node, other))
            lag = typical.get(kind, 0.0)
            if lag:
                lags[node, other] = lag
    return lags
