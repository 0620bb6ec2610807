"""A walk over the demo, as by a new user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from app.analysis.synthesis.fleet_history import BAD_HOST, DIVIDED, HEALTHY, host_name, runs
from tests.e2e.expecting import expect_well_made
from tests.e2e.looking import keep, wait_for_plots
from tests.e2e.visiting import LOOKS
from tests.support.demo import told_demo
from tests.support.nightly import by_night

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.visiting import Visitor

JOB: Final = HEALTHY.name
PAGES: Final = (
    *("/", "/?since=14d", "/?owner=applied", "/hosts", "/hosts?show=all", "/hosts?show=repaired"),
    *(f"/hosts/{host_name(BAD_HOST)}", "/incidents", "/report", "/report?since=14d", "/plans"),
    *(f"/jobs/{JOB}", f"/jobs/{DIVIDED}", f"/compare?job={JOB}", f"/compare/times?job={JOB}"),
    *("/jobs/dense-52b/tensor", "/jobs/dense-52b/tensor/0-2", "/rules", "/channels", "/ingest"),
    *("/installation", "/retention", "/quotas", "/access", "/access/audit"),
)


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """Yield the address of a demo with its whole history."""
    with told_demo() as url:
        yield url


def listed(url: str, name: str, **asked: str) -> list[dict[str, Any]]:
    """Return a list of the API."""
    answer = httpx.get(f"{url}/api/v1/{name}", params={"limit": 200, **asked}, timeout=60)
    found: list[dict[str, Any]] = answer.raise_for_status().json()[name]
    return found


@by_night
def test_every_page_of_the_demo_is_whole(demo: str, visitor: Visitor) -> None:
    incidents = {(one["state"]): one["id"] for one in listed(demo, "incidents")}
    [plan] = listed(demo, "plans")
    addresses = [
        *PAGES,
        f"/plans/{plan['id']}",
        *(f"/incidents/{incident}" for incident in incidents.values()),
    ]
    faults = []
    for look in LOOKS:
        for number, address in enumerate(addresses):
            page = visitor.open(f"{demo}{address}", look)
            wait_for_plots(page)
            keep(page, f"demo-{number}-{look.name}")
            try:
                expect_well_made(page, demo, look)
            except AssertionError as fault:
                faults.append(f"{address}, {look.name}: {fault}")
            page.close()
    assert faults == []


@by_night
def test_the_latest_session_of_every_job_is_whole(demo: str, visitor: Visitor) -> None:
    faults = []
    for run in runs():
        [latest, *_] = listed(demo, "sessions", job=run.name)
        page = visitor.open(f"{demo}/sessions/{latest['id']}")
        wait_for_plots(page)
        try:
            expect_well_made(page, demo, LOOKS[0])
        except AssertionError as fault:
            faults.append(f"{run.name}: {fault}")
        page.close()
    assert faults == []
