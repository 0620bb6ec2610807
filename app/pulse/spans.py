"""Queries of a job's pulse by minute and hour, and of the map of its ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from sqlalchemy import Row, ScalarSelect, Select, select

from app.analysis.pulse.packing import Places, places_from
from app.analysis.pulse.rollups import Sums, from_bytes
from app.jobs.models import Job
from app.platform.database.columns import as_json
from app.platform.database.unit_of_work import Reads
from app.pulse.keep import HOUR, MINUTE
from app.pulse.models import PulseSpan, PulseState

# Largest number of spans, and of ranks, in one answer.
MOST_SPANS: Final = 1_500
MOST_RANKS: Final = 2_048
_MOST_RATIO: Final = np.iinfo(np.uint16).max


class Resolution(StrEnum):
    """Length of a span."""

    MINUTE = "minute"
    HOUR = "hour"

    @property
    def seconds(self) -> int:
        """Return the length of a span, seconds."""
        return MINUTE if self is Resolution.MINUTE else HOUR


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A slow rank of a span, with its place."""

    rank: int
    host: str
    """Name of the rank's host; empty if unknown."""
    gpu: int
    """Index among the ranks of its host, from 0."""
    ratio: float
    """Its computing as a multiple of the median of its peers, the ranks of its stage."""


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A minute or an hour of an attempt."""

    attempt: int
    start: datetime
    ranks: int
    steps: int
    step_median_s: float
    """Median over the steps of the median rank's step time, exact to a quarter of a percent."""
    step_p95_s: float
    step_worst_s: float
    """Longest step time of any rank."""
    compute_median_s: float
    """Median computing over ranks and steps, without garbage collection; 0 if unknown."""
    compute_p95_s: float
    tokens_per_s: float | None
    """Tokens of the whole job per second of its steps; null if the job sends no tokens."""
    lost_gpu_s: float
    """GPU-seconds that ranks waited for the rank with the longest computing against its peers."""
    slowest: list[SlowRank]


@dataclass(frozen=True, slots=True, eq=False)
class RankMap:
    """Computing of ranks, relative to their peers, over time.

    Parameters
    ----------
    ranks : tuple of int
        Global ranks, rising.
    starts, attempts : tuple
        Start and attempt of each span, the earliest first.
    thousandths : uint16[spans, ranks]
        Computing in thousandths of the median of the peers; 0 without peers.
    left_out : int
        Number of ranks beyond `MOST_RANKS`, which are the least slow ones.
    places : Places
        Places of the ranks in the job's latest attempt.
    """

    ranks: tuple[int, ...]
    starts: tuple[datetime, ...]
    attempts: tuple[int, ...]
    thousandths: NDArray[np.uint16]
    left_out: int
    places: Places


def spans_of_job(
    tx: Reads, job: str, since: datetime, until: datetime, resolution: Resolution
) -> list[SpanRow]:
    """Return the latest `MOST_SPANS` spans of a job in a time range, sorted by start."""
    query = _spans(job, since, until, resolution)
    return spans([row._asdict() for row in tx.session.execute(query)])


@dataclass(frozen=True, slots=True)
class _Stored:
    """Columns of a span that API answers and pages need."""

    attempt: int
    start: datetime
    ranks: int
    steps: int
    step_median_s: float
    step_p95_s: float
    step_worst_s: float
    compute_median_s: float
    compute_p95_s: float
    tokens: int
    busy_s: float
    lost_gpu_s: float
    worst_ranks: list[int]
    worst_hosts: list[str]
    worst_gpus: list[int]
    worst_ratios: list[float]


_STORED: Final = TypeAdapter(list[_Stored])


def spans_query(
    job: str, since: datetime, until: datetime, resolution: Resolution
) -> ScalarSelect[Any]:
    """Return a query for the rows of `spans` as JSON, the latest span first."""
    return as_json(_spans(job, since, until, resolution))


def _spans(
    job: str, since: datetime, until: datetime, resolution: Resolution
) -> Select[*tuple[Any, ...]]:
    columns = [getattr(PulseSpan, column.name) for column in fields(_Stored)]
    return _within(select(*columns), job, since, until, resolution)


