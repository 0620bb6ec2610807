"""What a profiler writes of DP ranks that run different numbers of microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from app.analysis.synthesis.program import CODES
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from app.analysis.synthesis.phase import Phase
    from app.analysis.synthesis.recording.tensor import Rows


def cut_anew(phase: Phase, rows: Rows) -> Rows:
    """Return rows in which each step's computations are as many microbatches as its rank runs.

    Parameters
    ----------
    rows : mapping of str to arrays, shape (dp, steps, rows)
        Of the only stage.
    """
    counts = phase.work.microbatches
    assert counts is not None  # noqa: S101 - who calls has seen that
    op = rows["op"][0, 0]
    forward, backward = (op == CODES[name] for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE))
    computing = forward | backward
    start, duration = rows["start_ns"], rows["duration_ns"]
    begin = start[..., computing].min(axis=-1)
    whole = (start + duration)[..., computing].max(axis=-1) - begin
    forwards = duration[..., forward].sum(axis=-1)
    share = forwards / (forwards + duration[..., backward].sum(axis=-1))
    many = counts.T.ravel()
    lane = np.repeat(np.arange(len(many)), many)
    number = np.arange(len(lane)) - np.repeat(np.cumsum(many) - many, many)
    each = (whole.ravel() / many)[lane]
    ends = begin.ravel()[lane] + np.rint((number + 1) * each).astype(np.int64)
    starts = begin.ravel()[lane] + np.rint(number * each).astype(np.int64)
    turns = starts + np.rint(share.ravel()[lane] * each).astype(np.int64)
    added: dict[str, list[NDArray[Any]]] = {name: [] for name in rows}
    for name, first, last in ((FORWARD_COMPUTE, starts, turns), (BACKWARD_COMPUTE, turns, ends)):
        own: dict[str, NDArray[Any] | int] = {
            "op": CODES[name],
            "mb": number,
            "mc": 0,
            "order": number,
            "start_ns": first,
            "duration_ns": last - first,
        }
        for column, values in rows.items():
            of_lane = values[..., 0].ravel()[lane]
            added[column].append(np.broadcast_to(own.get(column, of_lane), lane.shape))
    return {
        name: np.concatenate([values[..., ~computing].ravel(), *added[name]])
        for name, values in rows.items()
    }
