"""Words of comparisons: what a test cannot tell is not called chance."""

from __future__ import annotations

import pytest

from app.dashboard.compare.words import chance
from app.services.compare.step_times import difference


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        # However far apart they are, seven sessions give no p below 0.057.
        ([5.0, 5.1, 5.2, 5.3], [6.5, 6.6, 6.7], "Cannot say"),
        ([5.0, 5.1, 5.2, 5.3], [6.5, 6.6, 6.7, 6.8], "No, p = 0.029"),
        ([5.0, 6.1, 5.2, 6.3], [5.1, 6.2, 5.3, 6.0], "Likely, p = 1.000"),
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
