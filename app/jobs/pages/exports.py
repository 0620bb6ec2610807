"""CSV tables of the fleet and of a job's page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from app.analysis.budget.split import Losses
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.replay.metrics import STRAGGLING
from app.jobs.current import Moment
from app.jobs.fleet import FileJob, Place, jobs_with_data, silent_jobs
from app.jobs.pages.query import FleetQuery
from app.jobs.pages.tables import named_cause, reason_words, where_words
from app.jobs.time_axis import JobAxis, Mark
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.pulse.follow import LiveStep
from app.web.lists import PageRequest
from app.web.tables import Table
from app.web.time_ranges import Range

_SHARES: Final = ("lost_to_stragglers", "lost_between_steps", "lost_together")
# Columns about the last minute of a job's live pulse.
_LIVE: Final = ("live_step_s", "live_change", "live_suspicions")
# Number of jobs that one transaction reads.
BATCH: Final = 2000


def sessions_csv(axis: JobAxis) -> Table:
    """Return the table of a job's sessions, oldest first."""
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
                point.received_at,
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
            for point in axis.points
        ),
    )


def marks_csv(axis: JobAxis) -> Table:
    """Return the table of a job's marks, newest first."""
    return Table.of(Mark, axis.marks, "at", "until", "kind", "what", "by")


def fleet_csv(jobs: Iterable[FileJob], running: Iterable[LiveStep]) -> Table:
    """Return the table of jobs; `running` are the jobs with a live pulse."""
    live = {step.job: step for step in running}
    return Table(
        ("job", "state", "incident", "session", "received_at", "slowdown", "slowdown_low",
         "slowdown_high", "published_s", "gpu_hours_lost_per_hour", "cause", "where", "owner",
         "labels", "gpus", "dp", "pp", "tp", "cp", "vpp", *_SHARES, *_LIVE),
        ((*_job(job), *_live(live.get(job.name))) for job in jobs),
    )  # fmt: skip


def _job(job: FileJob) -> Sequence[object]:
    session, slowdown = job.verdict_session, job.verdict_session.measured
    cause = named_cause(session.state, session.level, slowdown, session.causes or ())
    # Figures of the slowdown are omitted if the job has no verdict.
    measured = (slowdown, session.low, session.high, session.published)
    return (
        *(job.name, job.state, job.incident, job.number, job.received_at),
        *(measured if slowdown is not None else (None,) * len(measured)),
        session.lost_each_hour,
        title_of(cause.cause)
        if cause
        else reason_words(job.state, job.discrepancy, job.reason, job.reason_code),
        cause and where_words(cause),
        *(job.labels.get("owner"), job.labels, session.world),
        *(session.dp, session.pp, session.tp, session.cp, session.vpp),
        *_lost(session.losses),
    )


def _live(step: LiveStep | None) -> Sequence[object]:
    """Return the values of the columns `_LIVE`; None if the job is not live."""
    if step is None:
        return (None,) * len(_LIVE)
    return step.step_s, step.change, ". ".join(step.suspicions)


def _lost(losses: Losses | None) -> tuple[float | None, ...]:
    """Return the values of the columns `_SHARES`."""
    if losses is None:
        return (None,) * len(_SHARES)
    return losses.stragglers, losses.between, losses.together


def moment_of(tx: Reads, about: Range) -> Moment:
    """Return the time of a fleet's list; open incidents do not count for a past time."""
    return Moment(about.since(tx.now), about.end, not about.is_past(tx.now), STRAGGLING)


def _jobs_with_data(container: Container, about: Range, query: FleetQuery) -> Iterator[FileJob]:
    """Return the jobs with data in the period, each batch read in its own transaction."""
    for number in count(1):
        page = PageRequest(query.sort, number, BATCH)
        with container.reading() as tx:
            jobs = jobs_with_data(tx, moment_of(tx, about), query.filtered, page)
        yield from jobs
        if len(jobs) < BATCH:
            return


def _silent(container: Container, about: Range, query: FleetQuery) -> Iterator[FileJob]:
    """Return the jobs without data in the period, each batch read in its own transaction."""
    at: Moment | None = None
    after: Place | None = None
    while True:
        with container.reading() as tx:
            # All batches use the same time, so that no job becomes silent between batches.
            at = at or moment_of(tx, about)
            jobs, after = silent_jobs(tx, at, query.filtered, after, BATCH)
        yield from jobs
        if after is None:
            return


# File name → function that reads its jobs.
FLEET: Final[Mapping[str, Callable[[Container, Range, FleetQuery], Iterator[FileJob]]]] = {
    "jobs": _jobs_with_data,
    "silent": _silent,
}
