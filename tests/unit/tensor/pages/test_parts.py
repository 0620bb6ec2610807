"""Times of a group's ranks over steps, as paths of a figure."""

from __future__ import annotations

import re

import pytest

from app.analysis.mitigation.tensor.document import Method
from app.platform.database.states import TensorPlanState
from app.tensor.pages.parts import HEIGHT, WIDTH, times_figure
from app.tensor.read import PlanRow, ReportRow


def report(step: int, *times: float) -> ReportRow:
    return ReportRow(step, times, times, None)


def plan(version: int, applied: int | None, ended: int | None, method: Method) -> PlanRow:
    return PlanRow(
        version=version, state=TensorPlanState.IN_FORCE, method=method, criterion=None, apply=True,
        budget=0.25, ranks=(), slowest_time_s=8.0, fastest_time_s=1.0, predicted_time_s=2.0,
        created_step=applied or 0, expires_step=999, applied_step=applied, ended_step=ended,
        acknowledged=4, reason=None, measured_time_s=None,
    )  # fmt: skip


def points(path: str) -> list[tuple[str, float, float]]:
    return [
        (kind, float(x), float(y)) for kind, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path)
    ]


def test_lines_go_from_the_first_step_to_the_last() -> None:
    found = times_figure([report(10, 8.0, 1.0, 3.0), report(20, 2.0, 1.0, 1.0)], 0, [])
    assert found is not None
    slow, others = points(found.slow), points(found.others)
    assert [(kind, x) for kind, x, _ in slow] == [("M", 0.0), ("L", WIDTH)]
    # Longer times are higher: the mean of the others decreases from 2 to 1; the slow rank ends at
    # 2.
    assert others[0][2] == pytest.approx(slow[1][2])
    assert slow[0][2] < slow[1][2] < others[1][2] <= HEIGHT
    assert found.values[0].at == 100
    assert [tick.label for tick in found.steps] == ["10", "12", "15", "18", "20"]


def test_steps_without_a_report_are_no_line() -> None:
    reports = [report(step, 2.0, 1.0) for step in (1, 2, 3, 4, 100, 101)]
    found = times_figure(reports, 0, [])
    assert found is not None
    assert [kind for kind, _, _ in points(found.slow)] == ["M", "L", "L", "L", "M", "L"]


def test_predictions_are_shown_while_their_plan_is_current() -> None:
    reports = [report(step, 8.0, 1.0) for step in range(0, 101, 10)]
    applied = [
        plan(3, 60, None, Method.STICKY),
        plan(2, 40, 60, Method.NONE),
        plan(1, 20, 40, Method.SEMI),
        plan(0, None, None, Method.ZERO),
    ]
    found = times_figure(reports, 0, applied)
    assert found is not None
    assert re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", found.predicted) == [
        ("600.0", "1000.0"), ("200.0", "400.0"),
    ]  # fmt: skip
    assert [(mark.at, mark.label) for mark in found.marks] == [
        (60.0, "plan 3"), (40.0, "withdrawn"), (20.0, "plan 1"),
    ]  # fmt: skip


def test_one_report_is_no_line() -> None:
    assert times_figure([report(1, 2.0, 1.0)], 0, []) is None


def test_times_that_never_change_have_an_axis() -> None:
    found = times_figure([report(1, 1.0, 1.0), report(2, 1.0, 1.0)], 0, [])
    assert found is not None
    assert len(found.values) > 1
