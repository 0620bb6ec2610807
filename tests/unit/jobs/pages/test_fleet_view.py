from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.diagnosis.locations import Where
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.session_verdict import BlamedGpu, SessionVerdict, Slowdown, verdict_of
from app.jobs.current import JobStatus
from app.jobs.fleet import PAGE, SILENT_PAGE, FleetView, Group
from app.jobs.pages.fleet import FleetPage, fleet_page
from app.jobs.pages.job import job_heading
from app.jobs.pages.query import FleetQuery
from app.jobs.pages.tables import SessionLine, job_line, session_columns, session_row
from app.platform.database.states import SessionState
from app.sessions.read import SessionRow
from app.web.format import rough_percent
from app.web.lists import Page
from app.web.parts import sparkline
from app.web.time_ranges import DAY, range_of
from tests.support.reports import slow_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)
NBSP = "\N{NO-BREAK SPACE}"


def verdict(slowdown: float, kind: HeadlineKind = HeadlineKind.CAUSES) -> SessionVerdict:
    """Return the verdict on a session whose worker (0, 0) is slow."""
    found = verdict_of(slow_worker(), {})
    cause = replace(
        found.causes[0],
        contribution=1.0,
        place=Where(workers=((0, 0),)),
        host="node-017",
        gpus=(BlamedGpu(0, "node-017", "5"),),
    )
    ci95 = (slowdown - 0.004, slowdown + 0.004)
    return replace(
        found,
        sentence="slow",
        level="slow" if slowdown >= STRAGGLING else "ok",
        discrepancy=0.007,
        headline=Slowdown(slowdown, ci95, 18.0, kind),
        published=Slowdown(slowdown, ci95, 18.0, HeadlineKind.PUBLISHED),
        causes=(cause,),
    )


def test_a_line_says_what_is_lost_to_stragglers_between_steps_and_together() -> None:
    found = verdict(1.2)
    assert found.shares is not None
    lost = replace(found.shares, waiting=0.2, between_steps_above=0.28, slow_together=0.061)
    told = session(1, 1.2, verdict=replace(found, shares=lost, lost_between=None))
    line = session_row("job", told)

    assert line.between == f"28{NBSP}%"
    assert line.together == f"6.1{NBSP}%"
    assert line.stragglers == rough_percent(lost.stragglers)
    columns = {column.label: column for column in session_columns(NOW)}
    assert columns["Between steps"].cell(line) == line.between
    older = session_row("job", session(1, 1.2, verdict=replace(found, shares=None)))
    assert (older.stragglers, older.between, older.together) == ("", "", "")


def withheld(**changes: Any) -> SessionVerdict:  # noqa: ANN401 - fields differ
    """Return a verdict without numbers, because the replay is too far from the recording."""
    none = replace(verdict(1.3), headline=None, published=None, level="none", discrepancy=0.078)
    return replace(none, **changes)


def session(number: int = 1, slowdown: float | None = None, **changes: Any) -> SessionRow:  # noqa: ANN401 - columns differ
    values: dict[str, Any] = {
        "id": uuid.UUID(int=number),
        "job": "llm",
        "attempt": 1,
        "number": number,
        "state": SessionState.QUEUED if slowdown is None else SessionState.ANALYZED,
        "received_at": NOW - timedelta(minutes=number),
        "state_changed_at": NOW,
        "dp": 4,
        "pp": 4,
        "tp": 4,
        "cp": 1,
        "vpp": 1,
        "world": 64,
        "trace_format": "parquet",
        "body_bytes": 1,
        "operations": 100,
        "steps": 10,
        "reason_code": None,
        "reason": None,
        "verdict": None if slowdown is None else verdict(slowdown),
    }
    return SessionRow(**(values | changes))


def group(job: str, slowdown: float | None = None, **changes: Any) -> Group:  # noqa: ANN401 - fields differ
    """Return a group with a single job of 64 GPUs."""
    lost = 0.0 if slowdown is None else 64 * (1 - 1 / slowdown)
    values: dict[str, Any] = {
        "state": SessionState.QUEUED if slowdown is None else SessionState.ANALYZED,
        "slow": slowdown is not None and slowdown >= STRAGGLING,
        "verdict": slowdown is not None,
        "incident": None,
        "has_data": True,
        "finished": False,
        "jobs": 1,
        "filtered": 1,
        "matching": 1,
        "with_verdict": int(slowdown is not None),
        "gpus": 0 if slowdown is None else 64,
        "lost": lost,
        "wasted": lost,
        "between": 0.0,
        "together": 0.0,
        "most": lost,
        "job": job,
    }
    return Group(**(values | changes))


