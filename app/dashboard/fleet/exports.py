"""The tables of a job's page as CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.dashboard.look.csv_text import csv_text

if TYPE_CHECKING:
    from app.services.history.axis import JobAxis


def sessions_csv(found: JobAxis) -> str:
    """Return a job's sessions, oldest first."""
    header = ("session", "attempt", "received_at", "slowdown", "slowdown_low", "slowdown_high")
    return csv_text(
        (*header, "published_s", "step_time_s", "gpu_hours_lost_per_hour", "tokens_per_s", "cause"),
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
            )
            for point in found.points
        ),
    )


def marks_csv(found: JobAxis) -> str:
    """Return what happened to a job, newest first."""
    return csv_text(
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
