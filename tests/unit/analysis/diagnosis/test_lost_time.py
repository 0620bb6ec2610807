from __future__ import annotations

import numpy as np
import pytest

from app.analysis.diagnosis.lost_time import confidence


@pytest.mark.parametrize(
    ("cost", "expected"), [([0.1] * 10, 0.94), ([0.0] * 10, 0.0), ([0.4] + [0.0] * 9, 0.55)]
)
def test_confidence_is_low_where_few_steps_carry_the_cost(
    cost: list[float], expected: float
) -> None:
    sure = confidence(np.array(cost), np.ones(len(cost)), lost_s=0.16)

    assert sure == pytest.approx(expected, abs=0.1)
