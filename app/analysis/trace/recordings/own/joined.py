"""Which ranges of a job's own are parts of one computation.

A job that labels its layers (``attn(F)``, ``mlp(F)``) has many ranges for one forward of a
microbatch. Those that name their microbatch are joined by it. Of others those are one computation
between which the rank neither computes anything else nor sends or receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.analysis.trace.model import ABSENT, BACKWARD_COMPUTE, FORWARD_COMPUTE, WGRAD_COMPUTE
from app.analysis.trace.recordings.labels import Label, LabelKind

_JOINED: Final = frozenset({FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE})
_Key = tuple[int | None, str, int, int, int]


def join_ranges(labels: Sequence[Label], steps: Sequence[int | None]) -> dict[int, list[int]]:
    """Return the parts of each computation, by the place of the first one.

    A forward that comes after the backward of its microbatch began is done for it again, and a part
    of it.

    Parameters
    ----------
    labels : sequence of Label
        Those of one rank, by start.
    steps : sequence of int or None
        The step of each.

    Returns
    -------
    parts : dict
        Rising places; of computations with one part as well. Other operations are not in it.

    Examples
    --------
    >>> layers = [Label("forward-compute", LabelKind.COMPUTE, mb=mb, own=True) for mb in (0, 1, 0)]
    >>> join_ranges(layers, [7, 7, 7])
    {0: [0, 2], 1: [1]}
    """
    parts: dict[int, list[int]] = {}
    by_microbatch: dict[_Key, int] = {}
    running: tuple[_Key, int] | None = None
    for place, (label, step) in enumerate(zip(labels, steps, strict=True)):
        if label.op not in _JOINED:
            if label.kind is not LabelKind.COLLECTIVE:
                running = None
            continue
        key = (step, label.op, label.stage, label.mb, label.mc)
        first = None
        if label.own and label.mb != ABSENT:
            again = (step, BACKWARD_COMPUTE, label.stage, label.mb, label.mc)
            if label.op == FORWARD_COMPUTE and again in by_microbatch:
                key = again
            first = by_microbatch.setdefault(key, place)
        elif label.own and running is not None and running[0] == key:
            first = running[1]
        first = place if first is None else first
        parts.setdefault(first, []).append(place)
        running = key, first
    return parts
