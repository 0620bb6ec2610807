from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.budget.split import Budget, Part
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.document import Report
from app.analysis.wording import hours
from app.sessions.pages.exports import EXPORTS
from app.sessions.pages.facts import verdict_facts
from app.sessions.pages.figures import budget_table
from tests.support import reports


def budget_of(report: Report) -> Budget:
    assert report.budget is not None
    return report.budget


def test_the_pieces_of_the_bar_follow_one_another_and_what_is_lost_comes_last() -> None:
    found = budget_table(reports.scenario("slow-worker"))

    assert found is not None
    ends = [row.begin + row.width for row in found.rows]
    assert [row.begin for row in found.rows] == pytest.approx([0.0, *ends[:-1]])
    assert ends[-1] == pytest.approx(100, abs=0.3)
    assert [row.lost for row in found.rows] == sorted(row.lost for row in found.rows)


def test_the_title_says_how_much_is_lost_and_most_by_what() -> None:
    report = reports.scenario("slow-worker")
    found = budget_table(report)

    assert found is not None
    lost = round(100 * budget_of(report).shares.lost)
    assert found.title == f"{lost}\u00a0% of the time is lost, most of it by waiting for stragglers"


def test_nothing_is_lost_only_where_the_budget_says_so() -> None:
    report = reports.scenario("slow-worker")
    budget = budget_of(report)
    none = dict.fromkeys((part.value for part in Part if part.lost), 0.0)
    healthy = replace(budget, shares=replace(budget.shares, **none))
    stalled = replace(healthy, shares=replace(healthy.shares, between_steps_above=0.28))

    said = [budget_table(replace(report, budget=one)) for one in (healthy, stalled)]
    assert [one is not None and "nothing is lost" in one.title for one in said] == [True, False]


def test_a_report_of_an_older_version_has_no_such_table() -> None:
    older = replace(reports.scenario("slow-worker"), budget=None)
    assert budget_table(older) is None
    assert EXPORTS["budget"](older).text().count("\n") == 1


def test_the_file_has_the_session_its_workers_and_its_steps() -> None:
    report = reports.scenario("slow-worker")
    lines = EXPORTS["budget"](report).text().splitlines()

    sizes = report.sizes
    assert len(lines) == 1 + 1 + sizes.dp * sizes.pp + len(report.steps.analyzed)
    for line in lines[1:]:
        assert sum(map(float, line.split(",")[4:])) == pytest.approx(1, abs=1e-9)


def test_the_loss_between_steps_is_shown_with_the_gpu_hours_lost() -> None:
    report = reports.scenario("slow-worker")
    budget = budget_of(report)

    def said(share: float) -> tuple[str, str]:
        shares = replace(budget.shares, between_steps_above=share)
        facts = verdict_facts(replace(report, budget=replace(budget, shares=shares)))
        return next(
            (str(fact.value), str(fact.note)) for fact in facts if fact.label == "GPU-hours lost"
        )

    lost = report.sizes.world * budget.wall_s / 3600 * 0.28
    assert said(0.28) == (
        hours(lost),
        f"between steps; {hours(report.lost_gpu_hours)} to its causes",
    )
    assert said(0.04)[1].endswith(" more each hour")
    shown = replace(report.headline, slowdown=1.02, kind=HeadlineKind.PUBLISHED)
    well = replace(report, headline=shown)
    shares = replace(budget.shares, slow_together=0.4)
    [fact] = [
        fact
        for fact in verdict_facts(replace(well, budget=replace(budget, shares=shares)))
        if fact.label == "GPU-hours lost"
    ]
    assert fact.value == hours(report.sizes.world * budget.wall_s / 3600 * 0.4)
    assert fact.note == f"as all compute slower; {hours(well.lost_gpu_hours)} to stragglers, by S"
