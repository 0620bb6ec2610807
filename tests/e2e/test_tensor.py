"""Tensor-parallel groups in a browser: updated while the job reports, and switched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.support.served import client_of
from tests.support.tensor import HEALTHY, SLOW, TrainingJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.visiting import Look, Visitor


@pytest.fixture
def job(site: str) -> Iterator[TrainingJob]:
    with client_of(site) as client:
        found = TrainingJob(client)
        found.says |= {"ranks": [8, 9, 10, 11], "hosts": ["node-1"] * 4}
        found.report(*HEALTHY, steps=5)
        yield found


@in_every_look
def test_the_page_of_a_group_under_a_plan(
    job: TrainingJob, site: str, visitor: Visitor, look: Look
) -> None:
    job.switch("apply")
    for times in (SLOW, HEALTHY, SLOW):
        job.report(*times, steps=5)
    page = visitor.open(f"{site}/jobs/llm/tensor/0-0", look)
    expect(page.locator("h1")).to_contain_text("of rank 8 took")
    expect(page.locator(".facts")).to_contain_text("4 of 4 acknowledged")
    slow = page.locator(".tpranks tr[aria-selected=true]")
    expect(slow).to_contain_text("8.00")
    expect(page.locator(".tpplans tbody tr")).to_have_count(3)
    expect(page.locator(".tpmethods tr[aria-selected=true]")).to_contain_text("SEMI")
    keep(page, f"tensor-{look.name}")
    expect_well_made(page, site, look)


@in_every_look
def test_the_page_of_a_job_s_groups(
    job: TrainingJob, site: str, visitor: Visitor, look: Look
) -> None:
    TrainingJob(job.client, group="0-1").report(*SLOW, steps=2)
    page = visitor.open(f"{site}/jobs/llm", look)
    expect(page.locator("h1")).to_have_text("1 of 2\u00a0tensor-parallel groups has a straggler")
    keep(page, f"tensor-groups-{look.name}")
    expect_well_made(page, site, look)
    page.get_by_role("link", name="0-1").click()
    expect(page.locator("h1")).to_contain_text("would take")


def test_the_page_follows_the_job_and_its_switch_turns(
    job: TrainingJob, site: str, visitor: Visitor
) -> None:
    page = visitor.open(f"{site}/jobs/llm/tensor/0-0")
    expect(page.locator("h1")).to_contain_text("compute evenly")
    job.report(*SLOW, steps=2)
    expect(page.locator("h1")).to_contain_text("would take")
    assert job.plan is None

    page.get_by_label("Who").fill("ann")
    page.get_by_role("switch").click()
    expect(page.get_by_role("switch")).to_have_attribute("aria-checked", "true")
    expect(page.locator("section[aria-label=Switch]")).to_contain_text("apply by ann")
    offered = job.ask().json()
    assert (offered["version"], offered["apply"]) == (2, True)

    page.get_by_label("Budget").fill("0.9")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_label("Budget")).to_have_value("0.25")
