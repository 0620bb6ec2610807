"""A folder is dropped on a page, or chosen there, and becomes a session."""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from sqlalchemy import func, select, update

from app import bootstrap
from app.access.people import create_person
from app.installation.sweep import sweep
from app.platform.database.states import SessionState
from app.platform.identity import Role
from app.sessions.chunks.absorb import absorb
from app.sessions.models.tables import Intake, Session
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.recorded import analyzed, job_trace
from tests.e2e.visiting import listen_again
from tests.support.served import served
from tests.support.waiting import wait_for
from tests.unit.analysis.trace.recordings.kineto_files import two_stages
from tests.unit.sessions.recordings.archives import forms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route

    from app.platform.container import Container
    from app.platform.settings import Settings
    from tests.e2e.visiting import Look, Visitor

DIRECTORY = "input[webkitdirectory]"
PASSWORD = "correct horse battery"  # noqa: S105 - of a test


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Return a folder of a profiler's files, with a log of the job."""
    folder = tmp_path / "llama-70b"
    for rank in range(2):
        place = folder / f"node-{rank}"
        place.mkdir(parents=True)
        body = two_stages(rank).body()
        (place / f"rank{rank}.json.gz").write_bytes(gzip.compress(body, mtime=0))
    (folder / "train.log").write_text("step 1 loss 2.3")
    (folder / ".hidden").write_text("x")
    return folder


def states(container: Container) -> list[tuple[str, SessionState]]:
    with container.uow() as tx:
        rows = tx.session.execute(select(Session.number, Session.state).order_by(Session.number))
        return [(str(row.number), row.state) for row in rows]


