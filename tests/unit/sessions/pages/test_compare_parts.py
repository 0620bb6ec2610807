"""Words of comparisons: an inconclusive test is not called chance."""

from __future__ import annotations

import pytest

from app.sessions.compare_steps import difference
from app.sessions.pages.compare_parts import chance


def test_of_too_few_sessions_the_steps_within_them_tell() -> None:
    sessions = difference([5.0, 5.1, 5.2], [6.5, 6.6])
    within = difference([5.0 + i / 100 for i in range(60)], [6.5 + i / 100 for i in range(40)])
    said, note, hint = chance(sessions, "session", within)
    assert said == "Change, p < 0.001"
    assert "3 and 2 sessions are too few; by the steps within them: " in note
    assert note.endswith("60 + 40 steps")
    assert hint.endswith("and sessions alike but for what changed")
    few = difference([5.0, 5.1], [6.5, 6.6])
    assert chance(sessions, "session", few) == chance(sessions, "session")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        # With seven sessions, p is at least 0.057 for any difference.
        ([5.0, 5.1, 5.2, 5.3], [6.5, 6.6, 6.7], "Cannot say"),
        ([5.0, 5.1, 5.2, 5.3], [6.5, 6.6, 6.7, 6.8], "Change, p = 0.029"),
        ([5.0, 6.1, 5.2, 6.3], [5.1, 6.2, 5.3, 6.0], "Chance, p = 1.000"),
        ([5.0, 5.1], [6.0, 6.1, 6.2], "Cannot say"),
    ],
)
def test_whether_a_difference_may_be_by_chance(
    before: list[float], after: list[float], said: str
) -> None:
    answer, note, _ = chance(difference(before, after), "session")
    assert answer == said
    if min(len(before), len(after)) > 2 and said == "Cannot say":
        assert "no less than p = 0.057" in note
