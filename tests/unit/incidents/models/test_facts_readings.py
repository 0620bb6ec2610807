"""The number of a session that a condition compares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.session_verdict import Slowdown
from app.incidents.models.facts import Facts, Level, read_history
from app.incidents.models.rules import Threshold
from tests.unit.incidents.builders import SHARES, session, slow_rule

# Slow by the headline, but not by S.
STRONGER = replace(session(1, 1.04), headline=Slowdown(1.3, None, 9.0, HeadlineKind.CAUSES))


# Without a verdict on S, but with a budget.
STALLED = replace(session(1, None), shares=SHARES)


@pytest.mark.parametrize(
    ("condition", "facts", "level", "value"),
    [
        (Threshold("headline", 1.1, 1.05), STRONGER, Level.BREACH, 1.3),
        (Threshold("slowdown", 1.1, 1.05), STRONGER, Level.CLEAR, 1.04),
        (Threshold("headline", 1.1, 1.05), session(1, None), Level.UNKNOWN, None),
        (Threshold("budget.between_steps", 0.1, 0.05), STALLED, Level.BREACH, 0.28),
        (Threshold("budget.slow_together", 0.1, 0.05), STALLED, Level.BETWEEN, 0.07),
        (Threshold("budget.between_steps", 0.1, 0.05), session(1), Level.UNKNOWN, None),
    ],
    ids=["the headline", "S", "no verdict", "between steps", "together", "an older session"],
)
def test_a_slowdown_is_read_as_its_kind_says(
    condition: Threshold, facts: Facts, level: Level, value: float | None
) -> None:
    (reading,) = read_history(slow_rule(condition=condition), [facts], {})
    assert (reading.level, reading.value) == (level, value)
