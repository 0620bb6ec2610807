"""A profiler's recording of an execution: columns as a job sends them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.oracles.physics.execute import Event, Execution
from tests.oracles.physics.world import Times, World

_NS: Final = 1e9
_EPOCH_NS: Final = 1_730_000_000_000_000_000
# Operations of the whole step, without a microbatch.
_OF_THE_STEP: Final = frozenset(
    {"params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"}
)
_CHUNKLESS: Final = frozenset({"optimizer-clip-main-grad", "optimizer"})
ABSENT: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Columns of equal length, and the metadata that go with them.

    Parameters
    ----------
    op_names : tuple of str
    op : int8 array
        Places in `op_names`.
    columns : dict of str to int64 array
        ``rank dp pp tp step mb mc start_ns dur_ns``; `ABSENT` where nothing is recorded.
    metadata : dict
        As a job sends them.
    """

    op_names: tuple[str, ...]
    op: NDArray[np.int8]
    columns: dict[str, NDArray[np.int64]]
    metadata: dict[str, Any]


def record(world: World, execution: Execution, *, gap_s: float) -> Recording:
    """Record an execution; steps are consecutive, `gap_s` apart."""
    shape = world.shape
    ends_s = np.cumsum(execution.step_s + gap_s)
    begin_ns = _EPOCH_NS + np.rint((ends_s - execution.step_s - gap_s) * _NS).astype(np.int64)
    kept = [
        event
        for event in execution.events
        if shape.scatter_recorded or event.kind != "grads-reduce-scatter"
    ]
    noted = [(event.kind, event, 0) for event in kept]
    if shape.tensor_traced:
        noted += [
            ("tp-all-reduce", _collective(world, event, rank), rank)
            for event in kept
            if event.kind.endswith("-compute")
            for rank in range(shape.tp)
        ]
    if world.between is not None:
        noted += [(world.between, _between(world, stage), 0) for stage in range(shape.pp)]
    if shape.cp > 1:
        noted += [
            ("cp-all-gather", _exchange(world, event, rank), rank * shape.tp)
            for event in kept
            if event.kind.endswith("-compute")
            for rank in range(shape.cp)
        ]
    return _in_order(world, noted, begin_ns)


def _in_order(
    world: World, noted: Sequence[tuple[str, Event, int]], begin_ns: NDArray[np.int64]
) -> Recording:
    """Return events of (name, event, rank within its worker) in a recorder's order.

    The order is rank by rank, then by start.
    """
    shape = world.shape
    names = tuple(dict.fromkeys(name for name, _, _ in noted))
    code = {name: place for place, name in enumerate(names)}
    lanes = (len(noted), *shape.lanes)

    def by_event(values: Iterable[int]) -> NDArray[np.int64]:
        return np.fromiter(values, np.int64, len(noted))[:, None, None]

    def ns(times_s: Iterable[Times]) -> NDArray[np.int64]:
        return begin_ns[:, None] + np.rint(np.stack([*times_s]) * _NS).astype(np.int64)

    without_mb, without_mc = _OF_THE_STEP | {world.between}, _CHUNKLESS | {world.between}
    events = [event for _, event, _ in noted]
    dp = np.arange(shape.dp)
    stage = by_event(event.stage for event in events)
    inner = by_event(rank for _, _, rank in noted)
    start_ns, end_ns = ns(e.start_s for e in events), ns(e.end_s for e in events)
    columns = {
        "rank": (stage * shape.dp + dp) * shape.cp * shape.tp + inner,
        "dp": dp,
        "pp": stage,
        "tp": inner % shape.tp,
        "step": np.arange(shape.steps)[:, None]
        + by_event(
            100 - (name == world.between and world.between_ends_step) for name, _, _ in noted
        ),
        "mb": by_event(
            ABSENT if name in without_mb else event.microbatch for name, event, _ in noted
        ),
        "mc": by_event(ABSENT if name in without_mc else event.chunk for name, event, _ in noted),
        "start_ns": start_ns,
        "dur_ns": end_ns - start_ns,
    }
    flat = {key: np.broadcast_to(column, lanes).ravel() for key, column in columns.items()}
    order = np.lexsort((flat["start_ns"], flat["rank"]))
    op = np.broadcast_to(by_event(code[name] for name, _, _ in noted), lanes).ravel()
    if world.between is not None:
        # An operation between steps that only some steps have.
        order = order[(op[order] != code[world.between]) | (flat["dur_ns"][order] > 0)]
    return Recording(
        op_names=names,
        op=op[order].astype(np.int8),
        columns={key: column[order] for key, column in flat.items()},
        metadata=_metadata(world),
    )


