"""The figure of a job over time."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from app.jobs.pages.axis import axis_figure, mark_rows, panels_of
from app.jobs.time_axis import JobAxis, JobChange, Mark, MarkKind, Measure, TimePoint

BEGAN = datetime(2026, 11, 20, 2, 35, tzinfo=UTC)
HOUR = timedelta(hours=1)


def _point(number: int, slowdown: float | None, *, tokens: float | None = None) -> TimePoint:
    return TimePoint(
        id=uuid.UUID(int=number),
        number=number,
        attempt=1,
        received_at=BEGAN + number * HOUR,
        slowdown=slowdown,
        low=None if slowdown is None else slowdown - 0.01,
        high=None if slowdown is None else slowdown + 0.01,
        published=slowdown,
        step_time_s=None if slowdown is None else 9.0 * slowdown,
        gpu_hours_lost_per_hour=None if slowdown is None else 64 * (1 - 1 / slowdown),
        tokens_per_s=tokens,
        cause="slow_worker",
    )


def job_over_time() -> JobAxis:
    """Return a job with every kind of mark on its axis."""
    marks = [
        Mark(BEGAN + index * HOUR, kind, f"{kind} <b>&", "/incidents/x" if index else None)
        for index, kind in enumerate(MarkKind)
    ]
    change = JobChange(
        Measure.SLOWDOWN, BEGAN + 3 * HOUR, uuid.UUID(int=3), 3, 1.01, 1.97, 0.0, None, None
    )
    points = [_point(1, 1.01, tokens=1e6), _point(2, None), _point(3, 1.97, tokens=5e5)]
    return JobAxis(points, marks[::-1], [change])


def test_panels_are_of_what_is_known() -> None:
    found = job_over_time()
    assert panels_of(found) == 4
    assert panels_of(JobAxis([_point(1, None)], [], [])) == 1
    domains = [
        value["domain"] for name, value in axis_figure(found)["layout"].items() if "yaxis" in name
    ]
    assert sorted(domains, reverse=True) == domains
    assert all(above[0] > below[1] for above, below in pairwise(domains))


def test_a_session_without_a_verdict_is_a_gap_and_leads_to_its_page() -> None:
    trace = axis_figure(job_over_time())["data"][0]
    assert trace["y"] == [1.01, None, 1.97]
    assert trace["customdata"][1][1:] == ["no verdict", f"/sessions/{uuid.UUID(int=2)}"]
    assert trace["x"][0] == "2026-11-20 03:35:00"


def test_words_of_a_mark_are_no_markup() -> None:
    marks = axis_figure(job_over_time())["data"][-1]
    assert "&lt;b>&amp;" in marks["customdata"][0][1]
    assert len(marks["x"]) == len(MarkKind)


def test_the_table_has_every_mark() -> None:
    rows = mark_rows(job_over_time())
    assert len(rows) == len(MarkKind)
    assert rows[-1].kind == "Attempt"
    assert rows[0].url == "/incidents/x"
