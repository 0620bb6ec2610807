"""The schedule that follows from the order and the numbers of a rank's operations."""

from __future__ import annotations

import pytest

from app.analysis.trace.recordings.profiler.unlabelled_pipeline import (
    GPIPE,
    INTERLEAVED,
    LOOPED,
    ONE_F_ONE_B,
    Computation,
    Schedule,
    StepOrder,
    implied_schedule,
)


def seen_of(order: str, sends: int, receives: int) -> StepOrder:
    return StepOrder(tuple(letter == "B" for letter in order), sends, receives)


@pytest.mark.parametrize(
    ("order", "stage", "sends", "receives", "name", "chunks"),
    [
        # `Schedule1F1B` with four stages and six microbatches
        ("FFFFBFBFBBBB", 0, 6, 6, ONE_F_ONE_B, 1),
        ("FFFBFBFBFBBB", 1, 12, 12, ONE_F_ONE_B, 1),
        ("FBFBFBFBFBFB", 3, 6, 6, ONE_F_ONE_B, 1),
        ("FFFFFFBBBBBB", 0, 6, 6, GPIPE, 1),
        ("FFFFFFBBBBBB", 2, 12, 12, GPIPE, 1),
        # two stages of two chunks each, four microbatches
        ("FFFFFBFBFBFBBBBB", 0, 12, 12, INTERLEAVED, 2),
        ("FFFBFBFBFBFBFBBB", 1, 12, 12, INTERLEAVED, 2),
        ("FFFFFFFFBBBBBBBB", 0, 12, 12, LOOPED, 2),
    ],
)
def test_a_schedule_is_implied_by_order_and_transfers(  # noqa: PLR0917 - a table
    order: str, stage: int, sends: int, receives: int, name: str, chunks: int
) -> None:
    stages = 2 if chunks > 1 else 4

    found = implied_schedule(seen_of(order, sends, receives), stage, stages)

    assert isinstance(found, Schedule)
    assert (found.name, found.chunks) == (name, chunks)
    assert found.microbatches * chunks == order.count("F")


def test_chunks_of_the_interleaved_schedule_take_turns() -> None:
    order = Schedule(INTERLEAVED, 2, 2, 4).order(1)

    assert order[:4] == (
        Computation(backward=False, chunk=0, mb=0),
        Computation(backward=False, chunk=0, mb=1),
        Computation(backward=False, chunk=1, mb=0),
        # The last stage's first backward pass is of its last chunk.
        Computation(backward=True, chunk=1, mb=0),
    )
    assert len(set(order)) == len(order) == 16


@pytest.mark.parametrize(
    ("order", "sends", "receives", "reason"),
    [
        ("FFBFBB", 3, 2, "no known schedule computes in the order FFBFBB with 3 sends"),
        ("FBBFFB", 3, 3, "no known schedule"),
        ("FFB", 2, 2, "2 forwards and 1 backwards"),
        ("", 4, 4, "0 forwards"),
    ],
)
def test_operations_that_fit_no_schedule_are_refused_with_the_reason(
    order: str, sends: int, receives: int, reason: str
) -> None:
    found = implied_schedule(seen_of(order, sends, receives), 0, 2)

    assert isinstance(found, str)
    assert reason in found