def _between(world: World, stage: int) -> Event:
    """Return the operations between steps of a stage's ranks."""
    lasts_s = world.between_s[stage]
    return Event("", stage, 0, 0, np.zeros_like(lasts_s), lasts_s)


def _collective(world: World, event: Event, rank: int) -> Event:
    """Return the collective at the end of a pass, as one tensor-parallel rank records it."""
    side = 0 if event.kind.startswith("forward") else 1
    place = (event.stage, event.chunk, event.microbatch)
    computing = (world.forward_s if side == 0 else world.backward_s)[place]
    if side:
        of_weights = event.kind == "backward-wgrad-compute"
        computing = computing * (world.weights if of_weights else 1 - world.weights)
    mine = computing * world.rank_s[rank, event.stage, side]
    if side == 0:
        mine = mine + world.late_s[(rank, *place)]
    slowest = computing * world.rank_s[:, event.stage, side].max(axis=0)
    # A delay of the whole group, such as a pause of the host, delays every rank.
    arrived_s = np.minimum(event.end_s, event.end_s - np.maximum(slowest - mine, 0.0))
    if side == 0:
        late = world.late_s[:, event.stage, event.chunk, event.microbatch]
        lag_s = (computing * world.rank_s[:, event.stage, side] + late).max(axis=0) - mine
        arrived_s = event.end_s - np.maximum(lag_s, 0.0)
    moving_s = 0.01 * computing
    return Event("", event.stage, event.chunk, event.microbatch, arrived_s - moving_s, event.end_s)


def _exchange(world: World, event: Event, rank: int) -> Event:
    """Return the collective at the end of a pass, as one context-parallel rank records it."""
    side = 0 if event.kind.startswith("forward") else 1
    place = (event.stage, event.chunk, event.microbatch)
    taken_s = (world.forward_s if side == 0 else world.backward_s)[place]
    taken_s = taken_s * world.rank_s[:, event.stage, side].max(axis=0)
    factors = world.context_s[:, event.stage, side]
    early_s = taken_s * (factors.max(axis=0) - factors[rank])
    if event.kind == "backward-wgrad-compute":
        early_s = early_s * world.weights
    elif side:
        early_s = early_s * (1 - world.weights)
    begin_s = np.maximum(event.end_s - early_s - 0.01 * taken_s, event.start_s)
    return Event("", event.stage, event.chunk, event.microbatch, begin_s, event.end_s)


def _metadata(world: World) -> dict[str, Any]:
    shape = world.shape
    workers, ranks = shape.pp * shape.dp, shape.tp * shape.cp
    meta: dict[str, Any] = {
        "dp": shape.dp,
        "pp": shape.pp,
        "tp": shape.tp,
        "cp": shape.cp,
        "vpp": shape.vpp,
        "world": workers * ranks,
        "hosts": {
            str(rank): f"machine-{rank // ranks // shape.hosts_of:03d}"
            for rank in range(workers * ranks)
        },
    }
    if shape.ep > 1:
        meta["ep"] = shape.ep
    if world.layers is not None:
        meta["layers"] = [list(chunks) for chunks in world.layers]
    if shape.lengths_recorded and world.lengths is not None:
        meta["sequence_lengths"] = {
            str(step + 100): lengths for step, lengths in enumerate(world.lengths)
        }
    return meta
