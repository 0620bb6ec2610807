"""What lists of sessions show of a report, so that they need not read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.analysis.diagnosis.places import View, Where
from app.analysis.diagnosis.verdict import Level
from app.analysis.report.document import JobSizes, Report
from app.analysis.report.findings import NamedCause

# A chat message and a row of the fleet page have room for two.
SUMMARY_CAUSES: Final = 2


@dataclass(frozen=True, slots=True)
class SummaryWorker:
    """The slowest worker: its place, its traced rank, its host where known, and its slowdown."""

    dp: int
    pp: int
    rank: int
    host: str | None
    slowdown: float


@dataclass(frozen=True, slots=True)
class SummaryCause:
    """A `NamedCause` without the data of its figure: a list of sessions would be made of them."""

    cause: str
    contribution: float | None
    cost_s: float | None
    confidence: float | None
    evidence: tuple[str, ...]
    views: tuple[View | None, ...]
    where: Where
    runner_up: str | None
    # of its first worker; those that version 0.1.0 stored have none
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A report in a few lines."""

    # sentence, level: the verdict
    sentence: str
    level: Level
    worst: SummaryWorker  # the slowest worker
    # m_w, m_s: by removal
    m_w: float | None
    m_s: float | None
    fb_correlation: float | None  # Pearson's r
    top_optype: str  # the operation type that costs most
    causes: tuple[SummaryCause, ...]  # the first ones
    sizes: JobSizes


def summarize(report: Report) -> Summary:
    """Return the summary of a report."""
    slowdown, dp, pp = report.worst_worker()
    return Summary(
        sentence=report.verdict.sentence,
        level=report.verdict.level,
        worst=SummaryWorker(
            dp, pp, report.workers.rank[dp][pp], report.host_of((dp, pp)), slowdown
        ),
        m_w=report.m_w.rem,
        m_s=report.m_s.rem,
        fb_correlation=report.fb_correlation.pearson,
        top_optype=max(report.by_optype, key=report.by_optype.__getitem__),
        causes=tuple(_cause(report, cause) for cause in report.causes[:SUMMARY_CAUSES]),
        sizes=report.sizes,
    )


def _cause(report: Report, cause: NamedCause) -> SummaryCause:
    workers = cause.where.workers
    return SummaryCause(
        cause.cause,
        cause.contribution,
        cause.cost_s,
        cause.confidence,
        cause.evidence,
        cause.views,
        cause.where,
        cause.runner_up,
        report.host_of(workers[0]) if workers else None,
    )
