"""The tables of the fleet and of a job's page as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from app.analysis.budget.split import Losses
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.replay.metrics import STRAGGLING
from app.jobs.current import Moment
from app.jobs.fleet import FileJob, Place, heard_jobs, silent_jobs
from app.jobs.pages.query import FleetQuery
from app.jobs.pages.tables import named_cause, reason_words, where_words
from app.jobs.time_axis import JobAxis
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.pulse.follow import LiveStep
from app.web.lists import PageRequest
from app.web.tables import Table
from app.web.time_ranges import Range

_SHARES: Final = ("lost_to_stragglers", "lost_between_steps", "lost_together")
# Of the last minute of a job's pulse.
_LIVE: Final = ("live_step_s", "live_change", "live_suspicions")
# Jobs that are read at once.
BATCH: Final = 2000


def sessions_csv(found: JobAxis) -> Table:
    """Return a job's sessions, oldest first."""
    header = ("session", "attempt", "received_at", "slowdown", "slowdown_low", "slowdown_high")
    return Table(
        (
            *header,
            "published_s",
            "step_time_s",
            "gpu_hours_lost_per_hour",
            "tokens_per_s",
            "cause",
            *_SHARES,
        ),
        (
            (
                point.number,
                point.attempt,
                point.received_at.isoformat(),
                point.slowdown,
                point.low,
                point.high,
                point.published,
                point.step_time_s,
                point.gpu_hours_lost_per_hour,
                point.tokens_per_s,
                point.cause,
                *_lost(point.losses),
            )
            for point in found.points
        ),
    )


def marks_csv(found: JobAxis) -> Table:
    """Return what happened to a job, newest first."""
    return Table(
        ("at", "until", "kind", "what", "by"),
        (
            (
                mark.at.isoformat(),
                None if mark.until is None else mark.until.isoformat(),
                mark.kind.value,
                mark.words,
                mark.author,
            )
            for mark in found.marks
        ),
    )


def fleet_csv(jobs: Iterable[FileJob], running: Iterable[LiveStep]) -> Table:
    """Return jobs as a list of the fleet has them.

    Parameters
    ----------
    running : iterable of LiveStep
        Jobs whose pulse comes now.
    """
    live = {one.job: one for one in running}
    return Table(
        ("job", "state", "incident", "session", "received_at", "slowdown", "slowdown_low",
         "slowdown_high", "published_s", "gpu_hours_lost_per_hour", "cause", "where", "owner",
         "labels", "gpus", "dp", "pp", "tp", "cp", "vpp", *_SHARES, *_LIVE),
        ((*_job(job), *_live(live.get(job.name))) for job in jobs),
    )  # fmt: skip


def _job(job: FileJob) -> Sequence[object]:
    told, slowdown = job.told, job.told.measured
    cause = named_cause(told.state, told.level, slowdown, told.causes or ())
    # Only with a verdict.
    measured = (slowdown, told.low, told.high, told.published)
    return (
        *(job.name, job.state, job.incident, job.number, job.received_at),
        *(measured if slowdown is not None else (None,) * len(measured)),
        told.lost_each_hour,
        title_of(cause.cause)
        if cause
        else reason_words(job.state, job.discrepancy, job.reason, job.reason_code),
        cause and where_words(cause),
        *(job.labels.get("owner"), job.labels, told.world),
        *(told.dp, told.pp, told.tp, told.cp, told.vpp),
        *_lost(told.losses),
    )


def _live(step: LiveStep | None) -> Sequence[object]:
    """Return what `_LIVE` names, of a job that runs."""
    if step is None:
        return (None,) * len(_LIVE)
    return step.step_s, step.change, ". ".join(step.suspicions)


def _lost(losses: Losses | None) -> tuple[float | None, ...]:
    """Return the shares of the time that are lost, as `_SHARES` names them."""
    if losses is None:
        return (None,) * len(_SHARES)
    return losses.stragglers, losses.between, losses.together


def moment_of(tx: Reads, about: Range) -> Moment:
    """Return what a fleet is looked at by; what goes on now says nothing of a time that is over."""
    return Moment(about.since(tx.now), about.end, not about.is_past(tx.now), STRAGGLING)


def _heard(container: Container, about: Range, query: FleetQuery) -> Iterator[FileJob]:
    """Return the jobs with data in the time; each batch is read in a transaction of its own."""
    for number in count(1):
        page = PageRequest(query.sort, number, BATCH)
        with container.reading() as tx:
            jobs = heard_jobs(tx, moment_of(tx, about), query.filtered, page)
        yield from jobs
        if len(jobs) < BATCH:
            return


def _silent(container: Container, about: Range, query: FleetQuery) -> Iterator[FileJob]:
    """Return the jobs without data in the time, in the same way, each batch after the last job."""
    at: Moment | None = None
    after: Place | None = None
    while True:
        with container.reading() as tx:
            # One for the whole file: a job that is silent since the last batch is not in this one.
            at = at or moment_of(tx, about)
            jobs, after = silent_jobs(tx, at, query.filtered, after, BATCH)
        yield from jobs
        if after is None:
            return


# File name → what reads its jobs.
FLEET: Final[Mapping[str, Callable[[Container, Range, FleetQuery], Iterator[FileJob]]]] = {
    "jobs": _heard,
    "silent": _silent,
}
