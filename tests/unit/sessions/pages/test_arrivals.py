"""Arrivals on a session's page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.arrivals.collective_matching import Parting
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.metadata import Unmapped, not_replayed, note_unmapped
from app.analysis.trace.model import Sizes
from app.sessions.pages.arrivals import (
    MOST_ROWS,
    arrivals_csv,
    arrivals_map,
    arrivals_view,
    breakdown_csv,
    breakdown_view,
    ranks_csv,
    unsaid_csv,
    unsaid_rows,
)

SLOW = 2
PAGE = "/sessions/7"


def _report(dp: int = 4, steps: int = 3) -> Report:
    job = JobModel(Sizes(dp=dp, pp=1), microbatches=4, steps=steps, buckets=3)
    return analyze(synthesize(job, [SlowWorker((SLOW, 0), 1.6)], seed=1).trace).report


@pytest.fixture(scope="module")
def report() -> Report:
    return _report()


def test_the_map_has_a_row_for_each_rank_and_a_column_for_each_collective(report: Report) -> None:
    assert report.arrivals is not None
    drawn = arrivals_map(report.arrivals)
    assert (drawn.rows, len(drawn.columns)) == (4, 6)
    assert [label.text for label in drawn.row_labels] == ["0", "1", "2", "3"]
    assert drawn.legend == "AG all-gather, RS reduce-scatter"
    # Only the slow rank has the darkest color, at the first exchange of gradients.
    darkest = drawn.paths[-1]
    place = [column.key for column in drawn.columns].index("0.3")
    assert darkest[1] == f"M{place} {SLOW}h1v1h-1z"
    assert sum(path.count("M") for _, path in drawn.paths) == 4 * 6


def test_of_many_ranks_a_row_has_the_latest() -> None:
    found = _report(dp=100).arrivals
    assert found is not None
    drawn = arrivals_map(found)
    assert drawn.rows == 50 <= MOST_ROWS
    assert "a row has the latest of 2 ranks" in drawn.about
    assert f" {SLOW // 2}h1v1" in drawn.paths[-1][1]


def test_a_column_opens_its_collective(report: Report) -> None:
    view = arrivals_view(report, PAGE, "0.3")
    assert view is not None
    opened = view.opened
    assert opened is not None
    assert opened.title.startswith(f"RS 0: rank {SLOW} last, ")
    assert len(opened.table.lines) == 4
    rank, *_, waits = opened.table.lines[0].cells
    assert (rank.content, waits.content) == (SLOW, "0\N{NO-BREAK SPACE}ms")


@pytest.mark.parametrize("asked", ["", "0", "9.0", "0.99", "-1.0", "a.b", "0.1e9", "0.²"])
def test_an_unknown_collective_opens_nothing(report: Report, asked: str) -> None:
    view = arrivals_view(report, PAGE, asked)
    assert view is not None
    assert view.opened is None


def test_ranks_are_sorted_by_how_long_others_waited_for_them(report: Report) -> None:
    view = arrivals_view(report, PAGE, "")
    assert view is not None
    assert view.title == f"Rank {SLOW} comes last at 1 of 6 collectives of a step"
    assert view.waiting.startswith("3 ranks wait ")
    assert view.rows[0].rank == SLOW
    assert "?collective=0.3#collective" in view.collectives.lines[0].drawn


def test_a_rank_is_shown_next_to_its_peers(report: Report) -> None:
    view = breakdown_view(report, PAGE)
    assert view is not None
    assert view.title.startswith(f"Rank {SLOW} computes ")
    (slow, *parts), (peers, *usual) = ([cell.content for cell in line.cells]
                                       for line in view.table.lines)  # fmt: skip
    assert (slow, peers) == (f"Rank {SLOW}", "Median of 3")
    assert float(str(parts[0])) > 1.4 * float(str(usual[0]))
    assert float(str(parts[1])) < float(str(usual[1]))


def test_older_reports_have_neither(report: Report) -> None:
    older = replace(report, arrivals=None, breakdown=None)
    assert arrivals_view(older, PAGE, "") is None
    assert breakdown_view(older, PAGE) is None
    assert list(arrivals_csv(older).rows) == []
    assert list(ranks_csv(older).rows) == []
    assert list(breakdown_csv(older).rows) == []


def test_the_place_where_ranks_diverge_is_named(report: Report) -> None:
    assert report.arrivals is not None
    parting = Parting("grads-reduce-scatter", 7, 1, 2, 3)
    view = arrivals_view(
        replace(report, arrivals=replace(report.arrivals, partings=(parting,))), PAGE, ""
    )
    assert view is not None
    assert view.parted.startswith("Rank 1 recorded 2 grads-reduce-scatter in step 7, others 3")


def test_what_the_recording_cannot_say_has_its_setting() -> None:
    job = JobModel(Sizes(dp=3, pp=1), microbatches=4, steps=3)
    trace = synthesize(job, seed=1).trace
    meta = note_unmapped(trace.meta, [Unmapped("operators without a name", 3, "with_stack=True")])
    found = analyze(replace(trace, meta=not_replayed(meta, "as is"))).report
    rows = unsaid_rows(found)
    assert [(row.label, row.value) for row in rows] == [
        ("The slowdown and its causes", "labels of microbatches"),
        ("Operators without a name", "with_stack=True"),
        ("Interval of the slowdown", "active=5 steps or more"),
    ]
    assert list(unsaid_csv(found).rows) == [(row.label, row.value) for row in rows]


def test_files_have_every_rank_and_collective(report: Report) -> None:
    assert len(list(arrivals_csv(report).rows)) == 4 * 6
    assert len(list(ranks_csv(report).rows)) == 4
    text = breakdown_csv(report).text()
    assert text.startswith("rank,host,step_s,computing_s,communication_s,data_s,idle_s\n0,")
