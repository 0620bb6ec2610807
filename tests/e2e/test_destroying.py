"""Deletions are confirmed first, and a wrong click deletes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect
from sqlalchemy import func, select

from app.jobs.models import Job
from app.sessions.models.tables import Session
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.recorded import analyzed
from tests.support.sessions import small_trace

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor


def stored(container: Container, kind: type) -> int:
    with container.reading() as tx:
        found: int = tx.session.execute(select(func.count()).select_from(kind)).scalar_one()
    return found


@in_every_look
def test_a_double_click_on_delete_deletes_no_job(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    analyzed(container, small_trace(), "dense-34b")
    page = visitor.open(f"{site}/jobs/dense-34b", look)
    page.get_by_role("button", name="Delete the job dense-34b").dblclick()
    dialog = page.get_by_role("dialog", name="Delete the job dense-34b?")
    expect(dialog).to_contain_text("All its sessions (1 session")
    confirm = dialog.get_by_role("button", name="Delete job")
    field = dialog.get_by_label("Type dense-34b to confirm")
    expect(field).to_be_focused()
    field.press_sequentially("dense-34")
    expect(confirm).to_be_disabled()
    field.press("Enter")
    expect_well_made(page, site, look)
    keep(page, f"delete-job-{look.name}")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert stored(container, Job) == 1

    page.get_by_role("button", name="Delete the job dense-34b").click()
    dialog.get_by_role("textbox").fill("dense-34b")
    confirm.click()
    expect(page).to_have_url(f"{site}/")
    assert stored(container, Job) == 0


def test_wherever_the_pointer_rests_no_series_of_clicks_deletes_a_session(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored_session = analyzed(container, small_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored_session.session}")
    button = page.get_by_role("button", name="Delete session 1")
    button.click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Delete session")
    box = confirm.bounding_box()
    assert box is not None
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    # The pointer is where the dialog opens.
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    button.evaluate("button => button.click()")
    page.mouse.click(x, y, click_count=4, delay=10)
    page.wait_for_timeout(900)
    expect(confirm).to_be_disabled()
    page.mouse.click(x, y)
    expect(page.get_by_role("dialog")).to_be_visible()
    assert stored(container, Session) == 1
    page.mouse.move(x, y - 100)
    expect(confirm).to_be_enabled()
