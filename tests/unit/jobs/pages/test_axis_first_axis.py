from __future__ import annotations

import dataclasses
from datetime import timedelta

from app.jobs.pages.axis import MOST_POINTS, axis_figure, first_axis
from app.jobs.time_axis import JobAxis
from tests.unit.jobs.pages.test_axis import job_over_time


def test_panels_are_where_the_figure_has_them() -> None:
    found = job_over_time()
    panels = first_axis(found)
    layout = axis_figure(found)["layout"]
    assert len(panels) == sum(name.startswith("yaxis") for name in layout) - 1
    for place, panel in enumerate(panels, start=2):
        low, high = layout[f"yaxis{place}"]["domain"]
        assert abs(panel.top - 100 * (1 - high)) < 0.1
        assert abs(panel.height - 100 * (high - low)) < 0.1


def test_a_session_without_a_verdict_is_a_gap() -> None:
    found = job_over_time()
    known = [dataclasses.replace(point, slowdown=1.2) for point in found.points]
    assert first_axis(JobAxis(known, (), ()))[0].line.count("M") == 1
    known[1] = dataclasses.replace(known[1], slowdown=None)
    slowdown = first_axis(JobAxis(known, (), ()))[0]
    assert slowdown.line.count("M") == 2
    [(color, dots)] = slowdown.dots
    assert "var(--s-120) 100%" in color
    assert dots.count("M") == len(known) - 1
    assert slowdown.words == "slowdown, 1.20×"


def test_of_very_many_sessions_the_slowest_of_neighbors_are_drawn() -> None:
    one = job_over_time().points[0]
    points = [
        dataclasses.replace(
            one,
            received_at=one.received_at + number * timedelta(hours=1),
            slowdown=1.5 if number == 501 else 1.0,
        )
        for number in range(1000)
    ]
    slowdown = first_axis(JobAxis(points, (), ()))[0]
    assert slowdown.line.count("L") == MOST_POINTS - 1
    assert "var(--s-150)" in dict(slowdown.dots)


def test_nothing_is_drawn_where_nothing_happened() -> None:
    assert first_axis(JobAxis((), (), ())) == ()
