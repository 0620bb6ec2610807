"""Published traces with randomly removed operations: the slowdown hardly changes."""

from __future__ import annotations

import pytest

from app.analysis.report.build import analyze
from tests.factories import select
from tests.golden.conftest import Published
from tests.lossy import losing


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.05])
def test_the_slowdown_stays_within_one_percent(
    published: Published,
    share: float,
    renumbered: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    lossy = losing(published.trace, share, renumbered=renumbered, seed=3)
    report = analyze(lossy).report
    assert report.slowdown == pytest.approx(published.report.slowdown, rel=0.01)
    assert report.steps == published.report.steps
    lost = len(published.trace) - len(lossy)
    # garbage collections, one a stage, are not re-created
    assert 0.95 * lost < report.coverage.recreated.operations <= lost


@pytest.mark.parametrize(
    "absent", ["forward-send", "forward-recv", "backward-send", "backward-recv"]
)
def test_the_slowdown_is_unchanged_when_one_side_of_transfers_is_not_recorded(
    published: Published, absent: str
) -> None:
    trace = published.trace
    report = analyze(select(trace, trace.op != trace.op_names.index(absent))).report
    assert report.slowdown == pytest.approx(published.report.slowdown, rel=2e-3)
    causes = [cause.cause for cause in report.causes]
    assert causes == [cause.cause for cause in published.report.causes]


def test_clean_recordings_are_not_repaired(published: Published) -> None:
    assert published.report.coverage.recreated.operations == 0
