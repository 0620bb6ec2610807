"""Measured fixes: predictions are counted as met or missed, upper bounds are only shown."""

from __future__ import annotations

import uuid

from app.jobs.fleet_report import FixLine
from app.jobs.pages.report import fixes_title
from app.jobs.weekly import fix_sentence


def line(
    predicted: float, realized: float, *, at_most: bool = False, unlike: str | None = None
) -> FixLine:
    """Return a measured fix with the given gains."""
    session, measured_by = uuid.UUID(int=1), uuid.UUID(int=2)
    return FixLine(
        "moe", "Replace worker (1, 2)", session, measured_by, predicted, at_most, realized, unlike,
        gpus=64, step_time_s=2.0,
    )  # fmt: skip


def test_an_upper_bound_is_neither_met_nor_missed() -> None:
    assert line(0.3, 0.29).met is True
    assert line(0.3, 0.1).met is False
    assert line(0.3, 0.29, at_most=True).met is None
    assert line(0.3, 0.1, at_most=True).met is None
    assert line(0.3, 0.3, unlike="ran as DP 2").met is None


def test_upper_bounds_are_not_counted_among_the_predictions() -> None:
    fixes = [line(0.3, 0.29), line(0.3, 0.1), line(0.3, 0.29, at_most=True)]
    assert fixes_title(fixes) == "1 of 2\N{NO-BREAK SPACE}fixes reached the predicted gain"
    assert fixes_title(fixes[2:]) == "No prediction was measured"


def test_the_weekly_summary_does_not_judge_an_upper_bound() -> None:
    assert fix_sentence(line(0.3, 0.1)).endswith(": not as promised")
    bound = fix_sentence(line(0.3, 0.1, at_most=True))
    assert "promised at most 30" in bound
    assert "as promised" not in bound
