"""States of ended attempts and old requests are deleted; notices stay."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import text

from app.installation.sweep import sweep
from app.pulse.advance import advance_pulses
from tests.integration.api.pulse.sending import bodies, slow_job

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation

NOW = timedelta(0)


def send(installation: Installation, content: bytes, attempt: int) -> None:
    path = f"/api/v1/jobs/llm/attempts/{attempt}/pulse"
    assert installation.client.post(path, content=content).status_code == 202
    while advance_pulses(installation.container, NOW):
        pass


def kept(installation: Installation) -> dict[int, bool]:
    """Return the attempts, each with whether its state is stored."""
    sweep(installation.container)
    with installation.container.engine.connect() as connection:
        rows = connection.execute(
            text("SELECT attempt, state IS NOT NULL AND pace IS NOT NULL AS kept FROM pulse_state")
        )
        return {row.attempt: row.kept for row in rows}


def incidents(installation: Installation) -> list[str]:
    found = installation.client.get("/api/v1/incidents").json()["incidents"]
    return [one["state"] for one in found]


def let_pass(installation: Installation, interval: str) -> None:
    with installation.container.engine.begin() as connection:
        connection.execute(
            text("UPDATE pulse_state SET advanced_at = advanced_at - CAST(:by AS interval)"),
            {"by": interval},
        )


def test_requests_of_long_ago_go(installation: Installation) -> None:
    (first, *_) = bodies(slow_job()[0])
    send(installation, first, 1)
    asking = "/api/v1/jobs/llm/recordings"
    for interval in ("91 days", "1 day"):
        assert installation.client.post(asking, json={"steps": 5}).status_code == 202
        with installation.container.engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE recording_request SET until = now() - CAST(:by AS interval)"
                    " WHERE until > now()"
                ),
                {"by": interval},
            )
    sweep(installation.container)
    requests = installation.client.get(asking).json()["requests"]
    assert len(requests) == 1


def test_the_state_of_an_attempt_goes_when_another_has_followed_or_it_is_silent(
    installation: Installation,
) -> None:
    job, _ = slow_job()
    for content in bodies(job):
        send(installation, content, 1)
    noticed = installation.client.get("/api/v1/jobs/llm/pulse/notices").json()
    assert len(noticed["notices"]) == 1
    assert incidents(installation) == ["pending"]
    let_pass(installation, "2 hours")
    assert kept(installation) == {1: True}

    (first, *_) = bodies(job)
    send(installation, first, 2)
    assert kept(installation) == {1: False, 2: True}
    after = installation.client.get("/api/v1/jobs/llm/pulse/notices").json()
    assert [one["ranks"] for one in after["notices"]] == [noticed["notices"][0]["ranks"]]
    assert after["notices"][0]["cleared_at"] is not None
    # The pending incident had not fired, so it is deleted.
    assert incidents(installation) == []

    # Late bodies of the attempt start a new detection, with new numbers of notices.
    for content in bodies(job):
        send(installation, content, 1)
    assert kept(installation)[1]
    again = installation.client.get("/api/v1/jobs/llm/pulse/notices").json()
    assert len({one["number"] for one in again["notices"]}) == len(again["notices"])

    let_pass(installation, "8 days")
    assert kept(installation) == {1: False, 2: False}
