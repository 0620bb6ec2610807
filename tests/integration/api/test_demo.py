from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.analysis.synthesis.scenarios import SCENARIOS
from app.cli.demo import sessions as demo
from app.errors import StartupError

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


def labeled(installation: Installation) -> set[str]:
    """Return the sessions that no rule waits for more of."""
    client = installation.client
    found = (
        client.get(f"/api/v1/sessions/{session['id']}").json()
        for session in client.get("/api/v1/sessions").json()["sessions"]
    )
    return {one["id"] for one in found if one["meta"]["labels"].get("demo") == "true"}


@pytest.mark.slow
def test_a_session_of_each_job_is_taken_once_however_often_it_is_sent(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SESSIONS", 1)
    for _ in range(2):
        demo.send_demo_sessions(installation.url)
        sessions = installation.client.get("/api/v1/sessions").json()["sessions"]
        assert len({session["job"] for session in sessions}) == len(sessions) == len(SCENARIOS)
        assert {session["id"] for session in sessions} == labeled(installation)
        groups = installation.client.get("/jobs/dense-52b/tensor").text.replace("\u00a0", " ")
        assert "1 of 2 tensor-parallel groups has a straggler" in groups
        assert "Plan in force" in groups
        plans = installation.client.get("/jobs/dense-52b/tensor/0-2/plans.csv").text.splitlines()
        assert len(plans) == len({line.split(",")[0] for line in plans}) > 3


def test_a_server_that_is_gone_is_said() -> None:
    with pytest.raises(StartupError, match="could not be sent: The server at"):
        demo.send_demo_sessions("http://127.0.0.1:9")
