"""Where workers run, as the page's script needs it: short also for thousands of them."""

from __future__ import annotations

from itertools import groupby
from typing import Final, TypedDict

from app.analysis.report.document import Report
from app.analysis.report.verdict import GpuOfWorker
from app.analysis.trace.ranks.machine import called

# In place of the host of a worker of which nothing was recorded.
_MISSING: Final = "missing"


class GpuNames(TypedDict):
    """The names of GPUs, and by worker the place of its own among them; -1 where unknown."""

    names: list[str]
    of: list[int]


class Places(TypedDict):
    """Where each worker runs, stage by stage and there by DP rank.

    `hosts` are (name as it is shown, number of consecutive workers), None where unknown; of those
    `ranks` are named, which are given as soon as one host is unknown.
    """

    hosts: list[tuple[str | None, int]]
    gpus: GpuNames | None
    ranks: list[int] | None


def places_of(report: Report) -> Places:
    """Return where the workers of a report run."""
    by_rank = report.workers.rank
    ranks = [row[stage] for stage in range(len(by_rank[0])) for row in by_rank]
    guessed = report.whereabouts.guessed_hosts
    missing = {one.rank for one in report.coverage.missing}
    hosts = [
        (host and called(host, guessed=host in guessed), sum(1 for _ in alike))
        for host, alike in groupby(
            _MISSING if rank in missing else report.hosts.get(rank) for rank in ranks
        )
    ]
    return Places(
        hosts=hosts,
        gpus=_gpus(_names(report)) if report.gpus else None,
        ranks=ranks if any(host is None for host, _ in hosts) else None,
    )


def _names(report: Report) -> list[str]:
    """Return what is known of each worker's GPU, stage by stage; "" where that is nothing."""
    by_rank, gpu_of = report.workers.rank, GpuOfWorker(report)
    missing = {one.worker for one in report.coverage.missing}
    return [
        "" if (dp, stage) in missing else gpu_of.words((dp, stage))
        for stage in range(len(by_rank[0]))
        for dp in range(len(by_rank))
    ]


def _gpus(gpus: list[str]) -> GpuNames:
    known = {gpu: place for place, gpu in enumerate(filter(None, dict.fromkeys(gpus)))}
    return GpuNames(names=list(known), of=[known.get(gpu, -1) for gpu in gpus])
