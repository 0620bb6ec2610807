"""What is over a project's quota is refused by its name, exactly, and nothing of it is stored."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update

from app.api.frame.problems import PROBLEMS
from app.db.models.access import DEFAULT_PROJECT_ID
from app.db.models.usage import ProjectUsage
from app.services.usage.count import recount
from app.services.usage.quotas import QUOTAS, use_of
from app.settings import Settings
from tests.integration.api import bodies
from tests.integration.api.chunks import put, rank_body, seal

if TYPE_CHECKING:
    import httpx

    from app.services.usage.quotas import Use
    from tests.integration.api.conftest import Install, Installation


def send(installation: Installation, number: int) -> httpx.Response:
    """Send a session that no other number is."""
    return installation.post(params=bodies.SIZES | {"run_id": str(number)})


def chunk(
    installation: Installation, *, session: int, producer: str = "a", number: int = 0
) -> httpx.Response:
    return put(installation, producer, number, rank_body(0), session=session)


def used(installation: Installation) -> Use:
    with installation.container.uow() as tx:
        return use_of(tx, DEFAULT_PROJECT_ID)


def refused(answer: httpx.Response, quota: str) -> None:
    assert answer.status_code == 429, answer.text
    assert answer.json()["code"] == f"quota.{quota}"
    assert int(answer.headers["retry-after"]) > 0


OPERATIONS = bodies.table().num_rows
BYTES = len(bodies.parquet())


@pytest.mark.parametrize(
    ("quota", "limit"),
    [("sessions_per_hour", 2), ("bytes", 2 * BYTES), ("operations", 2 * OPERATIONS)],
)
def test_the_third_session_is_over_the_quota(install: Install, quota: str, limit: int) -> None:
    with install(**{f"quota_{quota}": limit}) as installation:
        assert [send(installation, number).status_code for number in range(2)] == [202, 202]
        rows = installation.rows()
        refused(send(installation, 2), quota)
        assert installation.rows() == rows
        # What is there already costs nothing.
        assert send(installation, 1).status_code == 200
        found = used(installation)
        assert (found.sessions_this_hour, found.bytes, found.operations) == (
            2,
            2 * BYTES,
            2 * OPERATIONS,
        )


@pytest.mark.parametrize(("quota", "limit"), [("bytes", BYTES + 1), ("operations", OPERATIONS + 1)])
def test_what_does_not_fit_whole_is_not_stored_at_all(
    install: Install, quota: str, limit: int
) -> None:
    with install(**{f"quota_{quota}": limit}) as installation:
        assert send(installation, 0).status_code == 202
        rows = installation.rows()
        refused(send(installation, 1), quota)
        assert installation.rows() == rows


def test_of_many_senders_at_once_just_as_many_pass_as_may(install: Install) -> None:
    with install(quota_sessions_per_hour=5, ingest_concurrency=8) as installation:
        answers: list[httpx.Response] = []

        def post(number: int) -> None:
            answers.append(installation.post(job=f"job-{number}"))

        senders = [threading.Thread(target=post, args=(number,)) for number in range(16)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert sorted(answer.status_code for answer in answers) == [202] * 5 + [429] * 11
        assert installation.rows()["session"] == 5
        assert used(installation).sessions_this_hour == 5


def test_the_next_hour_begins_at_nothing(install: Install) -> None:
    with install(quota_sessions_per_hour=1) as installation:
        assert send(installation, 0).status_code == 202
        refused(send(installation, 1), "sessions_per_hour")
        with installation.container.uow() as tx:
            before = ProjectUsage.hour - timedelta(hours=1)
            tx.session.execute(update(ProjectUsage).values(hour=before))
        assert used(installation).sessions_this_hour == 0
        assert send(installation, 1).status_code == 202
        assert used(installation).sessions_this_hour == 1
        assert used(installation).bytes == 2 * BYTES


def test_open_sessions_are_counted_until_they_are_sealed(install: Install) -> None:
    with install(quota_open_sessions=2) as installation:
        assert [chunk(installation, session=number).status_code for number in (1, 2)] == [202, 202]
        refused(chunk(installation, session=3), "open_sessions")
        # One that is open goes on.
        assert chunk(installation, session=1, producer="b").status_code == 202
        assert seal(installation, 1).status_code == 202
        assert chunk(installation, session=3).status_code == 202
        assert used(installation).open_sessions == 2


def test_producers_of_open_sessions_are_counted(install: Install) -> None:
    with install(quota_producers=3) as installation:
        for session, producer in ((1, "a"), (1, "b"), (2, "a")):
            assert chunk(installation, session=session, producer=producer).status_code == 202
        refused(chunk(installation, session=2, producer="b"), "producers")
        # Who is counted may send more.
        assert chunk(installation, session=1, producer="a", number=1).status_code == 202
        assert used(installation).producers == 3
        assert seal(installation, 1).status_code == 202
        assert chunk(installation, session=2, producer="b").status_code == 202
        assert used(installation).producers == 2


def test_a_sum_of_what_is_there_is_what_was_counted(installation: Installation) -> None:
    send(installation, 0)
    chunk(installation, session=7)
    counted = used(installation)
    with installation.container.uow() as tx:
        recount(tx, DEFAULT_PROJECT_ID)
    again = used(installation)
    assert (again.sessions_this_hour, again.bytes, again.operations) == (
        counted.sessions_this_hour,
        counted.bytes,
        counted.operations,
    )
    assert counted.sessions_this_hour == 2


def test_page_and_metrics_show_the_use(install: Install) -> None:
    with install(quota_sessions_per_hour=1, quota_bytes=None) as installation:
        send(installation, 0)
        labels = {"project": "default", "quota": "sessions_per_hour"}
        assert installation.metric("paceline_quota_used", **labels) == 1
        assert installation.metric("paceline_quota_limit", **labels) == 1
        of_bytes = {"project": "default", "quota": "bytes"}
        assert installation.metric("paceline_quota_used", **of_bytes) == BYTES
        page = installation.client.get("/quotas").text
        assert "Used up: sessions an hour" in page
        assert "no limit" in page
        for quota in QUOTAS:
            assert quota.title in page


def test_every_quota_has_a_setting_and_a_problem() -> None:

    for quota in QUOTAS:
        assert f"quota_{quota.name}" in Settings.model_fields
        status, _ = PROBLEMS[f"quota.{quota.name}"]
        assert status == 429
