"""Equations 1, 2 and 3: closed forms, brute force, and monotonicity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.mitigation.tensor.group import Affine, Communication, Costs
from app.analysis.mitigation.tensor.methods import migrating_ranks, pruning_ratios, resized_share
from tests.oracles.tensor_groups import migrating

TIMES = st.lists(st.floats(0.1, 10.0), min_size=2, max_size=8)
SECONDS = st.floats(0.0, 0.5)


def test_one_of_eight_ranks_eight_times_slower_sheds_three_quarters_by_the_mean() -> None:
    time_s = np.array([8.0, *[1.0] * 7])

    assert pruning_ratios(time_s, time_s, time_s.mean())[0] == pytest.approx(0.765625)
    assert pruning_ratios(time_s, time_s, time_s.min())[0] == pytest.approx(0.875)


@pytest.mark.parametrize(("ranks", "chi"), [(4, 8), (4, 2), (8, 4), (2, 3)])
def test_a_rank_comes_down_to_the_criterion(ranks: int, chi: float) -> None:
    time_s = np.array([chi, *[1.0] * (ranks - 1)])
    ratio = pruning_ratios(time_s, time_s, time_s.mean())

    assert ratio[0] == pytest.approx((chi - 1) * (ranks - 1) / (ranks * chi))
    assert time_s[0] * (1 - ratio[0]) == pytest.approx(time_s.mean())
    assert not ratio[1:].any()


def test_a_rank_that_is_slow_elsewhere_sheds_all_multiplications_at_most() -> None:
    time_s, matmul_s = np.array([8.0, 1.0]), np.array([2.0, 0.5])
    assert pruning_ratios(time_s, matmul_s, 1.0).tolist() == [1.0, 0.0]


@given(TIMES, st.floats(1.0, 3.0))
def test_a_slower_rank_sheds_no_less(times: list[float], factor: float) -> None:
    time_s = np.array(times)
    slower = time_s.copy()
    slower[0] *= factor

    criterion_s = float(time_s.min())
    before = pruning_ratios(time_s, time_s, criterion_s)
    after = pruning_ratios(slower, slower, criterion_s)
    assert after[0] >= before[0]
    assert after[1:].tolist() == before[1:].tolist()


def test_equation_2_balances_what_resizing_and_migration_add() -> None:
    costs = Costs(Communication(0.01, 1e-4), Affine(0.0, 3e-3), 0.02, Affine(0.0, 2e-3))
    beta = resized_share(500, 3, costs, column_s=1.0)

    migrated = (1 - beta) * 500
    resizing = costs.allocate_s + costs.extract(beta * 500)
    assert costs.compute is not None
    assert resizing == pytest.approx(costs.communicate(migrated) + costs.compute(migrated / 3))
    assert beta == pytest.approx((0.01 + 0.05 + 0.5 - 0.02) / (1.0 + 0.05 + 0.5))


@pytest.mark.parametrize(
    ("costs", "beta"),
    [
        pytest.param(Costs(), 1.0, id="resizing costs nothing"),
        pytest.param(Costs(allocate_s=10.0), 0.0, id="resizing costs more than all migration"),
        pytest.param(
            Costs(Communication(5.0, 0.0), allocate_s=0.1),
            1.0,
            id="migration costs more than all",
        ),
    ],
)
def test_equation_2_stays_between_nothing_and_all(costs: Costs, beta: float) -> None:
    assert resized_share(100, 7, costs, column_s=0.001) == pytest.approx(beta)


@given(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), st.integers(1, 15), st.floats(1.0, 2.0))
def test_dearer_communication_resizes_no_less(
    seconds: tuple[float, float, float, float], receivers: int, factor: float
) -> None:
    offset, slope, allocate, extract = seconds
    resizing = (None, allocate, Affine(0.0, extract))
    cheap = Costs(Communication(offset, slope), *resizing)
    dear = Costs(Communication(offset * factor, slope * factor), *resizing)

    less = resized_share(64, receivers, cheap, column_s=0.01)
    assert resized_share(64, receivers, dear, column_s=0.01) >= less - 1e-9


@given(TIMES, SECONDS, st.floats(0.0, 0.01), SECONDS, st.integers(1, 4096))
def test_equation_3_is_the_largest_x_that_pays(
    times: list[float], offset: float, slope: float, further: float, columns: int
) -> None:
    time_s = np.sort(times)[::-1]
    communicate = Communication(offset, slope, further)

    found = migrating_ranks(time_s, np.full(len(times), float(columns)), communicate)
    assert found == migrating(time_s.tolist(), float(columns), communicate)


def test_equation_3_looks_beyond_the_first_x_that_does_not_pay() -> None:
    """Each receiver gets an eighth of the volume: more senders, fewer and slower receivers."""
    time_s = np.array([3.0, 2.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert migrating_ranks(time_s, np.full(8, 1000.0), Communication(0.0, 0.0)) == 2
    assert migrating_ranks(time_s, np.full(8, 1000.0), Communication(1.95, 0.0)) == 0


def test_equation_3_counts_what_each_further_sender_costs() -> None:
    time_s, workload = np.array([3.0, 2.9, *[1.0] * 6]), np.full(8, 1000.0)
    assert migrating_ranks(time_s, workload, Communication(1.0, 0.0)) == 2
    assert migrating_ranks(time_s, workload, Communication(1.0, 0.0, 1.0)) == 1


def test_no_rank_migrates_where_none_is_slow() -> None:
    assert migrating_ranks(np.ones(4), np.full(4, 10.0), Communication(0.0, 0.0)) == 0
