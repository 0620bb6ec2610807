from __future__ import annotations

import pytest

from app.web.figures import nice_tick, stretch_starts


@pytest.mark.parametrize(
    ("steps", "starts"),
    [
        ([], []),
        ([5], []),
        ([1, 2, 3, 4], []),
        ([16, 21, 27, 404, 408, 413, 802], [3, 6]),
    ],
)
def test_recorded_stretches_part_where_steps_jump(steps: list[int], starts: list[int]) -> None:
    assert stretch_starts(steps) == starts


@pytest.mark.parametrize(
    ("span", "wanted", "tick"), [(1.0, 3, 0.5), (0.4, 3, 0.2), (0.1, 3, 0.05), (9.0, 3, 5.0)]
)
def test_ticks_are_round(span: float, wanted: int, tick: float) -> None:
    assert nice_tick(span, wanted) == pytest.approx(tick)
