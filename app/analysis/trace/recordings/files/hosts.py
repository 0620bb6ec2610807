"""Files of the hosts of one job, each of which counts its ranks from 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from app.analysis.trace.model import SessionMeta, Sizes, Trace


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Return by what names sort as people count: ``host2`` comes before ``host10``.

    Examples
    --------
    >>> sorted(["w-10.xplane.pb", "w-2.xplane.pb"], key=natural_key)
    ['w-2.xplane.pb', 'w-10.xplane.pb']
    """
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((int(part) if part.isdecimal() else -1, part) for part in parts)


def number_ranks(
    names: Sequence[str], traces: Sequence[Trace], meta: SessionMeta | None
) -> list[Trace]:
    """Return the traces of hosts with ranks that count through all of them, in order of names.

    Parameters
    ----------
    meta : SessionMeta or None
        What is given with them: their sizes are those of the job.
    """
    counts = [int(trace.rank.max()) + 1 for trace in traces]
    tensor = {trace.meta.sizes.tp for trace in traces}
    tp = tensor.pop() if len(tensor) == 1 and meta is None else 1
    sizes = Sizes(dp=sum(counts) // tp, pp=1, tp=tp) if meta is None else meta.sizes
    numbered = list(traces)
    first = 0
    for place in sorted(range(len(names)), key=lambda number: natural_key(names[number])):
        numbered[place] = _shifted(traces[place], first, sizes)
        first += counts[place]
    return numbered


def _shifted(trace: Trace, first: int, sizes: Sizes) -> Trace:
    rank = trace.rank + first
    inner = sizes.tp * sizes.cp
    hosts = {first + own: host for own, host in trace.meta.hosts.items()}
    return replace(
        trace,
        meta=replace(trace.meta, sizes=sizes, hosts=hosts),
        rank=rank,
        dp=(rank // inner % sizes.dp).astype(trace.dp.dtype),
    )