def page_of(
    groups: Sequence[Group] = (), rows: Sequence[JobStatus] = (), number: int = 1, **asked: str
) -> FleetPage:
    """Return the page of a fleet."""
    address = FleetQuery(**asked)
    heard = Page(rows, number, sum(one.matching for one in groups if one.has_data), PAGE)
    silent: Page[JobStatus] = Page((), 1, 0, SILENT_PAGE)
    view = FleetView(NOW, address.filtered, groups, ("ann", "bob"), heard, silent)
    return fleet_page(view, address, range_of(DAY, "", ""))


def line(*sessions: SessionRow, name: str = "llm", **changes: Any) -> SessionLine:  # noqa: ANN401 - fields differ
    """Return the row of a job with these sessions, oldest first."""
    through = [session for session in sessions if session.state not in SessionState.UNDERWAY]
    told = through[-1] if through else sessions[-1]
    status = JobStatus(name, sessions[-1], told, (), {}, None)
    return job_line(replace(status, **changes))


def test_an_empty_fleet_says_that_nothing_was_sent() -> None:
    page = page_of()
    assert page.heading.startswith("No job is connected yet")
    assert page.title == "Fleet: no job yet"


def test_the_heading_counts_what_all_jobs_cost_whichever_are_on_the_page() -> None:
    page = page_of([group("well", 1.01), group("ill", 2.0), group("new")])
    assert page.heading.replace(NBSP, " ") == (
        "Stragglers cost 32.6 GPU-hours each hour, 25 % of 128 GPUs; ill alone loses 98 % of them"
    )
    assert page.title.replace(NBSP, " ") == "Fleet: 1 of 3 jobs slow"
    assert [text for _, text in page.states] == ["1 slow", "1 waiting", "1 watching"]
    assert [choice.label for choice in page.bar.shows] == [
        "All 3",
        "Slow 1",
        "No verdict 1",
        "Archive",
    ]


def test_the_heading_blames_stragglers_only_for_what_they_cost() -> None:
    between = group("loads", 1.02, lost=32.0, between=32.0, together=0.5, most=32.0)
    assert page_of([group("ill", 2.0)]).lost_to == "", "the heading says it"
    page = page_of([group("ill", 2.0), between])
    assert page.heading.replace(NBSP, " ") == (
        "Jobs lose 64.0 GPU-hours each hour, 50 % of 128 GPUs; ill alone loses 50 % of them"
    )
    assert page.lost_to.replace(NBSP, " ") == (
        "By kind, GPU-hours each hour: 33.3 to stragglers (26 %), 32.0 between steps (25 %), "
        "0.5 as all workers compute slower (0.4 %)"
    )
    assert page_of([group("new")]).lost_to == ""


def test_jobs_are_listed_by_what_they_lose_time_to() -> None:
    losses = {one.value: one for one in page_of(q="x").bar.losses}
    assert losses["between"].url == "/?q=x&loss=between&sort=-between"
    page = page_of(q="x", loss="between", sort="-between")
    assert [one.value for one in page.bar.losses if one.chosen] == ["between"]
    assert {one.value: one for one in page.bar.losses}[""].url == "/?q=x"
    assert ("loss", "between") in page.bar.kept
    heading = next(one for one in page.jobs.headings if one.label == "Time lost")
    assert (heading.order, heading.url) == ("descending", "/?q=x&loss=between&sort=between")
    found = verdict(1.2)
    assert found.shares is not None
    lost = replace(found.shares, waiting=0.2, between_steps_above=0.28, slow_together=0.061)
    told = session(1, 1.2, verdict=replace(found, shares=lost, lost_between=None))
    jobs = [JobStatus("ill", told, told, (), {}, None)]
    at = [one.label for one in page.jobs.headings].index("Time lost")
    for loss, sort, share in (
        ("between", "", 0.28),
        ("", "together", 0.061),
        ("", "", lost.lost),
    ):
        [row] = page_of([group("ill", 1.2)], jobs, loss=loss, sort=sort).jobs.lines
        assert str(row.cells[at].content).endswith(rough_percent(share))


