"""The compiled loops over rows against their twins of arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.analysis.trace.operations import groups, scanning
from tests.support.nightly import drawn

seeds = st.integers(min_value=0, max_value=2**32 - 1)


@pytest.mark.slow
@drawn(200)
@given(seeds, st.booleans(), st.integers(2, 60), st.integers(1, 4))
def test_neighbors_are_compared_alike(
    seed: int,
    ordered: bool,  # noqa: FBT001
    rows: int,
    differ: int,
) -> None:
    rng = np.random.default_rng(seed)

    def drawn_from(high: int, kind: type[np.signedinteger]) -> NDArray[np.signedinteger]:
        # few values: neighbors are often alike
        return np.sort(rng.integers(-1, high, rows)).astype(kind)

    columns: dict[str, NDArray[np.signedinteger]] = {
        name: drawn_from(differ, np.int32) for name in ("rank", "dp", "pp")
    }
    columns |= {"step": drawn_from(differ, np.int64), "op": drawn_from(differ, np.int16)}
    columns |= {"mb": drawn_from(20 * rows, np.int32), "start": drawn_from(20 * rows, np.int64)}
    if ordered:
        columns["order"] = drawn_from(20 * rows, np.int32)
    first = int(rng.integers(1, rows))

    found = groups.scan_neighbors(columns, first, rows)

    twin = groups.compare_neighbors(columns, first, rows)
    assert np.array_equal(found.heads, twin.heads)
    assert np.array_equal(found.stretches, twin.stretches)
    assert (found.moved, found.falls, found.microbatch_falls) == (
        twin.moved,
        twin.falls,
        twin.microbatch_falls,
    )


@pytest.mark.slow
@drawn(100)
@given(st.lists(st.floats(-86400, 86400, width=32), min_size=1))
def test_seconds_become_the_nearest_nanoseconds(seconds: list[float]) -> None:
    given_s = np.array(seconds, np.float32)
    given_s.flags.writeable = False
    out = np.empty(len(seconds), np.int64)

    scanning.to_nanoseconds(given_s, out)

    twin = np.rint(given_s.astype(np.float64) * 1e9).astype(np.int64)
    assert np.array_equal(out, twin)


@pytest.mark.slow
@drawn(100)
@given(st.lists(st.integers(-3, 9), min_size=1), st.integers(1, 9))
def test_indices_are_looked_up(given_indices: list[int], size: int) -> None:
    indices = np.array(given_indices, np.int32)
    indices.flags.writeable = False
    table = np.arange(size, dtype=np.int16) * 3
    out = np.empty(len(indices), np.int16)

    inside = scanning.look_up(indices, table, out)

    assert inside is bool(indices.min() >= 0 and indices.max() < size)
    assert not inside or np.array_equal(out, table[indices])


@pytest.mark.slow
@drawn(100)
@given(st.lists(st.integers(0, 3), min_size=1))
def test_codes_are_counted(codes: list[int]) -> None:
    counts = np.zeros(5, np.int64)

    scanning.count_codes(np.array(codes, np.int16), counts)

    assert np.array_equal(counts, np.bincount(codes, minlength=5))


def test_loops_are_compiled_for_what_warming_up_runs() -> None:
    scanning.warm_up()

    assert len(scanning.scan_neighbors.signatures) == 1  # type: ignore[attr-defined]
    assert len(scanning.to_nanoseconds.signatures) == 1  # type: ignore[attr-defined]
    assert len(scanning.look_up.signatures) == 1  # type: ignore[attr-defined]
    assert len(scanning.count_codes.signatures) == 1  # type: ignore[attr-defined]
