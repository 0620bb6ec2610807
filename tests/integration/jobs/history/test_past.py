"""Comparison of a session with the computing times of the job's earlier sessions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from app.analysis.synthesis.injections.computations import SlowTogether
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.model import Sizes

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


def _report(installation: Installation, seed: int, times: float = 1.0) -> dict[str, Any]:
    """Send a session and return its report."""
    job = JobModel(Sizes(dp=4, pp=1), microbatches=4, steps=12)
    content = to_parquet(synthesize(job, [SlowTogether(times)], seed=seed).trace)
    answer = installation.client.post(
        "/api/v1/jobs/llm/sessions",
        files={
            "meta": ("meta.json", json.dumps({"dp": 4, "pp": 1, "world": 4}).encode()),
            "trace": ("trace.parquet", content, "application/vnd.apache.parquet"),
        },
    )
    assert answer.status_code == 202, answer.text
    installation.analyze_all()
    found = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}/report")
    report: dict[str, Any] = found.json()
    return report


def test_a_session_is_slower_than_the_ones_before(installation: Installation) -> None:
    assert [_report(installation, seed)["causes"] for seed in (1, 2)] == [[], []]

    slow = _report(installation, 3, times=1.3)

    assert [cause["cause"] for cause in slow["causes"]] == ["slow_together"]
    assert "all workers compute 1.30× slower than in session 2" in slow["verdict"]["sentence"]
    # A session as fast as the usual ones has no cause, although the session before was slow.
    assert _report(installation, 4)["causes"] == []
