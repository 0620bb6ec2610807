"""Requests over a project's quota are refused with the quota's name, and store nothing."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, select, text, update

from app.access.models import DEFAULT_PROJECT_ID
from app.platform.settings import Settings
from app.quotas.usage import QUOTAS, count, recount, use_of
from app.retention.models import ProjectUsage
from app.sessions.models.tables import Session
from app.web.problems import PROBLEMS
from tests.integration.api import bodies
from tests.integration.api.chunks import put, rank_body, seal
from tests.integration.hosts.build import probe_of
from tests.support.tensor import HEALTHY, TrainingJob
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    import httpx

    from app.quotas.usage import Use
    from tests.integration.api.conftest import Install, Installation


def send(installation: Installation, number: int) -> httpx.Response:
    """Send a session whose bytes differ for each number."""
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
        # A repeated session does not count again.
        assert send(installation, 1).status_code == 200
        found = used(installation)
        assert (found.sessions_this_hour, found.bytes, found.operations) == (
            2,
            2 * BYTES,
            2 * OPERATIONS,
        )


@pytest.mark.parametrize(("quota", "limit"), [("bytes", BYTES + 1), ("operations", OPERATIONS + 1)])
def test_a_body_that_does_not_fit_whole_is_not_stored_at_all(
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
        # An open session still accepts chunks.
        assert chunk(installation, session=1, producer="b").status_code == 202
        assert seal(installation, 1).status_code == 202
        assert chunk(installation, session=3).status_code == 202
        assert used(installation).open_sessions == 2


def test_producers_of_open_sessions_are_counted(install: Install) -> None:
    with install(quota_producers=3) as installation:
        for session, producer in ((1, "a"), (1, "b"), (2, "a")):
            assert chunk(installation, session=session, producer=producer).status_code == 202
        refused(chunk(installation, session=2, producer="b"), "producers")
        # A counted producer may send more chunks.
        assert chunk(installation, session=1, producer="a", number=1).status_code == 202
        installation.absorb_all()
        assert used(installation).producers == 3
        assert seal(installation, 1).status_code == 202
        assert chunk(installation, session=2, producer="b").status_code == 202
        installation.absorb_all()
        assert used(installation).producers == 2


def announce(installation: Installation, job: str, run: str) -> httpx.Response:
    return installation.client.post(
        f"/api/v1/jobs/{job}/attempts", json={"run_id": run, "restart": 0}
    )


def test_jobs_are_counted_however_they_are_made(install: Install) -> None:
    with install(quota_jobs=2) as installation:
        assert installation.post(job="a").status_code == 202
        assert announce(installation, "b", "1").status_code == 201
        rows = installation.rows()
        refused(installation.post(job="c"), "jobs")
        refused(chunk_of(installation, "c"), "jobs")
        refused(announce(installation, "c", "1"), "jobs")
        refused(TrainingJob(installation.client, "c").send(*HEALTHY), "jobs")
        assert installation.rows() == rows
        # Existing jobs still accept sessions.
        assert installation.post(job="b").status_code == 202
        assert announce(installation, "a", "1").status_code == 201
        assert used(installation).jobs == 2


def test_a_quota_that_was_lowered_refuses_only_what_is_new(install: Install) -> None:
    with install() as before:
        first = TrainingJob(before.client, "a")
        assert first.send(*HEALTHY).status_code == 202
        for job in ("a", "b", "c"):
            assert before.post(job=job).status_code == 202
    with install(quota_jobs=1, quota_tensor_groups=0) as installation:
        refused(installation.post(job="d"), "jobs")
        assert send(installation, 1).json()["code"] == "quota.jobs"
        assert installation.post(job="c", params=bodies.SIZES | {"run_id": "x"}).status_code == 202
        assert announce(installation, "b", "1").status_code == 201
        first.client = installation.client
        assert first.send(*HEALTHY).status_code == 202


def chunk_of(installation: Installation, job: str) -> httpx.Response:
    return installation.client.put(
        f"/api/v1/jobs/{job}/attempts/1/sessions/1/chunks/a/0",
        content=rank_body(0),
        params=bodies.SIZES,
    )


def test_attempts_are_counted(install: Install) -> None:
    with install(quota_attempts=2) as installation:
        assert [announce(installation, "a", run).status_code for run in "12"] == [201, 201]
        refused(announce(installation, "b", "1"), "attempts")
        # An announced attempt keeps its number.
        assert announce(installation, "a", "2").status_code == 200
        assert used(installation).attempts == 2


def test_tensor_parallel_groups_are_counted(install: Install) -> None:
    with install(quota_tensor_groups=1) as installation:
        first = TrainingJob(installation.client, "llm", "0-0")
        assert first.send(*HEALTHY).status_code == 202
        refused(TrainingJob(installation.client, "llm", "0-1").send(*HEALTHY), "tensor_groups")
        assert first.send(*HEALTHY).status_code == 202
        assert used(installation).tensor_groups == 1


def test_devices_of_probes_are_counted(install: Install) -> None:
    with install(quota_probed_devices=3) as installation:
        hosts, probe = "/api/v1/hosts", probe_of(650.0, 651.0)
        assert installation.client.post(f"{hosts}/node-1/probes", json=probe).status_code == 201
        more = installation.client.post(f"{hosts}/node-2/probes", json=probe_of(650.0, 651.0))
        refused(more, "probed_devices")
        # A repeated probe does not count again.
        assert installation.client.post(f"{hosts}/node-1/probes", json=probe).status_code == 201
        assert installation.client.get(f"{hosts}/node-2/probe").status_code == 404
        assert used(installation).probed_devices == 2


def test_notes_are_counted_by_the_hour(install: Install) -> None:
    def note(text: str) -> httpx.Response:
        return installation.client.post("/api/v1/jobs/llm/notes", json={"text": text})

    with install(quota_notes_per_hour=2) as installation:
        assert announce(installation, "llm", "1").status_code == 201
        first = note("one")
        assert [first.status_code, note("two").status_code] == [201, 201]
        refused(note("three"), "notes_per_hour")
        assert used(installation).notes_per_hour == 2
        assert "notes_per_hour,2,2" in installation.client.get("/quotas.csv").text
        # Notes of earlier hours do not count.
        with installation.container.engine.begin() as connection:
            connection.execute(text("UPDATE job_note SET noted_at = noted_at - interval '1 hour'"))
        assert note("three").status_code == 201


def test_of_many_announcements_at_once_just_as_many_pass_as_may(install: Install) -> None:
    with install(quota_attempts=3) as installation, ThreadPoolExecutor(8) as ranks:
        answers = list(
            ranks.map(lambda number: announce(installation, f"job-{number}", "1"), range(8))
        )
        assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 5
        assert used(installation).attempts == 3


def test_bytes_stored_during_a_count_are_in_it(installation: Installation) -> None:
    """Otherwise a session that commits between the sum and the lock would not count."""
    container = installation.container
    send(installation, 0)
    storing = container.uow()
    with storing as tx:
        first = tx.session.execute(select(Session)).scalar_one()
        copy = {
            column.key: getattr(first, column.key)
            for column in inspect(Session).column_attrs
            if column.key not in {"id", "number", "content_sha256", "project_id"}
        }
        tx.session.add(Session(id=uuid.uuid4(), number=99, content_sha256=None, **copy))
        tx.session.flush()
        count(
            tx,
            container.settings,
            DEFAULT_PROJECT_ID,
            sessions=1,
            size=first.body_bytes,
            operations=first.operations,
        )

        def sum_up() -> None:
            with container.uow() as other:
                recount(other, DEFAULT_PROJECT_ID)

        summing = threading.Thread(target=sum_up)
        summing.start()
        wait_for(lambda: _waits_for_a_lock(installation), "the sum waits for who stores")
    summing.join()
    found = used(installation)
    assert (found.sessions_this_hour, found.bytes) == (2, 2 * BYTES)


def _waits_for_a_lock(installation: Installation) -> bool:
    with installation.container.engine.connect() as connection:
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(connection.execute(waiting).scalar_one())


def test_the_counted_usage_equals_the_sum_of_stored_sizes(installation: Installation) -> None:
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
