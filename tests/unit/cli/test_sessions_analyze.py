from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from app.analysis.diagnosis.headline import Headline
from app.analysis.replay.layout.dense import DroppedStep
from app.analysis.report.coverage import MadeAdaptation
from app.analysis.report.document import Report
from app.analysis.wording import gpu_time
from app.cli.session_text import show
from app.sessions.pages.tables import coverage_rows
from tests.support import reports

BLOCKING = MadeAdaptation(
    adaptation="blocking_transfers",
    sentence="Transfers block: launches follow them",
    where=("forward-send on stages 0 and 1",),
    confidence=1.0,
    discrepancy_before=0.076,
    discrepancy_after=0.006,
)


def shown(report: Report) -> str:
    text = io.StringIO()
    show(report, Console(file=text, width=200))
    return text.getvalue()


def test_adaptations_are_said_with_what_they_bring() -> None:
    report = reports.scenario("slow-worker")
    adapted = replace(report, fidelity=replace(report.fidelity, adaptations=(BLOCKING,)))

    assert "Transfers block" not in shown(report)
    (line,) = [line for line in shown(adapted).splitlines() if "Transfers block" in line]
    assert line.endswith("differs by 0.6\u00a0%, without by 7.6\u00a0%")
    (row,) = [row for row in coverage_rows(adapted) if "Transfers block" in row.label]
    assert (row.value, row.note) == ("7.6\u00a0% → 0.6\u00a0% off", *BLOCKING.where)


def test_the_headline_is_said_where_it_is_another_than_the_published_slowdown() -> None:
    report = reports.scenario("slow-worker")
    shown_s = replace(report.headline, ci95=report.slowdown_ci95, ci95_reason=None)
    strong = replace(shown_s, slowdown=1.1 * report.slowdown)
    alike = replace(shown_s, slowdown=1.01 * report.slowdown)

    def lines(headline: Headline) -> list[str]:
        return shown(replace(report, headline=headline)).splitlines()[2:4]

    slow, published = lines(strong)
    assert slow.startswith(f"Slowdown {strong.slowdown:.3f} (95 %: ")
    assert " against the job without its causes; " in slow
    assert published.startswith(f"Published S {report.slowdown:.3f} (95 %: ")
    assert published.endswith("): its ideal is a mean over all workers, stragglers included")
    assert lines(alike)[1] == published.partition("): ")[0] + ")"
    unsure = lines(replace(strong, ci95=None))[0]
    assert unsure.startswith(f"Slowdown {strong.slowdown:.3f} against the job")


def test_odd_steps_are_named_with_the_reason() -> None:
    report = reports.scenario("slow-worker")
    odd = (DroppedStep(11, "all ranks compute 6.0× as long as in other steps"),)
    with_odd = replace(report, steps=replace(report.steps, odd=odd))
    said = "Step 11 is left out: all ranks compute 6.0× as long as in other steps"
    assert said in shown(with_odd).splitlines()
    assert "is left out" not in shown(report)


def test_where_no_cause_is_named_the_slowdown_is_s_and_says_so() -> None:
    report = reports.scenario("healthy")
    line = shown(report).splitlines()[2]
    assert line.startswith(f"S {report.slowdown:.3f} (95 %: ")
    assert ") as published, no cause is named; " in line
    assert f"{gpu_time(report.gpu_hours_lost)} lost" in line


def test_where_the_time_goes_is_a_line_and_a_bar() -> None:
    report = reports.scenario("slow-worker")
    lines = shown(report).splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("Where the time goes: "))

    assert report.budget is not None
    waiting = round(100 * report.budget.shares.waiting)
    assert f"waiting for stragglers {waiting}\u00a0%" in lines[place]
    assert not lines[place + 1].strip()
    assert "Where the time goes" not in shown(replace(report, budget=None))
