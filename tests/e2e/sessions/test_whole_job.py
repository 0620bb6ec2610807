"""From a session to the plan of its whole job, in a browser."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.support.plans import Asked, do, open_run
from tests.support.sessions import store
from tests.support.whole_jobs import whole_job_trace

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor


@in_every_look
def test_a_sessions_job_is_planned_from_its_page(
    site: str, container: Container, visitor: Visitor, look: Look
) -> None:
    stored = store(container, whole_job_trace())
    assert do(container, Asked(stored.session, stored.run))
    page = visitor.open(f"{site}/sessions/{stored.session}", look)
    page.get_by_role("button", name="Plan the whole job").click()
    page.wait_for_url(f"{site}/plans/*")
    plan = uuid.UUID(page.url.rsplit("/", 1)[1])
    assert do(container, Asked(plan, open_run(container, plan)))
    page.reload()
    expect(page.locator("main")).to_contain_text("As it runs, measured")
    keep(page, f"plan-of-session-{look.name}")
    expect_well_made(page, site, look)
