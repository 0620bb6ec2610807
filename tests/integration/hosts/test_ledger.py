"""The ledger of hosts agrees with the stored reports, also with earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, select

from app.access.moves import move_job
from app.access.projects import create_project
from app.hosts.models import HostReading
from app.hosts.readings import readings_of
from app.sessions.models.tables import Session
from app.sessions.read import report_document
from tests.integration.pages.test_routes import analyzed
from tests.support.reads import read
from tests.support.sessions import refused_trace, store

if TYPE_CHECKING:
    from app.platform.container import Container


def rows(container: Container) -> list[HostReading]:
    with container.everywhere().reading() as tx:
        return list(tx.session.execute(select(HostReading).order_by(HostReading.host)).scalars())


def test_an_analysis_stores_the_hosts_of_its_report(container: Container) -> None:
    stored = analyzed(container)
    report = read(container, report_document, stored.session)
    found = {row.host: row for row in rows(container)}
    for reading in readings_of(report):
        row = found.pop(reading.host)
        assert row.session_id == stored.session
        assert (row.slowdown, row.cause) == (reading.slowdown, reading.cause)
        assert row.lost_each_hour == reading.lost_each_hour
    assert found == {}
    assert any(row.cause for row in rows(container))


def test_a_session_without_a_report_says_nothing_of_hosts(container: Container) -> None:
    store(container, refused_trace())
    assert rows(container) == []


def test_readings_go_with_their_session_and_move_with_their_job(container: Container) -> None:
    stored = analyzed(container, "moves")
    analyzed(container, "stays")
    create_project(container.everywhere(), "other")
    count = len(rows(container))
    move_job(container, "moves", "other")
    moved = [row for row in rows(container) if row.session_id == stored.session]
    assert len(moved) * 2 == count
    assert {row.project_id for row in moved} != {container.project_id}
    with container.everywhere().uow() as tx:
        tx.session.execute(delete(Session).where(Session.id == stored.session))
    assert stored.session not in {row.session_id for row in rows(container)}
    assert len(rows(container)) * 2 == count
