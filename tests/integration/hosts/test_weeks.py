"""The weekly sums of readings stay right when readings are added and deleted."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import delete, func, select

from app.access.moves import move_job
from app.access.projects import create_project
from app.hosts.costs import WEEK, Span, weeks_in
from app.hosts.listed import list_hosts
from app.hosts.models import HostReading, HostWeek
from app.hosts.readings import write_readings
from app.jobs.models import Job
from app.sessions.models.tables import Session
from app.sessions.read import report_document
from app.web.lists import PageRequest
from tests.integration.hosts.build import HOUR, reading, session
from tests.integration.pages.test_routes import analyzed
from tests.support.reads import read

if TYPE_CHECKING:
    import uuid

    from app.platform.container import Container

DAY: Final = timedelta(days=1)

Sums = list[tuple[object, ...]]


def kept(container: Container) -> Sums:
    """Return the sums that the database's triggers maintain."""
    row = HostWeek
    columns = (
        *(row.project_id, row.job_id, row.week, row.host, row.sessions, row.ranks),
        *(row.slowdown, row.computing, row.first_seen, row.last_seen),
    )
    with container.everywhere().reading() as tx:
        return [tuple(one) for one in tx.session.execute(select(*columns).order_by(*columns[:4]))]


def counted(container: Container) -> Sums:
    """Return the same sums, computed from the readings."""
    one = HostReading
    with container.everywhere().reading() as tx:
        rows = tx.session.execute(select(one)).scalars().all()
    found: dict[tuple[int, int, datetime, str], list[HostReading]] = {}
    for row in rows:
        received = row.received_at.astimezone(UTC)
        monday = received.date() - timedelta(days=received.weekday())
        week = datetime.combine(monday, datetime.min.time(), UTC)
        found.setdefault((row.project_id, row.job_id, week, row.host), []).append(row)
    return [
        (
            *key,
            len(own),
            max(row.ranks for row in own),
            max(row.slowdown for row in own),
            max((row.computing for row in own if row.computing is not None), default=None),
            min(row.received_at for row in own),
            max(row.received_at for row in own),
        )
        for key, own in sorted(found.items(), key=lambda item: item[0])
    ]


def fill(container: Container) -> list[uuid.UUID]:
    """Store sessions of two jobs over five weeks."""
    none = reading(1.05) | {"computing": None}
    return [
        session(
            container,
            {"node-1": 1 + (n % 5) / 10, "node-2": none if n % 3 else 1.2},
            ago=n * 2 * DAY + HOUR,
            job=f"job-{n % 2}",
        )
        for n in range(16)
    ]


def remove(container: Container, sessions: list[uuid.UUID]) -> None:
    with container.uow() as tx:
        tx.session.execute(delete(Session).where(Session.id.in_(sessions)))


def test_weeks_are_what_their_readings_add_up_to(container: Container) -> None:
    fill(container)
    assert len(kept(container)) > 10
    assert kept(container) == counted(container)


def test_deleted_sessions_do_not_count(container: Container) -> None:
    sessions = fill(container)
    for some in (sessions[:1], sessions[5:9], sessions[12:]):
        remove(container, some)
        assert kept(container) == counted(container)
    remove(container, sessions)
    assert kept(container) == []


def test_an_analysis_that_runs_again_counts_once(container: Container) -> None:
    stored = analyzed(container)
    analyzed(container)
    before = kept(container)
    assert before == counted(container)
    assert {row[4] for row in before} == {2}
    report = read(container, report_document, stored.session)
    for _ in range(2):
        with container.uow() as tx:
            write_readings(tx, stored.session, report)
    assert kept(container) == before
    with container.uow() as tx:
        write_readings(tx, stored.session, None)
    assert {row[4] for row in kept(container)} == {1}
    assert kept(container) == counted(container)


def test_a_job_takes_its_weeks_along(container: Container) -> None:
    fill(container)
    create_project(container.everywhere(), "other")
    move_job(container, "job-1", "other")
    assert len({row[0] for row in kept(container)}) == 2
    assert kept(container) == counted(container)
    with container.uow() as tx:
        tx.session.execute(delete(Job).where(Job.name == "job-0"))
    assert len({row[0] for row in kept(container)}) == 1
    assert kept(container) == counted(container)


def test_sessions_written_and_deleted_at_once_are_all_counted(container: Container) -> None:
    old = [session(container, {"node-1": 1.5, "node-2": 1.1}, ago=n * HOUR) for n in range(6)]
    start = threading.Barrier(3)
    faults: list[BaseException] = []

    def work(what: str) -> None:
        start.wait()
        try:
            for n in range(6):
                if what == "delete":
                    remove(container, [old[n]])
                else:
                    session(container, {"node-1": 1.2, "node-2": 1.3}, ago=n * HOUR, job=what)
        except BaseException as error:  # noqa: BLE001 - shown below
            faults.append(error)

    # Sessions of one job are deleted and added at the same time.
    threads = [threading.Thread(target=work, args=(what,)) for what in ("delete", "llm", "more")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert kept(container) == counted(container)
    assert {row[4] for row in kept(container)} <= set(range(1, 7))


def test_a_list_says_the_same_of_any_time(container: Container) -> None:
    fill(container)
    now = datetime.now(UTC)
    bounds = [None, *(now - days * DAY for days in (40, 29, 15.5, 14, 8.3, 7, 3, 0))]
    for since in bounds:
        for until in bounds:
            if since is not None and until is not None and until < since:
                continue
            span = Span(since, until)
            listed = read(
                container, list_hosts, span, PageRequest("host"), alike_from=1.1
            ).page.rows
            with container.reading() as tx:
                expected = tx.session.execute(
                    select(
                        HostReading.host,
                        func.count(),
                        func.count(HostReading.job_id.distinct()),
                        func.max(HostReading.slowdown),
                        func.max(HostReading.computing),
                        func.min(HostReading.received_at),
                        func.max(HostReading.received_at),
                    )
                    .where(*span.holds(HostReading.received_at.expression))
                    .group_by(HostReading.host)
                    .order_by(HostReading.host)
                ).all()
            assert [
                (
                    *(row.host, row.sessions, row.jobs, row.slowdown_worst, row.computing_worst),
                    *(row.first_seen, row.last_seen),
                )
                for row in listed
            ] == [tuple(row) for row in expected]


@pytest.mark.parametrize(
    ("since", "until", "first", "end"),
    [
        (None, None, None, None),
        ("2026-11-16", None, "2026-11-16", None),
        ("2026-11-17", "2026-11-30", "2026-11-23", "2026-11-30"),
        ("2026-11-17", "2026-11-29", "2026-11-23", "2026-11-23"),
        ("2026-11-17", "2026-11-18", "2026-11-23", "2026-11-23"),
        (None, "2026-11-18", None, "2026-11-16"),
    ],
)
def test_weeks_are_whole_from_monday_to_monday(
    since: str | None, until: str | None, first: str | None, end: str | None
) -> None:
    found = weeks_in(Span(_day(since), _day(until)))
    assert (found.first, found.end) == (_day(first), _day(end))
    assert timedelta(days=7) == WEEK


def _day(day: str | None) -> datetime | None:
    return None if day is None else datetime.fromisoformat(day).replace(tzinfo=UTC)
