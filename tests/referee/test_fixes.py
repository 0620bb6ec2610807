"""What fixes are promised to bring comes true where they are made."""

from __future__ import annotations

import numpy as np
import pytest

from tests.referee.fixes.layers import by_stage, chunk_factors, in_order
from tests.referee.fixes.promise import NEAR, Promise, Refereed
from tests.referee.fixes.referee import referee
from tests.referee.fixes.table import lines

SEED = 2026


@pytest.mark.parametrize(
    ("fault", "action"),
    [
        ("worker constant", "replace_worker"),
        ("tensor rank", "replace_rank"),
        ("link", "repair_link"),
        ("gc before launches", "plan_garbage_collection"),
        ("last stage heavy", "even_stages"),
        ("lengths uniform", "even_microbatches"),
        ("checkpoint", "save_in_background"),
        ("stage_imbalance", "even_stages"),
    ],
)
def test_a_fix_brings_what_is_promised(fault: str, action: str) -> None:
    for seed in range(SEED, SEED + 8):
        promises = {p.action: p for p in referee(seed, 0.0, fault, "both").promises}
        if action in promises:
            assert promises[action].error <= NEAR
            return
    pytest.fail("no job has the fix")


@pytest.mark.parametrize("physics", ["own", "independent"])
def test_nothing_is_promised_to_a_healthy_job(physics: str) -> None:
    refereed = referee(SEED, 1.0, None, physics)
    assert refereed.healthy
    assert not refereed.promises
    assert not refereed.unexecuted


def test_the_head_stays_where_it_is_and_heavy_layers_go_where_they_are_put() -> None:
    today, after = np.array([4, 4, 4]), np.array([5, 4, 3])
    head = np.array([1.0, 1.0, 1.5])  # as long as two layers
    np.testing.assert_allclose(chunk_factors(today, after, head), [5 / 4, 1, 5 / 6])
    heavy = np.array([1.0, 2.0, 1.0])  # layers 4 to 7
    np.testing.assert_allclose(chunk_factors(today, after, heavy), [6 / 4, 7 / 8, 3 / 4])


def test_chunks_are_counted_along_the_model() -> None:
    turns = in_order([[1, 3], [2, 4]])
    assert turns.tolist() == [1, 2, 3, 4]
    assert by_stage(turns * 1.0, 2).tolist() == [[1, 3], [2, 4]]


def test_the_last_line_counts_what_came_true_and_what_healthy_jobs_were_promised() -> None:
    def promise(promised: float) -> Promise:
        return Promise(1, "own", "x", "load_ahead", at_most=False, promised=promised, realised=2.0)

    slow = Refereed(1, "own", "x", False, (promise(2.02), promise(2.5)), ())  # noqa: FBT003
    healthy = Refereed(2, "own", "none", True, (promise(2.0),), ())  # noqa: FBT003
    assert list(lines([slow, healthy]))[-1] == (
        "fixes within 5 %: 50.0 %, median error 13.00 %, gains promised on healthy jobs: 1"
    )
