"""Bytes that a migration moves."""

from __future__ import annotations

import pytest

from app.analysis.mitigation.tensor.traffic import Kind, Sizes


def sizes(kind: Kind) -> Sizes:
    return Sizes(kind, width=10, tokens=100, layers=3, value_bytes=2, state_bytes=16)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        # W1 row, bias, W2 column; and the gradients back
        pytest.param(Kind.HIDDEN_UNIT, 2 * 21 * 4, id="hidden units: parameters alone"),
        # dY and Y whole, whatever the columns
        pytest.param(Kind.COLUMN, 2 * 100 * 10 + 2 * 10 * 4, id="columns: with dY and Y"),
        pytest.param(Kind.ROW, 2 * (10 + 100) * 4, id="rows: with X and dX"),
    ],
)
def test_a_step_sends_what_the_kind_needs(kind: Kind, numbers: int) -> None:
    assert sizes(kind).step_bytes(4) == 3 * 2 * numbers
    assert sizes(kind).step_bytes(0) == 0


def test_moving_for_good_sends_parameters_with_their_optimizer_state() -> None:
    assert sizes(Kind.HIDDEN_UNIT).once_bytes(4) == 3 * 16 * 21 * 4
    assert [kind for kind in Kind if sizes(kind).moves_for_good] == [Kind.HIDDEN_UNIT]
