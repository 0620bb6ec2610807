"""The budget of a job over its sessions."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from app.analysis.budget.split import Shares
from app.jobs.pages.fleet import MOST, budget_over_time
from app.jobs.time_axis import TimePoint

SHARES = Shares(
    computing=0.55,
    own_slowness=0.02,
    slow_together=0.0,
    waiting=0.1,
    bubble=0.0,
    communication=0.04,
    communication_above=0.0,
    launch_delays=0.0,
    between_steps=0.01,
    between_steps_above=0.28,
    missing=0.0,
)


def point(number: int, shares: Shares | None = SHARES) -> TimePoint:
    return TimePoint(
        id=uuid.UUID(int=number),
        number=number,
        attempt=1,
        received_at=datetime(2026, 11, 20, tzinfo=UTC) + timedelta(hours=number),
        slowdown=None,
        low=None,
        high=None,
        published=None,
        step_time_s=None,
        gpu_hours_lost_per_hour=None,
        tokens_per_s=None,
        cause=None,
        shares=shares,
    )


def test_each_session_is_a_full_column_with_what_is_lost_on_top() -> None:
    found = budget_over_time([point(1), point(2, None), point(3)])

    assert found is not None
    assert [column.words for column in found.columns] == [
        "Session 1: 40.0\u00a0% lost",
        "Session 3: 40.0\u00a0% lost",
    ]
    pieces = found.columns[0].pieces
    assert sum(piece.height for piece in pieces) == pytest.approx(100)
    assert pieces[-1].top == pytest.approx(0, abs=1e-9)
    lost = [piece for piece in pieces if piece.top < 40 - 1e-9]
    assert {piece.part for piece in lost if piece.height} == {
        "own_slowness",
        "waiting",
        "between_steps_above",
    }


def test_each_part_is_one_path_of_its_pieces() -> None:
    found = budget_over_time([point(1), point(2)])
    assert found is not None
    paths = dict(found.paths)
    waiting = next(piece for piece in found.columns[0].pieces if piece.part == "waiting")
    first = f"M0.04 {waiting.top:.2f}h0.92v{waiting.height:.2f}h-0.92z"
    assert paths["waiting"] == first + first.replace("M0.04", "M1.04")
    assert paths["bubble"] == "", "what is nothing is not drawn"


def test_the_title_is_about_the_latest_session() -> None:
    found = budget_over_time([point(1), point(2)])
    assert found is not None
    said = "40\u00a0% of session 2 is lost, most of it by standstills between steps"
    assert found.title == said


def test_only_the_latest_are_drawn_and_nothing_where_nothing_is_known() -> None:
    found = budget_over_time([point(number) for number in range(MOST + 5)])
    assert found is not None
    assert len(found.columns) == MOST
    assert found.columns[0].words.startswith("Session 5: ")
    assert budget_over_time([point(1, None)]) is None
