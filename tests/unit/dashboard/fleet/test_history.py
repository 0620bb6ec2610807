from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from app.dashboard.fleet.history import HistoryPoint, history, history_finding
from app.services.alerts.onset import Onset
from app.services.sessions.history import JobHistory


def test_a_job_without_any_verdict_has_an_empty_history() -> None:
    figure = history([HistoryPoint(4, None, None, None, None, "/sessions/a")])
    assert figure["data"][0]["y"] == [None]
    assert figure["layout"]["yaxis"]["range"][1] > 1


@pytest.mark.parametrize(("published", "drawn"), [(1.3, True), (1.49, False)])
def test_s_is_drawn_beside_the_slowdown_where_it_says_something_else(
    *, published: float, drawn: bool
) -> None:
    figure = history([HistoryPoint(1, 1.5, 1.4, 1.6, published, "/sessions/a")])
    assert [list(trace["y"]) for trace in figure["data"]] == [[published], [1.5]][not drawn :]
    assert f"S {published:.3f}" in figure["data"][-1]["customdata"][0][1]


def test_a_slowdown_without_an_interval_is_drawn_without_one() -> None:
    figure = history([HistoryPoint(1, 1.5, None, None, 1.5, "/sessions/a")])
    assert figure["data"][0]["error_y"]["array"] == [0.0]
    assert figure["data"][0]["customdata"][0][1] == "1.500×; S 1.500×"


BEGAN = datetime(2026, 11, 20, 2, 35, tzinfo=UTC)


def sessions(verdicts: int, slow: int, worst: float | None) -> JobHistory:
    return JobHistory((), 1, verdicts, verdicts, slow, worst, ())


@pytest.mark.parametrize(
    ("found", "latest", "was", "title"),
    [
        (sessions(0, 0, None), None, None, "No session has a verdict yet"),
        (sessions(2, 0, 1.02), (2, 1.02), None, "No session is slow: none above 1.02×"),
        (sessions(900, 2, 1.97), (3, 1.97), 1.01, "Slow since session 2: 1.97× in session 3"),
        (sessions(2, 2, 1.97), (5, 1.97), None, "Slow since the first session: 1.97× in session 5"),
    ],
)
def test_a_history_says_since_when(
    found: JobHistory, latest: tuple[int, float] | None, was: float | None, title: str
) -> None:
    onset = Onset(2, BEGAN, uuid.UUID(int=2), was)
    assert history_finding(found, latest, onset) == title


def test_a_history_counts_what_was_slow_and_is_no_more() -> None:
    title = history_finding(sessions(1200, 30, 1.9), (1200, 1.01), None)
    assert title == "30 of 1,200 sessions were slow; session 1200 is not"
