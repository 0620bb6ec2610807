"""Where workers run, as the page's script needs it: short also for thousands of them."""

from __future__ import annotations

from itertools import groupby
from typing import TypedDict

from app.analysis.report.document import Report


class GpuNames(TypedDict):
    """The names of GPUs, and by worker the place of its own among them; -1 where unknown."""

    names: list[str]
    of: list[int]


class Places(TypedDict):
    """Where each worker runs, stage by stage and there by DP rank.

    `hosts` are (name, number of consecutive workers), None where unknown; of those `ranks` are
    named, which are given as soon as one host is unknown.
    """

    hosts: list[tuple[str | None, int]]
    gpus: GpuNames | None
    ranks: list[int] | None


def places_of(report: Report) -> Places:
    """Return where the workers of a report run."""
    by_rank = report.workers.rank
    ranks = [row[stage] for stage in range(len(by_rank[0])) for row in by_rank]
    hosts = [(host, sum(1 for _ in alike)) for host, alike in groupby(map(report.hosts.get, ranks))]
    return Places(
        hosts=hosts,
        gpus=_gpus([report.gpus.get(rank) for rank in ranks]) if report.gpus else None,
        ranks=ranks if any(host is None for host, _ in hosts) else None,
    )


def _gpus(gpus: list[str | None]) -> GpuNames:
    named = (gpu for gpu in dict.fromkeys(gpus) if gpu is not None)
    known = {gpu: place for place, gpu in enumerate(named)}
    return GpuNames(
        names=[f"GPU {gpu}" if gpu.isdecimal() else gpu for gpu in known],
        of=[-1 if gpu is None else known[gpu] for gpu in gpus],
    )
