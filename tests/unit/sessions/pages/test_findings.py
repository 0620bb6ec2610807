from __future__ import annotations

import re
from dataclasses import replace

import pytest

from app.analysis.diagnosis.locations import Where
from app.analysis.replay.layout.dense import DroppedStep
from app.analysis.report.build import analyze
from app.analysis.report.document import Recommendation, Report
from app.analysis.synthesis.scenarios import SCENARIOS
from app.sessions.pages import findings
from tests.support.reports import changed

SLOW_CAUSE = "the cause named is slow worker, on worker (1, 2)"
NBSP = "\N{NO-BREAK SPACE}"


def plain(text: str) -> str:
    return text.replace(NBSP, " ")


def with_cause(report: Report, name: str, share: float = 1.0, where: Where | None = None) -> Report:
    """Return the report with a single cause, at a place or at none."""
    cause = replace(report.causes[0], cause=name, contribution=share, where=where or Where())
    return changed(report, causes=[cause])


def with_map(report: Report, exact: list[list[float]]) -> Report:
    """Return the report with a map of workers, all of which its cause names."""
    everybody = tuple((dp, pp) for dp, row in enumerate(exact) for pp in range(len(row)))
    named = with_cause(report, "slow_worker", where=Where(workers=everybody))
    return changed(named, by_worker__exact=exact)


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
        (1.5, [1.4, 1.6], "Every step is slow, 1.40× to 1.60×"),
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
        (
            0.97,
            f"Forward and backward rise together: r = 0.97, over 0.90; {SLOW_CAUSE}",
        ),
    ],
)
def test_the_correlation_is_held_against_the_bound(
    slow_worker: Report, pearson: float | None, title: str
) -> None:
    slow_worker = changed(slow_worker, fb_correlation__pearson=pearson)
    assert plain(findings.correlation_finding(slow_worker)) == title


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
    named = with_cause(slow_worker, "slow_worker", where=Where(workers=hundreds))
    report = changed(named, m_w__rem=0.94, m_w__workers=hundreds, m_s__rem=0.0, k50=1)
    title = plain(findings.recovery_finding(report))
    assert title == "1 worker would recover half of the lost time, 492 94 % of it"
    report = changed(report, k50=492)
    title = plain(findings.recovery_finding(report))
    assert title == "492 workers would recover 94 % of the lost time"


def test_a_step_that_loses_nothing_says_so() -> None:
    assert plain(findings.timeline_finding(7, 10.0, 9.95)) == "Step 7 took 10.0 s, its ideal time"


def test_workers_that_the_verdict_does_not_name_are_said_to_be_others(slow_worker: Report) -> None:
    report = with_cause(slow_worker, "sequence_length_imbalance")

    assert plain(findings.workers_finding(report)) == (
        "Worker (1, 2) computes slower than its peers, forward 2.00×, backward 2.00×; the cause "
        "named is sequence-length imbalance"
    )
    assert plain(findings.map_finding(report)).endswith(
        " of every step, whatever the reason; the cause named is sequence-length imbalance"
    )
    assert plain(findings.recovery_finding(report)).endswith(
        " if all they did were ideal; the cause named is sequence-length imbalance"
    )


def test_without_a_cause_no_worker_explains_the_slowdown(slow_worker: Report) -> None:
    title = plain(findings.map_finding(changed(slow_worker, causes=[])))

    assert title.endswith(" of every step, whatever the reason; no cause is named")


def test_a_stage_recovers_more_than_its_own_cause_explains(slow_worker: Report) -> None:
    report = changed(
        with_cause(slow_worker, "stage_imbalance", 0.14, Where(stage=3)),
        m_w__rem=0.1,
        m_s__rem=0.69,
    )

    assert plain(findings.recovery_finding(report)) == (
        "The last stage would recover 69 % of the lost time if all they did were ideal; the "
        "causes there explain 14 %"
    )
    report = changed(with_cause(report, "stage_imbalance", 0.6, Where(stage=3)))
    assert plain(findings.recovery_finding(report)) == (
        "The last stage would recover 69 % of the lost time"
    )


def test_a_cause_that_changes_over_the_steps_is_not_constant(slow_worker: Report) -> None:
    steps = {"headline__slowdown": 1.97, "slowdown": 1.97, "step_slowdown": [1.94, 1.99] * 6}
    assert findings.strip_finding(changed(slow_worker, **steps)).endswith("the cause is constant")

    report = changed(with_cause(slow_worker, "rotating"), **steps)
    assert findings.strip_finding(report) == "Every step is about equally slow"


def test_a_low_correlation_does_not_exclude_lengths_that_are_the_cause(
    slow_worker: Report,
) -> None:
    report = with_cause(slow_worker, "sequence_length_imbalance")
    title = findings.correlation_finding(changed(report, fb_correlation__pearson=0.8))

    assert "not the cause" not in title
    assert "r = 0.80, under 0.90" in title


_WORKER = re.compile(r"\((\d+), (\d+)\)")
_WHY = ("the cause named is", "no cause is named", "the causes there explain")
_TITLES = (
    findings.map_finding,
    findings.workers_finding,
    findings.strip_finding,
    findings.attribution_finding,
    findings.recovery_finding,
    findings.correlation_finding,
)


@pytest.mark.parametrize(
    "name",
    ["hot-device", "rotating", "garbage-collection", "network", "mixture", "memory-fragmentation"],
)
def test_no_title_names_another_worker_or_cause_than_the_verdict(name: str) -> None:
    report = analyze(SCENARIOS[name].synthesize(1).trace).report
    named = {worker for cause in report.causes for worker in cause.where.workers}
    stages = {cause.where.stage for cause in report.causes} | {pp for _, pp in named}
    causes = {cause.cause for cause in report.causes}
    for finding in _TITLES:
        title = plain(finding(report))
        explained = any(words in title for words in _WHY)
        workers = {(int(dp), int(pp)) for dp, pp in _WORKER.findall(title)}
        assert workers <= named or explained, title
        if "workers compute slower" in title:
            assert named or explained, title
        of_stage = {int(pp) for pp in re.findall(r"^Stage (\d+)", title)}
        if title.startswith("The last stage"):
            of_stage = {report.sizes.pp - 1}
        assert of_stage <= stages or explained, title
        if "cause is constant" in title:
            assert not causes & {"rotating", "thermal_throttling"}, title
        if "explains" in title:
            assert causes, title
        if "rise together" in title:
            assert "sequence_length_imbalance" in causes or explained, title
