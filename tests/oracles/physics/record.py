"""What a profiler writes down of an execution: columns as a job sends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.oracles.physics.execute import Event, Execution
from tests.oracles.physics.world import World

_NS: Final = 1e9
_EPOCH_NS: Final = 1_730_000_000_000_000_000
# Operations of a whole step, which belong to no microbatch.
_OF_THE_STEP: Final = frozenset(
    {"params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"}
)
ABSENT: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Columns of equal length, and the metadata that go with them.

    Parameters
    ----------
    op : list of str
    columns : dict of str to int64 array
        ``rank dp pp tp step mb mc start_ns dur_ns``; `ABSENT` where nothing is recorded.
    metadata : dict
        As a job sends them.
    """

    op: list[str]
    columns: dict[str, NDArray[np.int64]]
    metadata: dict[str, Any]


def record(world: World, execution: Execution, *, gap_s: float) -> Recording:
    """Record an execution; steps follow one another after `gap_s`."""
    shape = world.shape
    ends_s = np.cumsum(execution.step_s + gap_s)
    begin_ns = _EPOCH_NS + np.rint((ends_s - execution.step_s - gap_s) * _NS).astype(np.int64)
    kept = [
        event
        for event in execution.events
        if shape.scatter_recorded or event.kind != "grads-reduce-scatter"
    ]
    tables = [_table(world, event, begin_ns, event.kind, 0) for event in kept]
    if shape.tensor_traced:
        tables += [
            _table(world, _collective(world, event, rank), begin_ns, "tp-all-reduce", rank)
            for event in kept
            if event.kind.endswith("-compute")
            for rank in range(shape.tp)
        ]
    if shape.cp > 1:
        tables += [
            _table(world, _exchange(world, event, rank), begin_ns, "cp-all-gather", rank * shape.tp)
            for event in kept
            if event.kind.endswith("-compute")
            for rank in range(shape.cp)
        ]
    names = [name for name, table in tables for _ in range(len(table["rank"]))]
    columns = {key: np.concatenate([table[key] for _, table in tables]) for key in tables[0][1]}
    # As a recorder writes them: rank by rank, by start.
    order = np.lexsort((columns["start_ns"], columns["rank"]))
    return Recording(
        op=[names[index] for index in order],
        columns={key: column[order] for key, column in columns.items()},
        metadata=_metadata(world),
    )


def _collective(world: World, event: Event, rank: int) -> Event:
    """Return the collective at the end of a pass as one tensor-parallel rank sees it."""
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
    # What holds the whole group up (a pause of the host) holds every rank up.
    arrived_s = np.minimum(event.end_s, event.end_s - np.maximum(slowest - mine, 0.0))
    if side == 0:
        late = world.late_s[:, event.stage, event.chunk, event.microbatch]
        lag_s = (computing * world.rank_s[:, event.stage, side] + late).max(axis=0) - mine
        arrived_s = event.end_s - np.maximum(lag_s, 0.0)
    moving_s = 0.01 * computing
    return Event("", event.stage, event.chunk, event.microbatch, arrived_s - moving_s, event.end_s)


def _exchange(world: World, event: Event, rank: int) -> Event:
    """Return the collective at the end of a pass as one context-parallel rank sees it."""
    side = 0 if event.kind.startswith("forward") else 1
    place = (event.stage, event.chunk, event.microbatch)
    taken_s = (world.forward_s if side == 0 else world.backward_s)[place]
    factors = world.context_s[:, event.stage, side]
    early_s = taken_s * (factors.max(axis=0) - factors[rank])
    if event.kind == "backward-wgrad-compute":
        early_s = early_s * world.weights
    elif side:
        early_s = early_s * (1 - world.weights)
    begin_s = np.maximum(event.end_s - early_s - 0.01 * taken_s, event.start_s)
    return Event("", event.stage, event.chunk, event.microbatch, begin_s, event.end_s)


def _table(
    world: World, event: Event, begin_ns: NDArray[np.int64], name: str, tp: int
) -> tuple[str, dict[str, NDArray[np.int64]]]:
    shape = world.shape
    steps, dp = np.meshgrid(np.arange(shape.steps), np.arange(shape.dp), indexing="ij")
    start_ns = begin_ns[:, None] + np.rint(event.start_s * _NS).astype(np.int64)
    end_ns = begin_ns[:, None] + np.rint(event.end_s * _NS).astype(np.int64)
    count = steps.size
    microbatch = ABSENT if name in _OF_THE_STEP else event.microbatch
    has_chunk = name not in ("optimizer", "optimizer-clip-main-grad")
    return name, {
        "rank": ((event.stage * shape.dp + dp) * shape.cp * shape.tp + tp).ravel(),
        "dp": dp.ravel(),
        "pp": np.full(count, event.stage),
        "tp": np.full(count, tp % shape.tp),
        "step": steps.ravel() + 100,
        "mb": np.full(count, microbatch),
        "mc": np.full(count, event.chunk if has_chunk else ABSENT),
        "start_ns": start_ns.ravel(),
        "dur_ns": (end_ns - start_ns).ravel(),
    }


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
    if shape.lengths_recorded and world.lengths is not None:
        meta["sequence_lengths"] = {
            str(step + 100): lengths for step, lengths in enumerate(world.lengths)
        }
    return meta
