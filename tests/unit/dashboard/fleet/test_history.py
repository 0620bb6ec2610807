from __future__ import annotations

import pytest

from app.dashboard.fleet.history import HistoryPoint, history, history_finding


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


@pytest.mark.parametrize(
    ("slowdowns", "title"),
    [
        ([], "No session has a verdict yet"),
        ([(1, 1.01), (2, 1.02)], "No session is slow: none above 1.02×"),
        ([(1, 1.01), (2, 1.9), (3, 1.97)], "Slow since session 2: 1.97× in session 3"),
        ([(4, 1.9), (5, 1.97)], "Slow since the first session: 1.97× in session 5"),
        ([(1, 1.9), (2, 1.01)], "1 of 2 sessions were slow; session 2 is not"),
    ],
)
def test_a_history_says_since_when(slowdowns: list[tuple[int, float]], title: str) -> None:
    assert history_finding(slowdowns, threshold=1.1) == title
