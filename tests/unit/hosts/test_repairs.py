"""The outcome of repairs."""

from __future__ import annotations

import pytest

from app.hosts.repairs import AROUND, Level, Outcome, judge

SLOW = Level(1.4, slow=True)
QUICK = Level(1.0, slow=False)


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ([SLOW], [QUICK, QUICK], Outcome.HELPED),
        ([SLOW, QUICK], [QUICK] * 5, Outcome.HELPED),
        ([SLOW], [QUICK, SLOW], Outcome.NO_HELP),
        ([QUICK], [QUICK, QUICK], Outcome.NO_CHANGE),
        ([], [QUICK, QUICK], Outcome.NO_CHANGE),
        ([QUICK], [SLOW, QUICK], Outcome.WORSE),
        ([SLOW], [QUICK], Outcome.OPEN),
        ([SLOW], [], Outcome.OPEN),
    ],
)
def test_a_repair_helped_if_the_slowness_is_gone(
    before: list[Level], after: list[Level], outcome: Outcome
) -> None:
    assert judge(before, after).outcome is outcome


def test_only_the_nearest_sessions_count() -> None:
    found = judge([QUICK] * AROUND + [SLOW], [QUICK] * AROUND + [SLOW])
    assert found.outcome is Outcome.NO_CHANGE
    assert (found.sessions_before, found.sessions_after) == (AROUND, AROUND)


def test_levels_are_medians_and_missing_where_no_session_is() -> None:
    found = judge([], [Level(1.0, slow=False), Level(1.2, slow=False)])
    assert found.before is None
    assert found.after == pytest.approx(1.1)
