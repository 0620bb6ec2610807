from __future__ import annotations

from app.dashboard.fleet.history import HistoryPoint, history


def test_a_job_without_any_verdict_has_an_empty_history() -> None:
    figure = history([HistoryPoint(4, None, None, None, "/sessions/a")])
    assert figure["data"][0]["y"] == [None]
    assert figure["layout"]["yaxis"]["range"][1] > 1
