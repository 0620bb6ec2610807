"""Hosts in a browser: found by their cost, inspected, repaired."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.e2e.expecting import WIDE_LIGHT, expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.recorded import analyzed, job_trace
from tests.integration.hosts.build import HOUR, reading, session

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor


@pytest.fixture
def fleet(container: Container) -> None:
    """Store weeks of two jobs on six hosts, one of which is slow repeatedly."""
    for day in range(28, 0, -1):
        slow = 1.0 if day > 9 else 1.2 + 0.04 * (9 - day)
        hosts = {f"node-{100 + n}": reading(1.0 + 0.01 * n) for n in range(4)}
        hosts["node-017"] = reading(slow, lost=14.0)
        hosts["node-018"] = reading(1.3 if day == 6 else 1.01, cause="network")
        session(container, hosts, ago=24 * day * HOUR, job="dense-120b-pretrain")
        if day % 4 == 0:
            session(
                container,
                {"node-017": slow, "node-877": reading(1.15, cause="network", gpu="1")},
                ago=(24 * day - 3) * HOUR,
                job="dense-34b-pretrain",
            )


@in_every_look
@pytest.mark.usefixtures("fleet")
def test_the_pages_of_hosts(site: str, visitor: Visitor, look: Look) -> None:
    page = visitor.open(f"{site}/hosts", look)
    expect(page.locator("h1")).to_contain_text("node-017 alone")
    expect(page.locator(".hosts tbody tr")).to_have_count(2)
    expect(page.locator(".alike tbody tr")).to_have_count(1)
    keep(page, f"hosts-{look.name}")
    expect_well_made(page, site, look)
    page.goto(f"{site}/hosts/node-017")
    expect(page.locator("h1")).to_contain_text("node-017: GPU 5 slow in 11 of 35 sessions")
    keep(page, f"host-{look.name}")
    expect_well_made(page, site, look)


@pytest.mark.usefixtures("fleet")
def test_a_repair_is_noted_where_the_host_is(site: str, visitor: Visitor) -> None:
    page = visitor.open(f"{site}/hosts", WIDE_LIGHT)
    page.get_by_role("link", name="node-017").click()
    page.wait_for_url("**/hosts/node-017")
    page.get_by_label("What was done").fill("replaced GPU 5")
    page.get_by_label("GPU", exact=True).fill("5")
    page.get_by_label("As", exact=True).fill("team hardware")
    page.get_by_role("button", name="Note repair").click()
    expect(page.locator(".repairs")).to_contain_text("GPU 5: replaced GPU 5")
    expect(page.locator(".repairs")).to_contain_text("open: 2 more sessions needed")
    expect(page.locator(".repairs")).to_contain_text("team hardware")
    keep(page, "host-repaired")


@pytest.mark.usefixtures("fleet")
def test_hosts_are_found_sorted_and_shared_by_address(site: str, visitor: Visitor) -> None:
    page = visitor.open(f"{site}/hosts", WIDE_LIGHT)
    page.get_by_role("link", name=re.compile("^All 7")).click()
    expect(page.locator(".hosts tbody tr")).to_have_count(7)
    page.get_by_label("Find hosts").fill("network")
    page.get_by_label("Find hosts").press("Enter")
    expect(page.locator(".hosts tbody tr")).to_have_count(2)
    page.get_by_role("link", name="Host", exact=True).click()
    expect(page.locator(".hosts tbody a").first).to_have_text("node-018")
    page.get_by_role("link", name="7\u00a0d").click()
    expect(page.locator(".hosts tbody tr")).to_have_count(2)
    assert {"q=network", "show=all", "sort=host", "range=7d"} <= set(
        page.url.partition("?")[2].split("&")
    )
    expect(page.get_by_label("Find hosts")).to_have_value("network")


def test_every_host_name_links_to_its_page(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}", WIDE_LIGHT)
    row = page.locator(".workers tbody tr").first
    host = row.locator("td:nth-child(2)").inner_text()
    row.get_by_role("link", name=host).click()
    page.wait_for_url(f"**/hosts/{host}")
    expect(page.locator("h1")).to_contain_text(f"{host} slow in 1 of 1")
    page.get_by_role("link", name="dense-34b").first.click()
    page.wait_for_url("**/jobs/dense-34b")
    page.locator("table").get_by_role("link", name=host).click()
    page.wait_for_url(f"**/hosts/{host}")