def drop(page: Page, folder: Path) -> None:
    """Drop the files of a folder on the page, as far as a script can do so."""
    files = [
        {"name": path.name, "bytes": list(path.read_bytes())}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    page.evaluate(
        """(files) => {
            const data = new DataTransfer();
            for (const { name, bytes } of files) {
                data.items.add(new File([new Uint8Array(bytes)], name));
            }
            const main = document.getElementById('main');
            for (const kind of ['dragenter', 'dragover', 'drop']) {
                const how = { dataTransfer: data, bubbles: true, cancelable: true };
                main.dispatchEvent(new DragEvent(kind, how));
            }
        }""",
        files,
    )


@in_every_look
def test_a_folder_that_is_chosen_on_an_empty_fleet_becomes_a_session(
    container: Container, site: str, visitor: Visitor, traces: Path, look: Look
) -> None:
    page = visitor.open(f"{site}/", look)
    panel = page.locator("#upload")
    expect(panel.get_by_role("heading")).to_have_text("Drop a profiler folder here")
    expect_well_made(page, site, look)
    keep(page, f"upload-empty-{look.name}")
    # Opened by the keyboard; the dialog is the browser's.
    with page.expect_file_chooser() as chooser:
        panel.get_by_role("button", name="Choose a folder…").press("Enter")
    chooser.value.set_files(traces)
    expect(panel.get_by_role("heading")).to_have_text(re.compile(r"^2\W+Kineto recordings, .*KiB$"))
    expect(panel.locator("details")).to_contain_text("1\N{NO-BREAK SPACE}file not read")
    expect(panel.locator("li")).to_contain_text("llama-70b/train.log: it is of no known format")
    expect(panel.get_by_label("Job")).to_have_value("llama-70b")
    expect(panel.get_by_label("Job")).to_be_focused()
    expect_well_made(page, site, look)
    keep(page, f"upload-ready-{look.name}")
    page.keyboard.press("Enter")

    link = panel.get_by_role("link", name="Session 1 of llama-70b")
    expect(link).to_be_visible()
    expect_well_made(page, site, look)
    keep(page, f"upload-done-{look.name}")
    assert states(container) == [("1", SessionState.QUEUED)]
    link.click()
    expect(page.locator("h1")).to_contain_text("Session 1 has arrived")


def test_files_that_are_dropped_on_a_job_are_its_next_session(
    container: Container, site: str, visitor: Visitor, traces: Path
) -> None:
    analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/jobs/dense-34b")
    panel = page.locator("#upload")
    expect(panel).to_be_hidden()
    page.get_by_role("button", name="Upload recordings…").click()
    expect(panel.get_by_role("button", name="Choose a folder…")).to_be_focused()
    panel.get_by_role("button", name="Close").click()
    expect(panel).to_be_hidden()
    drop(page, traces)
    expect(panel.get_by_role("heading")).to_contain_text("Kineto recordings")
    panel.get_by_role("button", name="Upload").click()
    expect(panel.get_by_role("link")).to_have_text("Session 2 of dense-34b")
    panel.get_by_role("button", name="Close").click()

    # The same files are the same session.
    drop(page, traces)
    panel.get_by_role("button", name="Upload").click()
    expect(panel.get_by_role("heading")).to_have_text("This folder was uploaded before")
    expect(panel.get_by_role("link")).to_have_text("Session 2 of dense-34b")
    assert len(states(container)) == 2


def test_a_recording_that_is_refused_is_named_and_the_others_can_go_on(
    container: Container, site: str, visitor: Visitor, traces: Path
) -> None:
    cut = two_stages(1).body()[:-300]
    (traces / "node-1" / "rank1.json.gz").write_bytes(gzip.compress(cut))
    visitor.expects("422")
    page = visitor.open(f"{site}/")
    panel = page.locator("#upload")
    page.locator(DIRECTORY).set_input_files(traces)
    panel.get_by_role("button", name="Upload").click()
    expect(panel.get_by_role("heading")).to_contain_text("1 of 2\N{NO-BREAK SPACE}recordings")
    expect(panel.locator("li").first).to_contain_text("node-1/rank1.json.gz")
    expect(panel.locator("li").first).to_contain_text("ends in the middle")
    keep(page, "upload-refused")
    panel.get_by_role("button", name="Analyze the others").click()
    expect(panel.get_by_role("link")).to_have_text("Session 1 of llama-70b")
    assert states(container) == [("1", SessionState.QUEUED)]


def test_a_file_that_is_no_recording_is_refused_before_it_is_sent(
    container: Container, site: str, visitor: Visitor, tmp_path: Path
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "train.log").write_text("step 1 loss 2.3")
    visitor.expects("422")
    page = visitor.open(f"{site}/")
    page.locator(DIRECTORY).set_input_files(folder)
    panel = page.locator("#upload")
    expect(panel.get_by_role("alert")).to_have_text("there is no trace in the folder")
    expect(panel.locator("li")).to_contain_text("logs/train.log")
    assert states(container) == []


def test_an_archive_is_sent_as_it_is(
    container: Container, site: str, visitor: Visitor, traces: Path, tmp_path: Path
) -> None:
    entries = [
        (path.relative_to(traces.parent).as_posix(), path.read_bytes())
        for path in sorted(traces.rglob("*.*"))
        if path.is_file()
    ]
    archive = tmp_path / "traces.tar.gz"
    archive.write_bytes(forms(entries)["traces.tar.gz"])
    page = visitor.open(f"{site}/")
    panel = page.locator("#upload")
    page.locator("input[type=file]:not([webkitdirectory])").set_input_files(archive)
    panel.get_by_label("Job").fill("gpt")
    panel.get_by_role("button", name="Upload").click()
    expect(panel.get_by_role("link")).to_have_text("Session 1 of gpt")
    expect(panel.locator("li")).to_contain_text("llama-70b/train.log")
    assert states(container) == [("1", SessionState.QUEUED)]


def begun(page: Page, container: Container, traces: Path) -> list[Route]:
    """Start an upload whose second file never arrives."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "rank1" in route.request.url:
            held.append(route)
        else:
            route.continue_()

    page.route("**/file?*", hold)
    page.locator(DIRECTORY).set_input_files(traces)
    panel = page.locator("#upload")
    panel.get_by_role("button", name="Upload").click()
    expect(panel.locator("[data-part=progress]")).to_contain_text("1 of 2\N{NO-BREAK SPACE}files")
    assert states(container) == [("1", SessionState.OPEN)]
    return held


def test_an_upload_that_is_canceled_leaves_nothing(
    container: Container, site: str, visitor: Visitor, traces: Path
) -> None:
    page = visitor.open(f"{site}/")
    begun(page, container, traces)
    keep(page, "upload-sending")
    page.locator("#upload").get_by_role("button", name="Cancel").click()
    wait_for(lambda: states(container) == [], "the session's end")


def leave(page: Page) -> None:
    """Leave a page that uploads, without the request that closing the tab would send."""
    page.once("dialog", lambda dialog: dialog.accept())
    page.goto("about:blank")
    page.close()


def test_an_upload_whose_page_is_gone_is_never_judged_and_goes_on_with_the_next_one(
    container: Container, site: str, visitor: Visitor, traces: Path
) -> None:
    page = visitor.open(f"{site}/")
    begun(page, container, traces)
    leave(page)
    page = visitor.open(f"{site}/")
    page.get_by_role("button", name="Upload recordings…").click()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.locator(DIRECTORY).set_input_files(traces)
    page.locator("#upload").get_by_role("button", name="Upload").click()
    expect(page.locator("#upload").get_by_role("link")).to_have_text("Session 1 of llama-70b")
    assert [url for url in sent if "rank0" in url] == []
    assert states(container) == [("1", SessionState.QUEUED)]


def test_an_upload_that_does_not_go_on_is_discarded(
    container: Container, site: str, visitor: Visitor, traces: Path
) -> None:
    page = visitor.open(f"{site}/")
    begun(page, container, traces)
    leave(page)
    while absorb(container):
        pass
    with container.uow() as tx:
        hours = func.make_interval(0, 0, 0, 0, 2)
        tx.session.execute(update(Intake).values(last_chunk_at=Intake.last_chunk_at - hours))
    sweep(container)
    assert states(container) == [("1", SessionState.DISCARDED)]


@pytest.fixture
def company(browser: Browser, settings: Settings) -> Iterator[str]:
    """Yield the address of a server with a reader and an operator."""
    del browser
    container = bootstrap.build(settings.model_copy(update={"require_sign_in": True}))
    create_person(container.everywhere(), "ada", PASSWORD, Role.OPERATOR, "default")
    create_person(container.everywhere(), "bob", PASSWORD, Role.READER, "default")
    with served(container, listen_again(settings)) as address:
        yield address
    container.close()


def test_who_may_not_send_sees_no_control(company: str, visitor: Visitor, traces: Path) -> None:
    for name, controls in (("bob", 0), ("ada", 1)):
        page = visitor.open(f"{company}/", alone=True)
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("h1")).to_contain_text("No job is connected yet")
        expect(page.locator("#upload")).to_have_count(controls)
    page.locator(DIRECTORY).set_input_files(traces)
    page.locator("#upload").get_by_role("button", name="Upload").click()
    expect(page.locator("#upload").get_by_role("link")).to_have_text("Session 1 of llama-70b")
