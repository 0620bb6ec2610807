"""Which stage computes which chunk of the model, where that is not the same order every time.

With interleaving, microbatches pass chunk 0 of all stages and then chunk 1 of all stages. In a V
(ZB-V, DualPipeV) they turn back: the last stage goes on with its second chunk, and the first stage
ends the model. The metadata may say so; otherwise it shows in who receives: in a V the last stage
receives nothing for its second chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.evidence import Sign
from app.analysis.replay.layout.pipeline import VirtualStage
from app.analysis.trace.model import FORWARD_COMPUTE, FORWARD_RECV, FORWARD_SEND, Trace

# Key of the metadata: the stage of each chunk of the model, in the order of a forward.
PLACEMENT: Final = "placement"
# In a V half of what the ends of the pipeline compute is transferred, else all of it.
_HALF: Final = 0.75
_V_CHUNKS: Final = 2
_REGULARLY: Final = 0.98


def find_placement(trace: Trace) -> tuple[tuple[VirtualStage, ...], Sign] | None:
    """Return the virtual stages in the order of a forward; None where chunk follows chunk."""
    given = placement_of(trace)
    if given is not None:
        usual = tuple(sorted(given, key=lambda stage: (stage[1], stage[0])))
        return None if given == usual else (given, Sign(("the metadata say so",), 1.0))
    sizes = trace.meta.sizes
    if sizes.vpp != _V_CHUNKS or sizes.pp == 1:
        return None
    share = _turns_back(trace)
    if share is None:
        return None
    last = sizes.pp - 1
    way = [(stage, 0) for stage in range(sizes.pp)] + [(last - i, 1) for i in range(sizes.pp)]
    where = f"stage {last} goes on with what it has computed itself, stage 0 ends the model"
    return tuple(way), Sign((where,), share)


def placement_of(trace: Trace) -> tuple[VirtualStage, ...] | None:
    """Return the virtual stages that the metadata give; None where they give none that can be.

    ``placement`` is a list with the stage of each chunk of the model, such as ``[0, 1, 1, 0]``, or
    a mapping of chunk to stage. A stage numbers its chunks in that order.
    """
    given = trace.meta.extra.get(PLACEMENT)
    if isinstance(given, Mapping):
        keys = [str(number) for number in range(len(given))]
        named = {str(key): value for key, value in given.items()}
        given = [named.get(key) for key in keys]
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        return None
    count: Counter[int] = Counter()
    way: list[VirtualStage] = []
    for stage in given:
        if isinstance(stage, bool) or not isinstance(stage, int):
            return None
        if not 0 <= stage < trace.meta.sizes.pp:
            return None
        way.append((stage, count[stage]))
        count[stage] += 1
    return tuple(way) if max(count.values()) <= trace.meta.sizes.vpp else None


def _turns_back(trace: Trace) -> float | None:
    """Return how surely microbatches turn back at the last stage; None where they do not."""
    last = trace.meta.sizes.pp - 1
    sent, received = _of(trace, FORWARD_SEND, 0), _of(trace, FORWARD_RECV, last)
    if sent or received:
        share = max(
            part / max(_of(trace, FORWARD_COMPUTE, stage), 1)
            for part, stage in ((sent, 0), (received, last))
            if part
        )
        return 1.0 if share <= _HALF else None
    return _by_time(trace)


def _of(trace: Trace, name: str, stage: int) -> int:
    return int(((trace.op == trace.op_names.index(name)) & (trace.pp == stage)).sum())


def _by_time(trace: Trace) -> float | None:
    """Tell by when the second chunk of a microbatch begins at both ends of the pipeline."""
    second = (trace.op == trace.op_names.index(FORWARD_COMPUTE)) & (trace.mc == 1)
    starts = []
    for stage in (0, trace.meta.sizes.pp - 1):
        rows = np.flatnonzero(second & (trace.pp == stage))
        rows = rows[np.lexsort((trace.mb[rows], trace.dp[rows], trace.step[rows]))]
        starts.append(trace.start_ns[rows])
    first, last = starts
    if not len(first) or len(first) != len(last):
        return None
    share = float((last < first).mean())
    return share if share >= _REGULARLY else None
