"""The bytes that a migration sends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.mitigation.tensor.prediction import (
    Kind,
    Place,
    Plans,
    Sizes,
    can_move,
    extra_bytes,
    places,
)


def sizes(kind: Kind) -> Sizes:
    return Sizes(kind, width=10, tokens=100, layers=3, value_bytes=2, state_bytes=16)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        # A row of W1, its bias and a column of W2, and their gradients.
        pytest.param(Kind.HIDDEN_UNIT, 2 * 21 * 4, id="hidden units: parameters alone"),
        # All of dY and Y, for any number of columns.
        pytest.param(Kind.COLUMN, 2 * 100 * 10 + 2 * 10 * 4, id="columns: with dY and Y"),
        pytest.param(Kind.ROW, 2 * (10 + 100) * 4, id="rows: with X and dX"),
    ],
)
def test_a_step_sends_what_the_kind_needs(kind: Kind, numbers: int) -> None:
    assert sizes(kind).step_bytes(4) == 3 * 2 * numbers
    assert sizes(kind).step_bytes(0) == 0


def test_each_kind_of_layers_counts_what_it_sends_of_its_own_units() -> None:
    columns = replace(sizes(Kind.COLUMN), units=32, share=2.0, plans=Plans.STEP)
    rows = replace(sizes(Kind.ROW), units=64, share=1.0, plans=Plans.STEP)
    heads = replace(sizes(Kind.HIDDEN_UNIT), units=8, plans=Plans.ONCE)
    kinds = (columns, rows, heads)
    # 16 of 64 columns are a quarter of each layer's units.
    assert extra_bytes(kinds, 16, 64, once=False) == columns.step_bytes(8) + rows.step_bytes(16)
    assert extra_bytes(kinds, 16, 64, once=True) == heads.once_bytes(2)
    assert places(kinds, once=False) == (Place(32, 2.0), Place(64, 1.0))
    assert places(kinds, once=True) == (Place(8, 1.0),)
    assert places((columns, replace(rows, units=None)), once=False) == ()
    assert can_move(kinds)
    assert not can_move(kinds[:2])
    assert can_move(())


def test_moving_for_good_sends_parameters_with_their_optimizer_state() -> None:
    assert sizes(Kind.HIDDEN_UNIT).once_bytes(4) == 3 * 16 * 21 * 4
    assert [kind for kind in Kind if sizes(kind).moves_for_good] == [Kind.HIDDEN_UNIT]
