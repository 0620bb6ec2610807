"""Cost functions, fitted to the samples of a pre-test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.mitigation.tensor.group import Affine, fit, fit_communication, fit_constant

SECONDS = st.floats(0.0, 1000.0)


def test_samples_on_a_line_give_the_line() -> None:
    line = fit([(0, 0.5), (10, 0.7), (20, 0.9)])
    assert line.fixed_s == pytest.approx(0.5)
    assert line.column_s == pytest.approx(0.02)


def test_table_1_of_the_paper_is_nearly_a_line() -> None:
    """Broadcast-reduce of one GPU: epochs grow from 373 s to 425, 451, 473 and 500 s."""
    samples = [(0.25, 52.0), (0.5, 78.0), (0.75, 100.0), (1.0, 127.0)]
    line = fit(samples)
    assert all(line(v) == pytest.approx(seconds, rel=0.03) for v, seconds in samples)


def test_no_columns_cost_nothing() -> None:
    assert Affine(1.0, 2.0)(0) == 0.0
    assert Affine(1.0, 2.0)(3) == 7.0


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        pytest.param([(10, 0.2)], Affine(0.0, 0.02), id="one sample: through the origin"),
        pytest.param([(0, 0.2)], Affine(0.2, 0.0), id="of no columns: an offset"),
        pytest.param([(1, 3.0), (2, 2.0), (3, 1.0)], Affine(2.0, 0.0), id="falling: constant"),
        pytest.param(
            [(1, 0.0), (2, 1.0), (3, 2.0)], Affine(0.0, 8 / 14), id="negative offset: none"
        ),
    ],
)
def test_neither_part_is_negative(samples: list[tuple[float, float]], line: Affine) -> None:
    found = fit(samples)
    assert found.fixed_s == pytest.approx(line.fixed_s)
    assert found.column_s == pytest.approx(line.column_s)


@given(st.lists(st.tuples(st.integers(0, 1000), SECONDS), min_size=1, max_size=6))
def test_no_other_line_without_negative_parts_is_nearer(
    samples: list[tuple[int, float]],
) -> None:
    def error(fixed: float, slope: float) -> float:
        return sum((fixed + slope * v - s) ** 2 for v, s in samples)

    line = fit(samples)
    assert line.fixed_s >= 0
    assert line.column_s >= 0
    own = error(line.fixed_s, line.column_s)
    for fixed in np.linspace(0, 1000, 9):
        for slope in (0.0, 0.01, 0.3, 1.0, 2.0, 10.0):
            assert own <= error(float(fixed), slope) + 1e-6 * (1 + own)


def test_allocation_is_the_median() -> None:
    assert fit_constant([(1, 0.3), (100, 0.1), (50, 0.2)]) == 0.2


def test_each_further_sender_adds_its_term_to_the_line_of_one_sender() -> None:
    single = [(100, 3.0, 1), (300, 5.0, 1)]
    found = fit_communication([*single, (400, 12.0, 4), (800, 16.0, 4)])
    assert (found.fixed_s, found.column_s, found.sender_s) == pytest.approx((2.0, 0.01, 2.0))
    assert fit_communication([*single, (400, 0.5, 4)]).sender_s == 0


def test_further_senders_are_free_without_samples_of_them() -> None:
    found = fit_communication([(100, 3.0, 1), (300, 5.0, 1)])
    assert (found(300, 1), found(300, 3), found(0, 3)) == pytest.approx((5.0, 5.0, 0.0))


def test_samples_of_several_senders_alone_are_met() -> None:
    found = fit_communication([(100, 9.0, 4), (300, 11.0, 4)])
    assert (found(100, 4), found(300, 4)) == pytest.approx((9.0, 11.0))
