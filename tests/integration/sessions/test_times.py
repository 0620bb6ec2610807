"""The comparison of two time ranges of a job over HTTP."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from app.sessions.models.tables import Session, StoredVerdict
from app.sessions.pages.compare_parts import USUAL, bounds_of
from tests.integration.sessions.test_pages import page
from tests.support.alerting import Alerting

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def fill(container: Container, *, slow: int = 5, fast: int = 4) -> None:
    """Store a slow week and a fast one."""
    alerting = Alerting(container)
    found = [alerting.session(1.4) for _ in range(slow)]
    with container.uow() as tx:
        tx.session.execute(
            update(Session)
            .where(Session.id.in_(found))
            .values(received_at=Session.received_at - timedelta(days=9))
        )
    for _ in range(fast):
        alerting.session(1.0)


def test_the_last_week_is_held_against_the_one_before(
    container: Container, client: httpx.Client
) -> None:
    fill(container)
    found = page(client, "/compare/times?job=llm")
    assert "5 sessions" in found.one("h1").text
    assert "4 sessions" in found.one("h1").text
    assert "5 of 5" in found.one("table", "changes").text
    fields = {one.attributes["name"] for one in found.all("input")}
    assert {"job", "a_from", "a_to", "b_from", "b_to"} <= fields


def test_of_few_sessions_the_steps_within_them_are_compared(
    container: Container, client: httpx.Client
) -> None:
    fill(container, slow=3, fast=2)
    assert "Cannot say" in page(client, "/compare/times?job=llm").text
    with container.uow() as tx:
        for row in tx.session.execute(select(StoredVerdict)).scalars():
            slow = row.document.level == "slow"
            steps_s = tuple((14.0 if slow else 10.0) + step / 100 for step in range(12))
            row.document = replace(row.document, steps_s=steps_s)
    found = page(client, "/compare/times?job=llm").text
    assert "Change, p < 0.001" in found
    assert "3 and 2 sessions are too few; by the steps within them" in found
    assert "36 + 24 steps" in found


def test_a_time_without_sessions_says_so(container: Container, client: httpx.Client) -> None:
    fill(container)
    found = page(client, "/compare/times?job=llm&a_from=2020-01-01T00:00&a_to=2020-01-02T00:00")
    assert "there is nothing to compare" in found.one("h1").text
    assert client.get("/compare/times?job=unknown").status_code == 404
    assert "Choose two sessions" in page(client, "/compare/times").one("h1").text


def test_an_address_without_a_time_means_a_week() -> None:
    (first, end), (begin, last) = bounds_of(("", "", "", ""), NOW)
    assert (last, begin, end, first) == (NOW, NOW - USUAL, NOW - USUAL, NOW - 2 * USUAL)
    asked = ("2026-11-02T00:00", "2026-11-01T00:00", "nonsense", "")
    (first, end), (begin, last) = bounds_of(asked, NOW)
    assert (first.day, end.day, begin, last) == (1, 2, NOW - USUAL, NOW)
