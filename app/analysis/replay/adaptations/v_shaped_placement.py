"""Placement of model chunks on stages: V shapes and bidirectional pipelines.

With interleaving, microbatches pass chunk 0 of all stages, then chunk 1. In a V (ZB-V, DualPipeV)
they turn back at the last stage. DualPipe has two copies of the model, and microbatches enter at
either end. The metadata may name the placement; otherwise the recorded receives show it: in a V the
last stage receives nothing for its second chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.layout.pipeline import Route, VirtualStage
from app.analysis.trace.model import FORWARD_COMPUTE, FORWARD_RECV, FORWARD_SEND, Trace

# Metadata key whose value lists the stage of each model chunk in forward order.
PLACEMENT: Final = "placement"
# Largest share of forwards with a transfer at an end of the pipeline for which a placement is a V.
# The share is a half in a V and 1 in all other placements; this value lies between the two.
_HALF: Final = 0.75
_V_CHUNKS: Final = 2
_REGULARLY: Final = 0.98


def find_placement(trace: Trace) -> tuple[tuple[Route, ...], Sign] | None:
    """Return the routes of microbatches and the sign; None if they pass chunk after chunk."""
    given = placement_of(trace)
    if given is not None:
        default = tuple(sorted(given[0], key=lambda stage: (stage[1], stage[0])))
        return None if given == (default,) else (given, Sign(("the metadata say so",), 1.0))
    sizes = trace.meta.sizes
    if sizes.vpp != _V_CHUNKS or sizes.pp == 1:
        return None
    share = _turns_back(trace)
    if share is None:
        return None
    last = sizes.pp - 1
    there = tuple((stage, 0) for stage in range(sizes.pp))
    back = tuple((last - i, 1) for i in range(sizes.pp))
    if _passes_both_chunks(trace):
        where = f"stage {last} goes on with what it has computed itself, stage 0 ends the model"
        return (there + back,), Sign((where,), share)
    where = f"microbatches of chunk 0 enter at stage 0, those of chunk 1 at stage {last}"
    return (there, back), Sign((where,), share)


def placement_of(trace: Trace) -> tuple[Route, ...] | None:
    """Return the routes that the metadata give; None if the metadata give no possible route.

    ``placement`` is a list with the stage of each chunk of the model, such as ``[0, 1, 1, 0]``, or
    a mapping of chunk to stage. If microbatches enter at both ends, it is a list of two such lists,
    such as ``[[0, 1], [1, 0]]``. A stage numbers its chunks in the order of the list.
    """
    given = trace.meta.extra.get(PLACEMENT)
    if not given:
        return None
    several = isinstance(given, Sequence) and all(isinstance(part, list) for part in given)
    count: Counter[int] = Counter()
    routes = []
    for part in given if several else [given]:
        route = _route(part, trace.meta.sizes.pp, count)
        if route is None:
            return None
        routes.append(route)
    return tuple(routes) if max(count.values()) <= trace.meta.sizes.vpp else None


def _route(given: object, pp: int, count: Counter[int]) -> Route | None:
    """Return a route of microbatches, and add the stages' chunks on it to `count`.

    `count` is the number of chunks assigned to each stage so far.
    """
    if isinstance(given, Mapping):
        keys = [str(number) for number in range(len(given))]
        named = {str(key): value for key, value in given.items()}
        given = [named.get(key) for key in keys]
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        return None
    route: list[VirtualStage] = []
    for stage in given:
        if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage < pp:
            return None
        route.append((stage, count[stage]))
        count[stage] += 1
    return tuple(route)


def _turns_back(trace: Trace) -> float | None:
    """Return the confidence that microbatches turn back at the last stage; None if they do not."""
    last = trace.meta.sizes.pp - 1
    sent, received = _of(trace, FORWARD_SEND, 0), _of(trace, FORWARD_RECV, last)
    if sent or received:
        share = max(
            part / max(_of(trace, FORWARD_COMPUTE, stage), 1)
            for part, stage in ((sent, 0), (received, last))
            if part
        )
        return 1.0 if share <= _HALF else None
    # Without transfers: the share of microbatches whose second chunk begins at the last stage
    # before stage 0 must be nearly 1.
    second = (trace.op == trace.op_names.index(FORWARD_COMPUTE)) & (trace.mc == 1)
    starts = []
    for place in (0, trace.meta.sizes.pp - 1):
        rows = np.flatnonzero(second & (trace.pp == place))
        rows = rows[np.lexsort((trace.mb[rows], trace.dp[rows], trace.step[rows]))]
        starts.append(trace.start_ns[rows])
    at_first, at_last = starts
    if not len(at_first) or len(at_first) != len(at_last):
        return None
    earlier = float((at_last < at_first).mean())
    return earlier if earlier >= _REGULARLY else None


def _of(trace: Trace, name: str, stage: int) -> int:
    return int(((trace.op == trace.op_names.index(name)) & (trace.pp == stage)).sum())


def _passes_both_chunks(trace: Trace) -> bool:
    """Return whether the last stage runs the second chunk of a microbatch after its first chunk.

    This is so in a V. If microbatches enter at both ends, the two chunks have different
    microbatches.
    """
    forwards = trace.op == trace.op_names.index(FORWARD_COMPUTE)
    last = np.flatnonzero(forwards & (trace.pp == trace.meta.sizes.pp - 1))
    last = last[np.lexsort((trace.mb[last], trace.rank[last], trace.step[last]))]
    first, second = last[trace.mc[last] == 0], last[trace.mc[last] == 1]
    same = all(
        np.array_equal(column[first], column[second])
        for column in (trace.step, trace.rank, trace.mb)
    )
    if not same or not len(first):
        return False
    ended = trace.start_ns[first] + trace.duration_ns[first]
    return bool((trace.start_ns[second] >= ended).mean() >= _REGULARLY)
