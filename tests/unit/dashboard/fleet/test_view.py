from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.diagnosis.places import Where
from app.analysis.report.summary import Summary, SummaryWorker, summarize
from app.dashboard.fleet.view import fleet_page
from app.dashboard.look.parts import SLOW, sparkline
from app.services.sessions.fleet import Fleet, JobSummary
from app.services.sessions.read import SessionRow
from tests.support.reports import slow_worker

NOW = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)
HEADLINE_COLUMNS = (
    "headline_slowdown",
    "headline_low",
    "headline_high",
    "headline_gpu_hours_lost",
    "headline_kind",
)
NBSP = "\N{NO-BREAK SPACE}"


def headline(slowdown: float) -> Summary:
    """Return the headline of a session whose worker (0, 0) is slow."""
    summary = summarize(slow_worker())
    cause = replace(
        summary.causes[0], contribution=1.0, where=Where(workers=((0, 0),)), host="node-017"
    )
    return replace(
        summary,
        sentence="slow",
        level="slow" if slowdown >= SLOW else "ok",
        worst=SummaryWorker(0, 0, 0, "node-017", slowdown),
        causes=(cause,),
    )


def session(number: int = 1, slowdown: float | None = None, **changes: Any) -> SessionRow:  # noqa: ANN401 - columns differ
    values: dict[str, Any] = {
        "id": uuid.UUID(int=number),
        "job": "llm",
        "attempt": 1,
        "number": number,
        "state": "queued" if slowdown is None else "analyzed",
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
        "slowdown": slowdown,
        "slowdown_low": None if slowdown is None else slowdown - 0.004,
        "slowdown_high": None if slowdown is None else slowdown + 0.004,
        "waste": None if slowdown is None else 1 - 1 / slowdown,
        "gpu_hours_lost": None if slowdown is None else 18.0,
        "discrepancy": None if slowdown is None else 0.007,
        "headline_slowdown": slowdown,
        "headline_low": None if slowdown is None else slowdown - 0.004,
        "headline_high": None if slowdown is None else slowdown + 0.004,
        "headline_gpu_hours_lost": None if slowdown is None else 18.0,
        "headline_kind": None if slowdown is None else HeadlineKind.CAUSES,
        "headline": None if slowdown is None else headline(slowdown),
    }
    return SessionRow(**(values | changes))


def fleet(**jobs: list[SessionRow]) -> Fleet:
    return Fleet(NOW, tuple(JobSummary(name, tuple(rows)) for name, rows in jobs.items()))


def test_an_empty_fleet_says_that_nobody_has_sent_anything() -> None:
    page = fleet_page(fleet())
    assert page.heading.startswith("No job is connected yet")
    assert page.title == "Fleet: no job yet"


def test_slow_jobs_come_first_and_the_heading_counts_what_they_cost() -> None:
    page = fleet_page(fleet(well=[session(1, 1.01)], ill=[session(2, 2.0)], new=[session(3)]))
    assert [row.name for row in page.jobs] == ["ill", "new", "well"]
    assert page.heading.replace(NBSP, " ") == (
        "Stragglers cost 32.6 GPU-hours each hour, 25 % of 128 GPUs; ill alone loses 98 % of them"
    )
    assert (page.slow, page.without) == (1, 1)


def test_a_slow_job_says_why_and_where() -> None:
    row = fleet_page(fleet(ill=[session(1, 2.0)])).jobs[0]
    assert (row.cause, row.cause_share.replace(NBSP, " ")) == ("Slow worker", "100 %")
    assert row.where.replace(NBSP, " ") == "node-017, worker (0, 0)"
    assert (row.state.word, row.kind) == ("Slow", "slow")


@pytest.mark.parametrize(
    ("host", "slowest", "where"),
    [
        ("node-017", (2, 1), "node-017, worker (0, 0)"),
        (None, (0, 0), "node-288, worker (0, 0)"),
        # nothing says where (0, 0) runs: the slowest worker's host is another's
        (None, (2, 1), "worker (0, 0)"),
    ],
    ids=["known", "stored by 0.1.0", "stored by 0.1.0, of another worker"],
)
def test_a_cause_is_placed_on_the_host_of_its_own_worker(
    host: str | None, slowest: tuple[int, int], where: str
) -> None:
    told = headline(2.0)
    told = replace(
        told,
        causes=(replace(told.causes[0], host=host),),
        worst=SummaryWorker(*slowest, 0, "node-288", 2.0),
    )
    row = fleet_page(fleet(ill=[session(1, 2.0, headline=told)])).jobs[0]
    assert row.where.replace(NBSP, " ") == where


def test_the_slowdown_is_the_headline_with_s_beside_it() -> None:
    row = fleet_page(fleet(ill=[session(1, 1.5, headline_slowdown=1.8)])).jobs[0]
    assert (row.slowdown, row.slowdown_text, row.published) == (1.8, "1.80×", "1.50×")
    assert row.against == "against the job without its causes"


def test_where_no_cause_explains_it_the_slowdown_is_s_and_says_so() -> None:
    row = fleet_page(fleet(ill=[session(1, 1.5, headline_kind=HeadlineKind.PUBLISHED)])).jobs[0]
    assert (row.slowdown_text, row.against) == ("1.50×", "published S: no cause explains it")
    assert row.cause_share.replace(NBSP, " ") == "100 %, by S"
    well = session(1, 1.01, headline_kind=HeadlineKind.PUBLISHED)
    assert fleet_page(fleet(well=[well])).jobs[0].cause_share == "none, by S"


def test_a_session_that_0_1_0_analyzed_shows_s_until_it_is_analyzed_again() -> None:
    before = session(1, 1.5, **dict.fromkeys(HEADLINE_COLUMNS))
    row = fleet_page(fleet(ill=[before])).jobs[0]
    assert (row.slowdown_text, row.interval, row.lost_each_hour_text) == (
        "1.50×",
        "1.496–1.504",
        "21.3",
    )
    assert row.against == "published S, until the session is analyzed again"


def test_a_job_that_is_well_has_no_cause() -> None:
    row = fleet_page(fleet(well=[session(1, 1.02)])).jobs[0]
    assert (row.cause, row.where, row.kind) == ("", "", "quiet")


def test_while_a_session_is_worked_on_the_one_before_speaks_for_the_job() -> None:
    row = fleet_page(fleet(llm=[session(1, 1.5), session(2, state="analyzing")])).jobs[0]
    assert row.status == "analyzing"
    assert row.slowdown == 1.5
    assert row.session_url.endswith(str(uuid.UUID(int=2)))


def test_without_a_verdict_there_is_no_number() -> None:
    row = fleet_page(
        fleet(llm=[session(1, 1.5), session(2, None, state="no_verdict", discrepancy=0.078)])
    ).jobs[0]
    assert (row.slowdown, row.slowdown_text, row.color) == (None, "none", "")
    assert row.cause.replace(NBSP, " ") == "replay differs by 7.8 %"


def test_a_reason_too_long_for_a_table_gives_way_to_its_code() -> None:
    failed = session(1, None, state="failed", reason="x" * 100, reason_code="task.killed")
    assert fleet_page(fleet(llm=[failed])).jobs[0].cause == "task.killed"


def test_names_of_jobs_are_quoted_in_addresses() -> None:
    row = fleet_page(fleet(**{"a b?c": [session(1, 1.2)]})).jobs[0]
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
