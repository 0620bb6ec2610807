"""Pages of sessions with missing workers, or with a single step."""

from __future__ import annotations

from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.computations import SlowWorker
from app.sessions.pages.figures import first_map
from app.sessions.pages.findings import coverage_finding, places_of, strip_finding
from app.sessions.pages.tables import coverage_rows
from app.web.format import NBSP
from tests.factories import select, session


def report(steps: int) -> Report:
    """Return the report of a session without worker (3, 1)."""
    trace = session(SlowWorker((1, 0), 1.5), dp=4, pp=2, steps=steps).trace
    return analyze(select(trace, (trace.dp != 3) | (trace.pp != 1))).report


def test_a_missing_worker_has_no_color_no_place_and_no_line() -> None:
    found = report(3)
    assert coverage_finding(found) == f"1{NBSP}worker missing"
    (row,) = [row for row in coverage_rows(found) if row.label == "Missing"]
    assert (row.value, row.note) == (f"1{NBSP}worker", f"(3,{NBSP}1), rank 7")
    assert places_of(found)["hosts"][-1] == ("missing", 1)
    picture = first_map(found)
    assert picture is not None
    cells = "".join(path for _, path in picture.paths).count("M")
    assert cells == 7
    assert (3, 1) not in {(dp, pp) for _, dp, pp in found.ranked_workers()}
    assert len(found.ranked_workers()) == 7


def test_of_a_single_step_it_is_not_said_that_the_cause_is_constant() -> None:
    assert strip_finding(report(1)) == "One step: whether others are like it is not known"
    assert "constant" in strip_finding(report(3))


def test_a_missing_worker_that_came_last_is_ranked() -> None:
    slow = SlowWorker((3, 0), 1.5, Spells(share=0.3))
    trace = session(slow, dp=4, pp=1, steps=12).trace
    found = analyze(select(trace, trace.dp != 3)).report
    assert found.ranked_workers()[0][1:] == (3, 0)
    assert len(found.ranked_workers()) == 4