def test_lost_each_hour_is_the_largest_loss_and_s_is_named_where_that_is_of_steps() -> None:
    found = verdict(1.02, HeadlineKind.PUBLISHED)
    assert found.shares is not None
    none = replace(found.shares, between_steps_above=0.0, slow_together=0.0)
    between = replace(none, between_steps_above=0.28)
    for shares, share, by_s in ((none, 1 - 1 / 1.02, True), (between, 0.28, False)):
        told = replace(found, level="slow", shares=shares, lost_between=None)
        row = session_row("job", session(1, 1.02, verdict=told))
        assert row.lost_each_hour == pytest.approx(64 * share)
        assert row.cause_share.endswith("by S") is by_s


def test_pages_headings_and_filters_keep_what_the_address_asks_for() -> None:
    many = [group("ill", 2.0, jobs=240, filtered=160, matching=120)]
    page = page_of(
        many, number=2, q=" slow  worker", owner="ann", sort="-gpus", show="slow", labels="1"
    )
    kept = "q=slow+worker&show=slow&owner=ann"
    assert page.jobs.previous_url == f"/?{kept}&sort=-gpus&labels=1"
    assert page.jobs.next_url == f"/?{kept}&sort=-gpus&labels=1&page=3"
    orders = {heading.label: (heading.order, heading.url) for heading in page.jobs.headings}
    assert orders["Lost each hour"] == ("", f"/?{kept}&labels=1")
    assert orders["GPUs"] == ("descending", f"/?{kept}&sort=gpus&labels=1")
    assert orders["State"] == ("", f"/?{kept}&sort=state&labels=1")
    assert page.bar.kept == [("show", "slow"), ("sort", "-gpus"), ("labels", "1")]
    assert page.bar.cleared_url == "/?show=slow&sort=-gpus&labels=1"
    assert page.bar.shows[0].url == "/?q=slow+worker&owner=ann&sort=-gpus&labels=1"
    assert page.bar.shows[0].label == "All 160"
    assert page.bar.labels.url == f"/?{kept}&sort=-gpus"
    assert page.heading.replace(NBSP, " ").startswith(
        "Stragglers cost 32.0 GPU-hours each hour in 120 matching jobs, 50 % of 64 GPUs"
    )


def test_what_costs_most_each_hour_comes_first_unless_another_order_is_asked_for() -> None:
    orders = {heading.label: heading for heading in page_of().jobs.headings}
    assert orders["Lost each hour"].order == "descending"
    assert orders["Lost each hour"].url == "/?sort=lost"


def test_labels_are_printed_where_they_are_asked_for_and_lead_to_their_jobs() -> None:
    labels = {"owner": "ann", "team": "vision"}
    told = session(1, 2.0)
    jobs = [JobStatus("ill", told, told, (), labels, None)]
    name = {one.label: at for at, one in enumerate(page_of().jobs.headings)}["Job"]
    [plain] = page_of([group("ill", 2.0)], jobs).jobs.lines
    assert 'title="ill owner=ann team=vision"' in str(plain.cells[name].content)
    assert "chip" not in str(plain.cells[name].content)
    [printed] = page_of([group("ill", 2.0)], jobs, labels="1", label="team=vision").jobs.lines
    cell = str(printed.cells[name].content)
    assert 'href="/?label=owner%3Dann&amp;labels=1">owner=ann</a>' in cell
    assert 'aria-current="true">team=vision</a>' in cell


def test_a_filter_that_no_job_matches_says_so() -> None:
    page = page_of(
        [group("ill", 2.0, filtered=0, matching=0, with_verdict=0, lost=0.0)], q="nothing like it"
    )
    assert page.heading.replace(NBSP, " ") == "No job with data in the last 24 h matches"
    assert page.title == "Fleet: no job matches"


def test_invalid_filters_of_an_address_are_ignored() -> None:
    asked = FleetQuery(q="x\x00" * 300, show="fast", sort="; drop", page="-1", silent="x")
    assert asked.filtered.words == "x" * 200
    assert (asked.filtered.show, asked.sort, asked.number, asked.silent_number) == ("all", "", 1, 1)


def test_a_job_shows_its_owner_and_other_labels() -> None:
    row = line(session(1, 2.0), labels={"owner": "ann", "team": "vision", "importance": "high"})
    assert row.owner == "ann"
    assert row.labels == {"owner": "ann", "team": "vision", "importance": "high"}
    assert row.short_sizes == "4 × 4 × 4".replace(" ", NBSP)


def test_a_slow_job_says_why_and_where() -> None:
    row = line(session(1, 2.0))
    assert (row.cause, row.cause_share.replace(NBSP, " ")) == ("Slow worker", "100 %")
    assert row.where.replace(NBSP, " ") == "node-017, GPU 5"
    assert (row.state.word, row.kind) == ("Slow", "slow")


