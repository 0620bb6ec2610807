"""The words of a session's page in reading order, in one text file for each scenario.

After an intended change of a sentence, write the files again and read the difference.
"""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

from app.analysis.report.document import Report
from app.analysis.report.session_verdict import verdict_of
from app.fixes.pages import applied_fixes
from app.incidents.everywhere import navigation
from app.plans.of_session import Remedies
from app.platform.database.states import SessionState
from app.sessions.history import Around
from app.sessions.pages.session import report_view, session_page
from app.sessions.read import SessionRow, SessionView
from app.sessions.recordings.listing import UPLOADED_BYTES
from app.web.assets import installed_assets
from app.web.pages import Navigation, Pages
from tests.support import reports

FOLDER: Final = Path(__file__).with_name("pages")
SCENARIOS: Final = ("slow-worker", "network", "garbage-collection", "healthy", "data-loading")

WRITE: Final = "PACELINE_WRITE_PAGES"
COMMAND: Final = f"{WRITE}=1 .venv/bin/pytest tests/unit/sessions/pages/test_pages.py"

RECEIVED: Final = datetime(2026, 3, 5, 12, 30, tzinfo=UTC)

# Elements without an end tag.
VOID: Final = {"meta", "link", "input", "br", "line", "rect", "use", "circle", "path"}
# Elements that are not read as text: tools of the page, forms, and data for its script.
UNREAD: Final = {"form", "script", "svg", "template"}
UNREAD_CLASSES: Final = {"tools", "legend", "files"}
LINES: Final = {"h1", "h2", "p", "tr", "dt", "figure", "section", "div"}
CELLS: Final = {"td", "th", "dd"}
# Parts of a line that are separated, but are no cells.
APART_CLASSES: Final = {"state", "opt", "note"}


class Reader(HTMLParser):
    """Collects the words within ``<main>``: a line for each row, with bars between its cells."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[list[str]] = [[]]
        # The open elements, each with whether its words are read.
        self._around: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a line or a cell; a picture is read by its label."""
        names = dict(attrs)
        classes = set((names.get("class") or "").split())
        read = self._read
        if read and tag == "svg" and names.get("role") == "img":
            self._lines += [[f"[picture: {names['aria-label']}]"], []]
        if tag in VOID:
            return
        unread = tag in UNREAD or classes & UNREAD_CLASSES or "hidden" in names
        self._around.append((tag, (tag == "main" or read) and not unread))
        if tag in LINES:
            heading = {"h1": "# ", "h2": "## "}.get(tag, "")
            self._lines.append([heading])
        elif tag in CELLS or classes & APART_CLASSES:
            self._lines[-1].append(" | ")
        elif tag == "sub" and read:
            self._lines[-1].append("_")

    def handle_endtag(self, tag: str) -> None:
        """End an element; text after a block begins a new line."""
        if tag in VOID:
            return
        assert self._around.pop()[0] == tag
        if tag in LINES - {"dt"}:
            self._lines.append([])

    def handle_data(self, data: str) -> None:
        """Add words, if the current element is read."""
        if self._read:
            self._lines[-1].append(data)

    @property
    def _read(self) -> bool:
        return bool(self._around) and self._around[-1][1]

    def text(self) -> str:
        """Return the lines that have words."""
        lines = [" ".join("".join(parts).split()) for parts in self._lines]
        said = [line.removeprefix("| ") for line in lines if line.strip(" |#")]
        return "\n".join(f"\n{line}" if line.startswith("#") else line for line in said) + "\n"


def session_view(report: Report) -> SessionView:
    """Return the session of a report, with a fixed time of arrival and a fixed id."""
    sizes, verdict = report.sizes, report.has_verdict
    row = SessionRow(
        id=uuid.UUID(int=7),
        job="pretraining",
        attempt=1,
        number=7,
        state=SessionState.ANALYZED if verdict else SessionState.NO_VERDICT,
        received_at=RECEIVED,
        state_changed_at=RECEIVED + timedelta(seconds=3),
        dp=sizes.dp,
        pp=sizes.pp,
        tp=sizes.tp,
        cp=sizes.cp,
        vpp=sizes.vpp,
        world=sizes.world,
        trace_format="ndjson",
        body_bytes=2_500_000,
        operations=report.coverage.operations,
        steps=len(report.steps.analyzed),
        reason_code=None,
        reason=None,
        verdict=verdict_of(report, {}),
    )
    return SessionView(
        row=row,
        meta={},
        reason_detail=None,
        work=None,
        intake=None,
        has_report=True,
        has_heatmaps=True,
        now=RECEIVED + timedelta(minutes=5),
    )


def page_text(report: Report) -> str:
    """Return the words of a session's page, rendered by the program's templates."""
    view = session_view(report)
    page = session_page(
        view,
        Around((view.row,), None),
        report,
        report_view(report),
        onset=None,
        max_attempts=3,
        incidents=(),
    )
    pages = Pages(installed_assets(), navigation, UPLOADED_BYTES)
    response = pages.render(
        "sessions/page.html",
        Navigation(0, ()),
        page=page,
        now=page.now,
        applied=applied_fixes(Remedies((), {}, None), "", page.now),
        exact=False,
        whole_job=None,
        whole_job_lacking="",
    )
    reader = Reader()
    reader.feed(bytes(response.body).decode())
    return reader.text()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_page_of_a_scenario_says_what_its_file_says(scenario: str) -> None:
    path = FOLDER / f"{scenario}.txt"
    text = page_text(reports.scenario(scenario))
    if os.environ.get(WRITE) == "1":
        assert not os.environ.get("CI"), f"{WRITE} is for people: CI compares"
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"where this is meant, run: {COMMAND}"


def test_every_file_belongs_to_a_scenario() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(SCENARIOS)
