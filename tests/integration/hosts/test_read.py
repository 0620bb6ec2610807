"""The ranking of hosts: their cost, blame, and the filters of the list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from app.hosts.costs import Hosts, Show, Span
from app.hosts.listed import list_hosts
from app.hosts.repairs import Outcome, note_repair
from app.web.lists import PageRequest
from tests.integration.hosts.build import HOUR, reading, session
from tests.support.alerting import Alerting
from tests.support.reads import read

if TYPE_CHECKING:
    from app.platform.container import Container

ALWAYS = Span()


def hosts(
    container: Container,
    span: Span = ALWAYS,
    request: PageRequest = PageRequest(),  # noqa: B008 - frozen
    show: Show = Show.ALL,
    words: str = "",
) -> Hosts:
    return read(container, list_hosts, span, request, show=show, words=words, alike_from=1.1)


def named(found: Hosts) -> list[str]:
    return [row.host for row in found.page.rows]


def test_a_verdict_counts_until_the_job_s_next_session(container: Container) -> None:
    for hours in (5, 4, 2):
        session(container, {"node-1": 1.4}, ago=hours * HOUR)
    [row] = hosts(container).page.rows
    # The sessions count for one and two hours, and the last one for two hours until now.
    assert row.cost_gpu_hours == pytest.approx(10 * (1 + 2 + 2), rel=1e-3)
    assert (row.sessions, row.slow_sessions, row.jobs, row.slow_jobs) == (3, 3, 1, 1)


def test_a_verdict_counts_for_six_hours_at_most(container: Container) -> None:
    for hours in (60, 30):
        session(container, {"node-1": 1.4}, ago=hours * HOUR)
    [row] = hosts(container).page.rows
    assert row.cost_gpu_hours == pytest.approx(10 * (6 + 6), rel=1e-3)


def test_a_single_session_costs_what_its_steps_did(container: Container) -> None:
    session(container, {"node-1": 1.4}, ago=2 * HOUR)
    [row] = hosts(container).page.rows
    assert row.cost_gpu_hours == pytest.approx(10 * 60 / 3600)


def test_a_host_is_blamed_from_the_second_slow_session_on(container: Container) -> None:
    session(container, {"node-1": 1.4, "node-2": 1.2, "node-3": 1.0}, ago=3 * HOUR)
    session(container, {"node-1": 1.4, "node-2": 1.0, "node-3": 1.0}, ago=2 * HOUR, job="other")
    found = hosts(container, show=Show.BLAMED)
    assert named(found) == ["node-1"]
    assert (found.page.rows[0].jobs, found.page.rows[0].slow_jobs) == (2, 2)
    assert [row.host for row in found.look_alikes] == ["node-2"]
    assert (found.totals.hosts, found.totals.blamed, found.totals.first) == (3, 1, "node-1")
    assert found.page.rows[0].gpus == ["5"]


def test_a_host_whose_slowness_no_cause_names_looks_slow(container: Container) -> None:
    waits = reading() | {"slowdown": 1.3, "computing": 1.0}
    for hours in (3, 2):
        session(container, {"node-1": waits}, ago=hours * HOUR)
    found = hosts(container)
    assert not found.page.rows[0].blamed
    assert [row.host for row in found.look_alikes] == ["node-1"]


def test_a_chosen_time_excludes_what_is_outside_of_it(container: Container) -> None:
    for hours in (50, 3):
        session(container, {"node-1": 1.4, "node-2": 1.0}, ago=hours * HOUR)
    now = datetime.now(UTC)
    found = hosts(container, Span(since=now - timedelta(hours=24)))
    assert [row.sessions for row in found.page.rows] == [1, 1]
    assert found.totals.blamed == 0
    found = hosts(container, Span(until=now - timedelta(hours=24)))
    assert [row.sessions for row in found.page.rows] == [1, 1]
    assert found.page.rows[0].cost_gpu_hours <= 60


def test_words_find_hosts_jobs_and_causes(container: Container) -> None:
    session(container, {"node-1": 1.4}, ago=HOUR, job="dense")
    session(container, {"node-2": reading(1.3, cause="network")}, ago=HOUR, job="moe")
    for words, expected in {
        "NODE-2": {"node-2"},
        "dense": {"node-1"},
        "network": {"node-2"},
        "moe network": {"node-2"},
        "dense network": set(),
        "%": set(),
        "": {"node-1", "node-2"},
    }.items():
        found = hosts(container, words=words)
        assert set(named(found)) == expected
        assert found.page.total == len(expected)


def test_hosts_are_sorted_and_paged(container: Container) -> None:
    some = {f"node-{n}": 1.0 + n / 10 for n in range(5)}
    for hours in (3, 2):
        session(container, some, ago=hours * HOUR)
    assert named(hosts(container, request=PageRequest("host", size=2))) == ["node-0", "node-1"]
    assert named(hosts(container, request=PageRequest("-worst", size=2))) == ["node-4", "node-3"]
    last = hosts(container, request=PageRequest("host", 9, 2))
    assert (last.page.number, named(last)) == (3, ["node-4"])
    assert named(hosts(container, request=PageRequest("nonsense"))) == named(hosts(container))


def test_the_trend_is_of_the_latest_sessions_of_the_time(container: Container) -> None:
    for hours, slowdown in ((40, 1.3), (20, 1.0), (12, 1.4), (1, 1.2)):
        session(container, {"node-1": slowdown, "node-2": 1.0}, ago=hours * HOUR)
    since = datetime.now(UTC) - timedelta(hours=24)
    found = hosts(container, Span(since=since))
    assert {row.host: row.trend for row in found.page.rows} == {
        "node-1": [1.0, 1.4, 1.2],
        "node-2": [1.0, 1.0, 1.0],
    }


def test_the_last_repair_is_judged_by_the_sessions_around_it(container: Container) -> None:
    for hours in (9, 8):
        session(container, {"node-1": 1.4, "node-2": 1.4}, ago=hours * HOUR)
    for hours in (3, 2):
        session(container, {"node-1": 1.0, "node-2": 1.3}, ago=hours * HOUR)
    done = datetime.now(UTC) - 5 * HOUR
    for host in ("node-1", "node-2"):
        note_repair(container, host, what="replaced GPU 5", gpu="5", at=done, by="team hardware")
    found = hosts(container, show=Show.REPAIRED)
    repairs = {row.host: row.repair for row in found.page.rows if row.repair}
    assert {host: one.judged.outcome for host, one in repairs.items()} == {
        "node-1": Outcome.HELPED,
        "node-2": Outcome.NO_HELP,
    }
    judged = repairs["node-1"].judged
    assert (judged.before, judged.after) == (1.4, 1.0)
    assert repairs["node-1"].by == "team hardware"


def test_incidents_of_a_host_are_counted(container: Container) -> None:
    session(container, {"node-7": 1.4}, ago=HOUR)
    Alerting(container).slow("elsewhere", host="node-7")
    [row] = hosts(container).page.rows
    assert (row.incidents, row.firing) == (1, True)


def test_nothing_is_a_page_too(container: Container) -> None:
    found = hosts(container)
    assert (found.page.rows, found.totals.hosts, found.look_alikes) == ([], 0, [])
