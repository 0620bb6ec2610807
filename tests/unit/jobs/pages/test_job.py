from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from app.incidents.everywhere import Onset
from app.jobs.pages.job import change_text, history_finding
from app.jobs.time_axis import JobChange, Measure
from app.sessions.history import JobHistory
from app.web.lists import Page
from app.web.moments import plain

BEGAN = datetime(2026, 11, 20, 2, 35, tzinfo=UTC)


def sessions(verdicts: int, slow: int, worst: float | None) -> JobHistory:
    return JobHistory(Page((), 1, verdicts, 100), verdicts, slow, worst)


@pytest.mark.parametrize(
    ("found", "latest", "was", "title"),
    [
        (sessions(0, 0, None), None, None, "No session has a verdict yet"),
        (sessions(2, 0, 1.02), (2, 1.02), None, "Stragglers slow no session: none above 1.02×"),
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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            JobChange(
                Measure.SLOWDOWN, BEGAN, uuid.UUID(int=4), 4, 1.01, 1.38, 0.0, "slow_worker", None
            ),
            "Slower since 02:35 UTC, session 4: 1.01× → 1.38×, slow worker",
        ),
        (
            JobChange(
                Measure.STEP_TIME, BEGAN, uuid.UUID(int=4), 4, 11.4, 9.02, 0.0, None, "image 7"
            ),
            (
                "Steps shorter since 02:35 UTC, session 4: 11.4\u00a0s → 9.02\u00a0s; "
                "last event before it: image 7"
            ),
        ),
    ],
)
def test_a_lasting_change_is_a_sentence(change: JobChange, text: str) -> None:
    assert plain(change_text(change, BEGAN)) == text
