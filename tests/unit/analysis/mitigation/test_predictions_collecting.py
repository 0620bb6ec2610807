"""Planned garbage collections: their interval, and the length of the common pause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.finding import Cause, Stalls
from app.analysis.mitigation.fixes import Fix, PlannedCollections
from app.analysis.mitigation.predictions import plan_collections

STEPS, DP, PP = 20, 4, 2
NOW_S = 2.0


def session(pauses_s: np.ndarray) -> Cause:
    """Return the cause of a session with pauses, shape (steps, dp, pp), 0 for no pause."""
    return Cause(
        cause="garbage_collection",
        contribution=1.0,
        cost_s=0.4,
        confidence=0.9,
        evidence=(),
        figure=Stalls(
            by_step_s=tuple(pauses_s.sum(axis=(1, 2)).tolist()),
            by_worker=tuple(map(tuple, (pauses_s > 0).sum(axis=0).tolist())),
            longest_s=float(pauses_s.max()),
        ),
        saves=0.2,
    )


def drawn(share: float, growth: float = 1.0) -> np.ndarray:
    """Return pauses of 0.1 s at the start of a share of each worker's steps."""
    rng = np.random.default_rng(5)
    level = 0.1 * np.linspace(1, growth, STEPS)[:, None, None]
    size = (STEPS, DP, PP)
    return level * rng.normal(1, 0.1, size) * (rng.random(size) < share)


def planned(cause: Cause) -> tuple[Fix, PlannedCollections]:
    fix = plan_collections(cause, NOW_S)
    assert fix is not None
    assert fix.collections is not None
    return fix, fix.collections


@pytest.mark.parametrize(("share", "every"), [(0.5, 2), (0.2, 5), (1.0, 1)])
def test_all_collect_as_often_as_one_worker_pauses_now(share: float, every: int) -> None:
    _, plan = planned(session(drawn(share)))
    assert plan.every == pytest.approx(every, abs=1)


def test_all_pause_for_the_longest_of_them() -> None:
    pauses = drawn(1.0)
    _, plan = planned(session(pauses))
    together_s = pauses.max(axis=(1, 2)).mean()
    assert plan.pause_s == pytest.approx(together_s, rel=0.05)
    assert np.median(pauses) < plan.pause_s < pauses.max()


def test_pauses_that_grow_are_not_all_as_long_as_the_last() -> None:
    pauses = drawn(1.0, growth=3.0)
    _, plan = planned(session(pauses))
    assert plan.pause_s == pytest.approx(pauses.max(axis=(1, 2)).mean(), rel=0.1)


def test_the_pauses_are_paid_for() -> None:
    fix, plan = planned(session(drawn(0.5)))
    assert fix.gain == pytest.approx(0.2 - plan.pause_s / plan.every / NOW_S)
    assert fix.step_time_s == pytest.approx(NOW_S * (1 - fix.gain))
    assert f"PlannedGC(every={plan.every})" in fix.detail


def test_without_pauses_nothing_is_planned() -> None:
    assert plan_collections(session(np.zeros((STEPS, DP, PP))), NOW_S) is None
    assert plan_collections(replace(session(drawn(0.5)), figure=None), NOW_S) is None
