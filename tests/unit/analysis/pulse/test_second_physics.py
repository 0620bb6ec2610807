"""The detection on pulses of another simulator: heavy tails, memory, heat, pipelines."""

from __future__ import annotations

import numpy as np
import pytest

from app.analysis.pulse.notices import NoticeKind
from tests.support.pulses.__main__ import notices_in
from tests.support.pulses.physics import Slow, draw_habits, pulse


def test_a_slow_rank_is_named_there_too() -> None:
    rng = np.random.default_rng([1, 1])
    habits = draw_habits(rng, 400, lengths=False)
    (notice,) = notices_in(pulse(habits, rng, Slow((3,), 250, 1.2)), habits.world)

    assert (notice.kind, notice.ranks) == (NoticeKind.SLOW_RANK, (3,))
    assert 250 <= notice.noticed_step < 265


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_noticed_in_healthy_jobs(seed: int) -> None:
    rng = np.random.default_rng([2, seed])
    habits = draw_habits(rng, 2000)

    assert notices_in(pulse(habits, rng), habits.world) == ()


def test_noise_that_remembers_for_twenty_steps_is_no_slow_rank() -> None:
    # Means of blocks of eight steps vary by a third of the computing's slow variation only.
    rng = np.random.default_rng([99117, 355])
    habits = draw_habits(rng, 5000)
    assert habits.memory > 0.9

    assert notices_in(pulse(habits, rng), habits.world) == ()
