"""The compiled sweeps over all operations against their twins of arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.replay.engine import sweeps
from app.analysis.replay.engine.chosen import values_of
from tests.support.nightly import drawn

seeds = st.integers(min_value=0, max_value=2**32 - 1)


@pytest.mark.slow
@drawn(60)
@given(seeds)
def test_values_are_raised_to_later_ends(seed: int) -> None:
    rng = np.random.default_rng(seed)
    start, duration = rng.normal(0, 1e6, (2, 9, int(rng.integers(1, 40))))
    nodes = rng.permutation(9)[: int(rng.integers(0, 10))]
    latest = rng.normal(0, 1e6, start.shape[1])
    twin = np.maximum(latest, (start + duration)[nodes].max(axis=0, initial=-np.inf))

    before, first = latest.copy(), len(latest) // 2
    sweeps.raise_to_ends(start, duration, nodes, (first, len(latest)), latest)

    assert np.array_equal(latest, [*before[:first], *twin[first:]])
    sweeps.raise_to_ends(start, duration, nodes, (0, first), latest)
    assert np.array_equal(latest, twin)


@pytest.mark.slow
@drawn(60)
@given(seeds)
def test_groups_wait_for_their_last_member(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps, dp, fault = int(rng.integers(1, 4)), int(rng.integers(1, 9)), -1e6
    start, recorded = rng.normal(0, 1e6, (2, 9, steps * dp))
    order = rng.permutation(9)
    cuts = np.unique(rng.integers(1, 9, 3))
    groups = [members.tolist() for members in np.split(order, cuts)]
    across_dp = rng.random(len(groups)) < 0.5
    twin, waited = recorded.copy(), np.zeros((9, 1), dtype=bool)
    for members, across in zip(groups, across_dp.tolist(), strict=True):
        if len(members) == 1 and not across:
            continue
        waited[members] = True
        latest = start[members].max(axis=0).reshape(steps, dp)
        if across:
            latest[:] = latest.max(axis=1, keepdims=True)
        twin[members] = twin[members] + start[members] - latest.ravel()

    # What an operation of its own took is no transfer that could be at fault.
    faulty = waited & (twin < fault)

    given = (recorded, start, order, np.array([0, *cuts, 9]), across_dp, dp, fault)
    own = np.full_like(recorded, np.nan)
    half = len(groups) // 2
    clamped = sweeps.take_off_waiting(*given, (0, half), own)
    clamped += sweeps.take_off_waiting(*given, (half, len(groups)), own)

    assert clamped == np.count_nonzero(faulty)
    assert np.array_equal(own, np.where(faulty, 0.0, twin))


@pytest.mark.slow
@drawn(60)
@given(seeds)
def test_values_of_some_ranks_are_taken_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1e6, (9, *rng.integers(1, 9, 2)))
    nodes = rng.permutation(9)[: int(rng.integers(0, 10))]
    ranks = np.flatnonzero(rng.random(values.shape[2]) < 0.5)

    assert np.array_equal(values_of(values, nodes, ranks), values[nodes][:, :, ranks].ravel())


def test_loops_are_compiled_for_what_warming_up_runs() -> None:
    sweeps.warm_up()

    assert len(sweeps.raise_to_ends.signatures) == 1  # type: ignore[attr-defined]
    assert len(sweeps.take_off_waiting.signatures) == 1  # type: ignore[attr-defined]
    assert len(sweeps.take_ranks.signatures) == 1  # type: ignore[attr-defined]
