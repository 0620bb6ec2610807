from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.replay.layout.dense import DroppedStep
from app.analysis.report.document import Recommendation, Report
from app.sessions.pages import findings
from tests.support.reports import changed

NBSP = "\N{NO-BREAK SPACE}"


def plain(text: str) -> str:
    return text.replace(NBSP, " ")


def with_map(report: Report, exact: list[list[float]]) -> Report:
    return changed(report, by_worker__exact=exact)


@pytest.mark.parametrize(
    ("exact", "title"),
    [
        (
            [[1.979, 1.0], [1.015, 1.0]],
            "Worker (0, 0) alone explains the slowdown; no other costs 2 %",
        ),
        ([[1.005, 1.0], [1.0, 1.0]], "No worker alone costs 1 % of a step"),
        (
            [[1.256, 1.0], [1.2, 1.0], [1.0, 1.0]],
            "Workers (0, 0) and (1, 0) alone cost 20 % and 17 % of every step; no other costs 1 %",
        ),
        (
            [[1.0, 1.2], [1.0, 1.2], [1.0, 1.2], [1.0, 1.19]],
            "Stage 1 stands out: its workers alone cost 16 % to 17 % of a step",
        ),
        (
            [[1.2, 1.2, 1.2, 1.2], [1.0, 1.0, 1.0, 1.0]],
            "DP rank 0 stands out: its workers alone cost 17 % of a step",
        ),
        (
            [[1.2, 1.2], [1.2, 1.2]],
            "No one place stands out: 4 workers alone cost 17 % of a step",
        ),
        ([[1.5]], "Worker (0, 0) alone explains the slowdown"),
        (
            [[1.1, 1.0]],
            "Worker (0, 0) alone costs 9.1 % of every step; no other costs 1 %",
        ),
    ],
)
def test_the_map_says_who_costs_how_much(
    slow_worker: Report, exact: list[list[float]], title: str
) -> None:
    assert plain(findings.map_finding(with_map(slow_worker, exact))) == title


def test_ties_go_to_the_lower_dp_rank_then_stage(slow_worker: Report) -> None:
    report = with_map(slow_worker, [[1.0, 1.3], [1.3, 1.0]])
    assert report.ranked_workers()[:2] == [(1.3, 0, 1), (1.3, 1, 0)]


@pytest.mark.parametrize(
    ("total", "slowdowns", "title"),
    [
        (1.97, [1.94, 1.99], "Every step is about equally slow: the cause is constant"),
        (1.5, [1.4, 1.6], "Every step is slow, 1.40× to 1.60×: the cause is constant"),
        (1.01, [1.0, 1.015], "No step is slow"),
        (1.2, [1.0, 1.0, 1.8], "1 of 3 steps exceed 1.40×; step 7 reaches 1.80×"),
    ],
)
def test_the_strip_says_whether_the_cause_comes_and_goes(
    slow_worker: Report, total: float, slowdowns: list[float], title: str
) -> None:
    steps = [5, 6, 7][: len(slowdowns)]
    report = changed(
        slow_worker,
        slowdown=total,
        headline__slowdown=total,
        step_slowdown=slowdowns,
        steps__analyzed=steps,
    )
    assert findings.strip_finding(report) == title


def test_the_best_fix_is_the_one_that_brings_most(slow_worker: Report) -> None:
    fixes = (
        Recommendation("even_stages", "Divide the layers", 8.0, 0.2, ""),
        Recommendation("replace_worker", "Replace worker (1, 2)", 5.0, 0.5, ""),
    )
    slow_worker = changed(slow_worker, recommendations=fixes)
    assert plain(findings.fix_finding(slow_worker)) == (
        "Best fix: replace worker (1, 2); steps 50 % shorter"
    )


def test_without_a_fix_the_title_says_so(slow_worker: Report) -> None:
    slow_worker = changed(slow_worker, recommendations=[])
    assert findings.fix_finding(slow_worker) == "No single change is known to help"
    slow_worker = changed(slow_worker, headline__slowdown=1.004)
    assert findings.fix_finding(slow_worker) == "Nothing to fix"


@pytest.mark.parametrize(
    ("causes", "title"),
    [
        ([], "The cause is not known"),
        ([("unknown", 0.8)], "The cause is not known"),
        ([("cosmic_rays", 0.6)], "Cosmic rays: explains 60 % of it"),
    ],
)
def test_the_causes_are_summed_up(
    slow_worker: Report, causes: list[tuple[str, float]], title: str
) -> None:
    found = [
        replace(slow_worker.causes[0], cause=name, contribution=share) for name, share in causes
    ]
    slow_worker = changed(slow_worker, causes=found)
    assert plain(findings.causes_finding(slow_worker)) == title


@pytest.mark.parametrize(
    ("pearson", "title"),
    [
        (None, "Sequence lengths: unknown"),
        (0.88, "Sequence lengths are not the cause: r = 0.88, under 0.90"),
        (0.97, "Forward and backward rise together: r = 0.97, over 0.90"),
    ],
)
def test_the_correlation_is_held_against_the_bound(
    slow_worker: Report, pearson: float | None, title: str
) -> None:
    slow_worker = changed(slow_worker, fb_correlation__pearson=pearson)
    assert findings.correlation_finding(slow_worker) == title


def test_left_out_steps_and_operations_are_named(slow_worker: Report) -> None:
    report = changed(
        slow_worker,
        coverage__unknown_op_types={"moe-all-to-all": 7},
        steps__dropped=[DroppedStep(3, "warm-up")],
    )
    assert plain(findings.coverage_finding(report)) == (
        "1 step left out and 1 unknown type of operation"
    )


def test_odd_steps_are_counted(slow_worker: Report) -> None:
    report = changed(slow_worker, steps__odd=[DroppedStep(0, "warm-up")])
    assert plain(findings.coverage_finding(report)) == "1 step unlike the others left out"


def test_what_was_lost_is_missing_though_it_was_made_anew(slow_worker: Report) -> None:
    slow_worker = changed(slow_worker, coverage__recreated__operations=30)
    assert plain(findings.coverage_finding(slow_worker)) == "30 lost operations re-created"


def test_sends_without_receives_are_said_to_be_left_out(slow_worker: Report) -> None:
    slow_worker = changed(slow_worker, coverage__unanswered={"forward-send": 7, "backward-send": 8})
    title = plain(findings.coverage_finding(slow_worker))
    assert title == "15 sends without receives left out"


@pytest.mark.parametrize(
    ("share", "said"), [(1.05, "all of"), (0.996, "all of"), (0.994, "99 % of"), (0.51, "51 % of")]
)
def test_no_set_is_shown_to_save_more_than_all(
    slow_worker: Report, share: float, said: str
) -> None:
    report = changed(slow_worker, m_w__rem=share, m_s__rem=0.0)
    title = plain(findings.recovery_finding(report))
    assert title == f"1 worker would recover {said} the lost time"


def test_one_worker_that_saves_half_is_named_instead_of_hundreds(slow_worker: Report) -> None:
    hundreds = tuple((0, rank) for rank in range(492))
    report = changed(slow_worker, m_w__rem=0.94, m_w__workers=hundreds, m_s__rem=0.0, k50=1)
    title = plain(findings.recovery_finding(report))
    assert title == "1 worker would recover half of the lost time, 492 94 % of it"
    report = changed(report, k50=492)
    title = plain(findings.recovery_finding(report))
    assert title == "492 workers would recover 94 % of the lost time"


def test_a_step_that_loses_nothing_says_so() -> None:
    assert plain(findings.timeline_finding(7, 10.0, 9.95)) == "Step 7 took 10.0 s, its ideal time"
