from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from app.analysis.report.coverage import MadeAdaptation
from app.analysis.report.document import Report
from app.cli.analyze import show
from app.dashboard.session.tables import coverage_rows
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
    strong = replace(report.headline, slowdown=1.1 * report.slowdown)
    alike = replace(report.headline, slowdown=1.01 * report.slowdown)

    assert "against the job without its causes" in shown(replace(report, headline=strong))
    assert "against the job without its causes" not in shown(replace(report, headline=alike))