def spans(rows: object) -> list[SpanRow]:
    """Return the spans from a row of `spans_query`, the earliest first."""
    return [
        SpanRow(
            attempt=row.attempt,
            start=row.start,
            ranks=row.ranks,
            steps=row.steps,
            step_median_s=row.step_median_s,
            step_p95_s=row.step_p95_s,
            step_worst_s=row.step_worst_s,
            compute_median_s=row.compute_median_s,
            compute_p95_s=row.compute_p95_s,
            tokens_per_s=row.tokens / row.busy_s if row.tokens and row.busy_s else None,
            lost_gpu_s=row.lost_gpu_s,
            slowest=slow_ranks(row),
        )
        for row in reversed(_STORED.validate_python(rows or ()))
    ]


def slow_ranks(row: Row[*tuple[Any, ...]] | _Stored) -> list[SlowRank]:
    """Return the slowest ranks of a span, which its `worst_…` columns hold."""
    columns = row.worst_ranks, row.worst_hosts, row.worst_gpus, row.worst_ratios
    return [SlowRank(*values) for values in zip(*columns, strict=True)]


def rank_map(
    tx: Reads, job: str, since: datetime, until: datetime, resolution: Resolution
) -> RankMap:
    """Return the map of a job's ranks over the latest `MOST_SPANS` spans of a time range."""
    query = _within(
        select(PulseSpan.start, PulseSpan.attempt, PulseSpan.sums), job, since, until, resolution
    )
    rows = list(reversed(tx.session.execute(query).all()))
    spans = [from_bytes(row.sums) for row in rows]
    ranks, left_out = _ranks_of_map(spans)
    thousandths = np.zeros((len(spans), len(ranks)), np.uint16)
    for line, sums in zip(thousandths, spans, strict=True):
        counted = sums.counted > 0
        ratios = np.zeros(len(counted), np.int64)
        np.divide(sums.ratios, sums.counted, out=ratios, where=counted, casting="unsafe")
        at = np.searchsorted(ranks, sums.ranks)
        is_shown = ranks[np.minimum(at, len(ranks) - 1)] == sums.ranks
        line[at[is_shown]] = np.clip(ratios[is_shown], 0, _MOST_RATIO)
    return RankMap(
        tuple(ranks.tolist()),
        tuple(row.start for row in rows),
        tuple(row.attempt for row in rows),
        thousandths,
        left_out,
        places_of_job(tx, job).of_ranks(ranks),
    )


def places_of_job(tx: Reads, job: str) -> Places:
    """Return the stage and host of each rank in a job's latest attempt, as far as known."""
    kept = tx.session.execute(
        select(PulseState.places)
        .join(Job, Job.id == PulseState.job_id)
        .where(Job.name == job, PulseState.places.is_not(None))
        .order_by(PulseState.attempt.desc())
        .limit(1)
    ).scalar()
    return places_from(kept)


def _within(
    query: Select[*tuple[Any, ...]],
    job: str,
    since: datetime,
    until: datetime,
    resolution: Resolution,
) -> Select[*tuple[Any, ...]]:
    return (
        query.join(Job, Job.id == PulseSpan.job_id)
        .where(
            Job.name == job,
            PulseSpan.seconds == resolution.seconds,
            PulseSpan.start >= since,
            PulseSpan.start < until,
        )
        .order_by(PulseSpan.start.desc(), PulseSpan.attempt.desc())
        .limit(MOST_SPANS)
    )


def _ranks_of_map(spans: list[Sums]) -> tuple[NDArray[np.int64], int]:
    """Return the ranks of a map, sorted, and the number of ranks left out as the least slow."""
    if not spans:
        return np.empty(0, np.int64), 0
    ranks = np.unique(np.concatenate([sums.ranks for sums in spans]))
    over = len(ranks) - MOST_RANKS
    if over <= 0:
        return ranks, 0
    most = np.zeros(len(ranks))
    for sums in spans:
        np.maximum.at(most, np.searchsorted(ranks, sums.ranks), np.nan_to_num(sums.against_peers))
    return np.sort(ranks[np.argsort(-most, kind="stable")[:MOST_RANKS]]), over
