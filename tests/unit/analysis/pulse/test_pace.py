"""Statistics of step times: independent of batches, bounded, without stalls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.pulse.step_pace import Pace
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob

JOB = PulseJob.healthy(PulseDials(dp=4, steps=700), stream(1, "pace"))
ROWS = JOB.rows()


def test_batches_of_any_size_give_the_same() -> None:
    whole, cut = Pace(), Pace()
    whole.advance(ROWS)
    for part in np.array_split(np.arange(len(ROWS)), 97):
        cut.advance(ROWS.take(part))
    assert len(whole.steps) == 512
    np.testing.assert_array_equal(whole.steps, cut.steps)
    np.testing.assert_allclose(whole.step_ns, cut.step_ns)
    kept = Pace.from_bytes(cut.to_bytes())
    np.testing.assert_allclose(kept.step_ns, cut.step_ns, atol=1)
    assert kept.ranks() == 4
    assert len(Pace.from_bytes(b"rubbish").steps) == 0


def test_what_is_lost_is_counted_once_and_a_stall_is_none() -> None:
    slow = replace(ROWS, step_ns=np.where(ROWS.step >= 600, 2, 1) * 1_000_000_000)
    slow.step_ns[slow.step == 650] *= 50
    pace, lost_ns = Pace(), 0.0
    for part in np.array_split(np.arange(len(slow)), 50):
        lost_ns += pace.advance(slow.take(part)).lost_ns(600, 1e9)
    assert lost_ns == pytest.approx(100 * 4 * 1e9)
    assert pace.mean_ns(end=600) == pytest.approx(1e9)
    assert pace.mean_ns(600) == pytest.approx(2e9)
    assert pace.mean_ns(696) is None
