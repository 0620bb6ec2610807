"""Actions of people and launchers during the two weeks of the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from app.analysis.synthesis.fleet_history import (
    BACK_H,
    BAD_FROM_H,
    BAD_HOST,
    DEPLOYED_H,
    DIVIDED,
    DIVIDED_ENDED_H,
    DIVIDED_H,
    DRAINED_H,
    HEALTHY,
    HOT,
    LAUNCHING,
    LAUNCHING_ENDED_H,
    REPAIRED_H,
    ROLLED_BACK_H,
    SECOND_SPARE,
    SPARE,
    SWAPPED_H,
    host_name,
)
from app.fixes.applied import apply_fix, report_of
from app.hosts.repairs import note_repair
from app.incidents.evaluate import acknowledge_incident, resolve_incident, silence_incident
from app.incidents.models.tables import AlertGroup, AlertIncident, IncidentState
from app.jobs.models import Job
from app.jobs.time_axis import write_note
from app.platform.database.states import NoteKind
from app.sessions.receive import finish_job

if TYPE_CHECKING:
    import uuid

    from app.platform.container import Container


ON_CALL: Final = "on-call"
LAUNCHER: Final = "launcher"
_SILENCED_FOR: Final = timedelta(hours=18)


@dataclass(frozen=True, slots=True)
class ActContext:
    """Context of an act: the container at its time, and the sessions so far."""

    container: Container
    moment: datetime
    latest: Mapping[str, uuid.UUID]  # id of the latest session of each job


@dataclass(frozen=True, slots=True)
class Act:
    """An act of a person or launcher, at a number of hours before the end of the history."""

    at_h: float
    site: str
    perform: Callable[[ActContext], None]


def _noted(
    job: str, kind: NoteKind, words: str, by: str = LAUNCHER
) -> Callable[[ActContext], None]:
    def perform(context: ActContext) -> None:
        write_note(context.container, job, words=words, kind=kind, at=context.moment, by=by)

    return perform


def _repaired(host: str, what: str) -> Callable[[ActContext], None]:
    def perform(context: ActContext) -> None:
        note_repair(context.container, host, what=what, at=context.moment, by=ON_CALL)

    return perform


def _acknowledged(job: str, note: str) -> Callable[[ActContext], None]:
    def perform(context: ActContext) -> None:
        for incident in _firing(context.container, job):
            acknowledge_incident(context.container, incident, by=ON_CALL, note=note)

    return perform


def _silenced(job: str, reason: str) -> Callable[[ActContext], None]:
    def perform(context: ActContext) -> None:
        until = context.moment + _SILENCED_FOR
        for incident in _firing(context.container, job):
            silence_incident(context.container, incident, until=until, reason=reason, by=ON_CALL)

    return perform


def _resolved(job: str, note: str) -> Callable[[ActContext], None]:
    def perform(context: ActContext) -> None:
        for incident in _firing(context.container, job):
            resolve_incident(context.container, incident, by=ON_CALL, note=note)

    return perform


def _applied(job: str) -> Callable[[ActContext], None]:
    """Record that the first fix of the job's latest report was applied."""

    def perform(context: ActContext) -> None:
        session = context.latest[job]
        with context.container.reading() as tx:
            fix = report_of(tx, session).recommendations[0]
        apply_fix(context.container, session, fix.action, fix.title, by=ON_CALL)

    return perform


def _finished(job: str) -> Callable[[ActContext], None]:
    return lambda context: finish_job(context.container, job)


def _firing(container: Container, job: str) -> list[uuid.UUID]:
    with container.reading() as tx:
        return list(
            tx.session.execute(
                select(AlertIncident.id)
                .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
                .join(Job, Job.id == AlertGroup.job_id)
                .where(Job.name == job, AlertIncident.state == IncidentState.FIRING)
                .order_by(AlertIncident.opened_at, AlertIncident.id)
            ).scalars()
        )


_BAD: Final = host_name(BAD_HOST)

ACTS: Final = (
    # Acts about the host that is slow in two jobs.
    Act(
        BAD_FROM_H - 9.0,
        "north",
        _acknowledged(HEALTHY.name, f"{_BAD} goes with the next checkpoint"),
    ),
    Act(
        SWAPPED_H,
        "north",
        _noted(
            HEALTHY.name,
            NoteKind.MAINTENANCE,
            f"{_BAD} replaced by {host_name(SPARE)}; {_BAD} back to the pool",
            ON_CALL,
        ),
    ),
    Act(
        DRAINED_H + 12.0,
        "north",
        _acknowledged(HOT.name, f"{_BAD} again; draining it this time"),
    ),
    Act(
        DRAINED_H,
        "north",
        _noted(
            HOT.name,
            NoteKind.MAINTENANCE,
            f"{_BAD} drained, {host_name(SECOND_SPARE)} in its place",
            ON_CALL,
        ),
    ),
    Act(REPAIRED_H, "north", _repaired(_BAD, "Power supply replaced; burn-in passed")),
    Act(
        BACK_H - 6.0,
        "north",
        _noted("dense-110b", NoteKind.MAINTENANCE, f"Starts on {_BAD} after its repair"),
    ),
    # Acts about a deployment.
    Act(
        DEPLOYED_H,
        "north",
        _noted(
            HEALTHY.name,
            NoteKind.DEPLOYMENT,
            "Deployment: image 25.11, garbage collection automatic again",
        ),
    ),
    Act(
        DEPLOYED_H - 13.0,
        "north",
        _acknowledged(HEALTHY.name, "Since the new image; rolling back tomorrow morning"),
    ),
    Act(ROLLED_BACK_H, "north", _applied(HEALTHY.name)),
    Act(
        ROLLED_BACK_H,
        "north",
        _noted(
            HEALTHY.name,
            NoteKind.DEPLOYMENT,
            "Rolled back to image 25.10: garbage is collected on all workers at once",
        ),
    ),
    # Acts about the job that changes its parallelism and ends.
    Act(
        DIVIDED_H + 24.0,
        "south",
        _acknowledged(DIVIDED, "Layers are divided anew with the next restart"),
    ),
    Act(
        DIVIDED_H,
        "south",
        _noted(DIVIDED, NoteKind.CONFIG_CHANGE, "Layers divided 18, 17, 17, 8 instead of 15 each"),
    ),
    Act(DIVIDED_ENDED_H, "south", _finished(DIVIDED)),
    # Short comments on the jobs of the last days.
    Act(
        9 * 24.0,
        "north",
        _acknowledged("dense-34b", "Known; the layers move with the next version"),
    ),
    Act(
        LAUNCHING_ENDED_H,
        "north",
        _resolved(LAUNCHING, "The job ends; its host gets the new driver before the next one"),
    ),
    Act(LAUNCHING_ENDED_H, "north", _finished(LAUNCHING)),
    Act(
        21.0,
        "south",
        _noted("dense-13b", NoteKind.MAINTENANCE, "New firmware on the switches of the rack"),
    ),
    Act(12.0, "south", _silenced("dense-11b", "The backup that loads the network moves tonight")),
    Act(
        15.0,
        "south",
        _noted("moe-8x22b", NoteKind.DEPLOYMENT, "Deployment: image 25.11"),
    ),
    Act(6.0, "south", _acknowledged("dense-180b", "Spare host is ordered")),
)