@pytest.mark.parametrize(
    ("at", "where"),
    [
        (BlamedGpu(35, "node-4", "3"), "node-4, GPU 3"),
        # The host of worker (0, 0) is unknown; that of the slowest worker is another.
        (BlamedGpu(0, None, None), "worker (0, 0), rank 0"),
        (BlamedGpu(80, "n10", "0", 8), "n10, 1 of 8 GPUs"),
    ],
    ids=["known", "not known", "one of several"],
)
def test_a_cause_is_placed_on_the_gpu_at_fault(at: BlamedGpu, where: str) -> None:
    told = verdict(2.0)
    told = replace(told, causes=(replace(told.causes[0], host=at.host, gpus=(at,)),))
    row = line(session(1, 2.0, verdict=told))
    assert row.where.replace(NBSP, " ") == where
    assert row.host == (at.host or "")


def test_the_slowdown_is_the_headline_with_s_next_to_it() -> None:
    told = replace(verdict(1.5), headline=verdict(1.8).headline)
    row = line(session(1, 1.5, verdict=told))
    assert (row.slowdown, row.slowdown_text, row.published) == (1.8, "1.80×", "1.50×")
    assert row.against == "against the job without its causes"


def test_where_no_cause_explains_it_the_slowdown_is_s_and_says_so() -> None:
    row = line(session(1, 1.5, verdict=verdict(1.5, HeadlineKind.PUBLISHED)))
    assert (row.slowdown_text, row.against) == ("1.50×", "published S: no cause explains it")
    assert row.cause_share.replace(NBSP, " ") == "100 %, by S"
    well = session(1, 1.01, verdict=verdict(1.01, HeadlineKind.PUBLISHED))
    assert line(well).cause_share == "no cause, by S"


def test_a_job_that_is_well_has_no_cause() -> None:
    row = line(session(1, 1.02))
    assert (row.cause, row.where, row.kind) == ("", "", "quiet")


def test_while_a_session_is_worked_on_the_one_before_speaks_for_the_job() -> None:
    row = line(session(1, 1.5), session(2, state=SessionState.ANALYZING))
    assert row.status == "analyzing"
    assert row.slowdown == 1.5
    assert row.session_url.endswith(str(uuid.UUID(int=2)))


def test_without_a_verdict_there_is_no_number() -> None:
    row = line(
        session(1, 1.5),
        session(2, None, state=SessionState.NO_VERDICT, verdict=withheld(causes=())),
    )
    assert (row.slowdown, row.slowdown_text, row.color) == (None, "none", "")
    assert row.cause.replace(NBSP, " ") == "replay 7.8 % off"


def test_without_a_verdict_a_known_cause_is_shown_nevertheless() -> None:
    row = line(session(2, state=SessionState.NO_VERDICT, verdict=withheld(), steps=20))
    assert (row.slowdown, row.cause, row.where) == (
        None,
        "Slow worker",
        "node-017, GPU 5",
    )
    assert row.cause_share.replace(NBSP, " ") == "replay 7.8 % off"
    assert row.kind == "none"


def test_a_reason_too_long_for_a_table_gives_way_to_its_code() -> None:
    failed = session(
        1, None, state=SessionState.FAILED, reason="x" * 100, reason_code="task.killed"
    )
    assert line(failed).cause == "task.killed"


def test_names_of_jobs_are_quoted_in_addresses() -> None:
    row = line(session(1, 1.2), name="a b?c")
    assert row.url == "/jobs/a%20b%3Fc"


def test_a_sparkline_has_one_range_marks_what_is_above_and_hatches_gaps() -> None:
    spark = sparkline([1.0, 1.9, None, None, 1.25])
    assert len(spark.lines) == 2
    assert len(spark.above) == 1
    assert len(spark.gaps) == 1, "neighboring gaps are one"
    assert spark.dot is not None
    assert spark.dot[2] == "var(--s-125)"
    assert sparkline([1.2, None]).dot is None
    assert "none has a verdict" in sparkline([None]).label


@pytest.mark.parametrize(
    ("changes", "heading"),
    [
        ({"slowdown": 1.31, "state": SessionState.ANALYZED}, "slow"),
        ({"state": SessionState.DISCARDED}, "The latest session was discarded"),
        ({"state": SessionState.ANALYZING}, "The first session is being analyzed"),
    ],
)
def test_a_job_says_what_is_known_of_it(changes: dict[str, Any], heading: str) -> None:
    assert job_heading(session(**changes)) == heading
