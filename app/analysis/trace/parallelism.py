"""Parallelism of a trace: layers of stages, context-parallel rings, groups of collectives.

In a context-parallel ring each rank waits only for its neighbors, in transfers that end at
different times; the rank that delays the others is the rank with the longest computing time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    CONTEXT_TYPES,
    EXPERT_TYPES,
    FORWARD_COMPUTE,
    RING,
    WGRAD_COMPUTE,
    Sizes,
    Trace,
)


def layers_per_stage(extra: Mapping[str, Any], stages: int) -> tuple[int, ...] | None:
    """Return the number of layers of each stage from a session's metadata; None if missing.

    ``layers`` is a list with an item for each stage: its number of layers, or a list with the
    number of its only chunk.
    """
    layers = layers_per_chunk(extra, stages, 1)
    return None if layers is None else tuple(count for (count,) in layers)


def layers_per_chunk(
    extra: Mapping[str, Any], stages: int, chunks: int
) -> tuple[tuple[int, ...], ...] | None:
    """Return the number of layers of each chunk of each stage, shape (pp, vpp); None if missing.

    ``layers`` is a list with an item for each stage: a list with the layers of each chunk, or one
    number that the chunks share evenly.

    Examples
    --------
    >>> layers_per_chunk({"layers": [8, [3, 5]]}, 2, 2)
    ((4, 4), (3, 5))
    """
    given = extra.get("layers")
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != stages:
        return None
    layers = [_stage_layers(item, chunks) for item in given]
    return None if any(item is None for item in layers) else tuple(item for item in layers if item)


def _stage_layers(item: object, chunks: int) -> tuple[int, ...] | None:
    """Return the number of layers of each chunk of a stage; None if `item` is malformed."""
    if _is_count(item):
        return None if item % chunks else (item // chunks,) * chunks
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != chunks:
        return None
    return tuple(item) if all(_is_count(count) for count in item) else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def head_in_layers(extra: Mapping[str, Any]) -> float | None:
    """Return the FLOPs of the head ÷ those of a layer, by the metadata's model; None if unknown.

    With hidden size h, vocabulary V and sequence length s, the head takes 2hV FLOPs a token and a
    layer 24h² + 4hs, of which the feed-forward's part is 4h·`intermediate`, or 6h·`intermediate` if
    it is gated (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training", appendix).

    Examples
    --------
    >>> model = {"hidden": 4096, "vocabulary": 131072}
    >>> head_in_layers({"model": model, "seq_length": 8192})
    2.0
    """
    model = extra.get("model")
    if not isinstance(model, Mapping):
        return None
    hidden, vocabulary = _size(model.get("hidden")), _size(model.get("vocabulary"))
    sequence = _size(extra.get("seq_length", model.get("sequence")))
    if not (hidden and vocabulary and sequence):
        return None
    wide = _size(model.get("intermediate")) or 4 * hidden
    experts = _size(model.get("active_experts")) or 1
    feed_forward = (3 if model.get("gated") else 2) * hidden * wide * experts
    return 2 * hidden * vocabulary / (2 * (4 * hidden**2 + feed_forward) + 4 * hidden * sequence)


_LARGEST: Final = 1 << 40  # no model has a larger size; products stay finite as floats


def _size(value: object) -> int | None:
    """Return a size of a model; None if it is missing or malformed."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST:
        return value
    return None


_COMPUTATIONS: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE)


def has_rings(trace: Trace) -> bool:
    """Return whether the trace has transfers of context-parallel rings."""
    code = trace.op_names.index(RING)
    return bool((trace.op == code).any())


def own_compute_times(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows of all computations, and their durations minus transfers inside them, ns.

    A transfer is inside if the same rank begins it, by its own clock, before the computation ends.
    """
    computes = _are(trace, _COMPUTATIONS)
    rows = np.flatnonzero(computes | _are(trace, (*CONTEXT_TYPES, RING)))
    rows = rows[np.lexsort((~computes[rows], trace.start_ns[rows], trace.rank[rows]))]
    rank, start = trace.rank[rows], trace.start_ns[rows]
    end = start + trace.duration_ns[rows]
    computing = computes[rows]
    holder = np.maximum.accumulate(np.where(computing, np.arange(len(rows)), 0))
    inside = ~computing & (rank[holder] == rank) & (start < end[holder]) & computing[holder]
    waited_ns = np.minimum(end, end[holder]) - start
    own_ns = trace.duration_ns[rows] - np.bincount(
        holder[inside], weights=waited_ns[inside], minlength=len(rows)
    )
    return rows[computing], np.maximum(own_ns[computing], 0.0)


def _are(trace: Trace, names: Sequence[str]) -> NDArray[np.bool_]:
    return np.isin(trace.op, [trace.op_names.index(name) for name in names])


def busiest_ranks(trace: Trace) -> NDArray[np.int32]:
    """Return each cell's rank with the longest own computing time, shape (dp, pp); -1 if none.

    This rank comes last in its ring. Of ranks with equal times the lowest rank is returned.
    """
    sizes = trace.meta.sizes
    rows, own_ns = own_compute_times(trace)
    ranks, first, member = np.unique(trace.rank[rows], return_index=True, return_inverse=True)
    total_ns = np.bincount(member.ravel(), weights=own_ns)
    busiest = np.full((sizes.dp, sizes.pp), -1, dtype=np.int32)
    # NumPy keeps the last assignment to a repeated index: the rank with the longest time, and of
    # equal times the lowest rank.
    order = np.lexsort((-ranks.astype(np.int64), total_ns))
    busiest[trace.dp[rows[first[order]]], trace.pp[rows[first[order]]]] = ranks[order]
    return busiest


EXPERTS_KEY: Final = "ep"


def expert_ranks(trace: Trace) -> int | None:
    """Return the number of consecutive DP ranks that share experts; None if it is unknown.

    It is the metadata's ``ep``, which must divide the number of DP ranks.
    """
    size = trace.meta.extra.get(EXPERTS_KEY)
    return size if _is_count(size) and trace.meta.sizes.dp % size == 0 else None


def shares_experts(trace: Trace) -> bool:
    """Return whether DP ranks share experts, according to the operations or the metadata."""
    types = [trace.op_names.index(name) for name in EXPERT_TYPES]
    return bool(np.isin(trace.op, types).any()) or (expert_ranks(trace) or 1) > 1


def groups_of(ranks: NDArray[np.int32], sizes: Sizes, types: Sequence[str]) -> NDArray[np.int32]:
    """Return the groups of a cell's ranks that share collectives of `types`, shape (groups, ranks).

    If all tensor- and context-parallel ranks of a cell are recorded, consecutive ranks are taken to
    be tensor-parallel, as launchers number them; else the ranks are a single group.
    """
    if len(ranks) != sizes.tp * sizes.cp:
        return ranks[None]
    table = ranks.reshape(sizes.cp, sizes.tp)
    return table.T if types == CONTEXT_TYPES else table
