"""Promised gains of fixes are realized when the fixes are made."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles.physics.draw import draw_worlds
from tests.referee.fixes.independent import arranged
from tests.referee.fixes.layers import by_stage, chunk_factors, in_order
from tests.referee.fixes.promise import NEAR, TEMPLATE, Promise, Refereed
from tests.referee.fixes.referee import referee
from tests.referee.fixes.table import lines

SEED = 2026


@pytest.mark.parametrize(
    ("fault", "action"),
    [
        ("worker constant", "replace_worker"),
        ("worker constant", "redistribute_microbatches"),
        ("slow_worker + network", "redistribute_microbatches"),
        ("tensor rank", "replace_rank"),
        ("link", "repair_link"),
        ("gc before launches", "plan_garbage_collection"),
        ("last stage heavy", "even_stages"),
        ("lengths uniform", "even_microbatches"),
        ("checkpoint", "save_in_background"),
        ("stage_imbalance", "even_stages"),
        ("all by a spell", "restore_speed"),
        ("all ever slower", "restore_speed"),
        ("another worker in each step", "even_steps"),
        ("slow_together", "restore_speed"),
        ("rotating", "even_steps"),
        ("checkpoint of a rank", "save_in_background"),
        ("checkpoints and data late", "load_ahead"),
        ("checkpoints and data late", "save_in_background"),
        ("data_loading + checkpoint", "load_ahead"),
        ("worker constant and link", "replace_worker"),
        ("lengths very rare", "even_microbatches"),
        ("loaders stall", "load_ahead"),
        ("loader of a rank stalls", "load_ahead"),
        ("checkpoints between steps", "save_in_background"),
        ("evaluations", "evaluate_elsewhere"),
        ("standstills", "name_standstill"),
        ("loader_stalls + checkpoints_written", "load_ahead"),
        ("slow_worker + checkpoints_written", "save_in_background"),
        ("network of a stage", "repair_link"),
        ("worker, layers known", TEMPLATE),
        ("head and worker", TEMPLATE),
        ("embedding and worker", TEMPLATE),
        ("head and worker by spells", TEMPLATE),
        ("head and gc", TEMPLATE),
        ("slow_worker + last_stage", TEMPLATE),
    ],
)
def test_a_fix_saves_the_promised_time(fault: str, action: str) -> None:
    for seed in range(SEED, SEED + 8):
        promises = {p.action: p for p in referee(seed, 0.0, fault, "both").promises}
        if action in promises:
            assert promises[action].error <= NEAR
            return
    pytest.fail("no job has the fix")


@pytest.mark.parametrize(
    ("seed", "fault", "action"),
    [
        # In some steps, the first stage waits for data before it writes a checkpoint.
        (922000030, "checkpoints and data late", "save_in_background"),
        (922000038, "checkpoints and data late", "load_ahead"),
        # All steps wait for data, and a quarter of them for checkpoints.
        (944000013, "data_loading + checkpoint", "load_ahead"),
        # One of two ranks writes checkpoints.
        (944000008, "checkpoint of a rank", "save_in_background"),
        # Hosts that wait for their sends launch forward passes late, without a pause.
        (922000011, "lengths rare", "even_microbatches"),
    ],
)
def test_time_of_other_causes_is_not_promised(seed: int, fault: str, action: str) -> None:
    promises = {p.action: p for p in referee(seed, 0.0, fault, "both").promises}
    assert promises[action].error <= NEAR
    assert not promises[action].open


@pytest.mark.parametrize(
    ("seed", "fault", "action"),
    [
        # A slow worker, and a few microbatches ten times as long as the others.
        (933000096, "lengths very rare", "restore_speed"),
        # Ranks continue one by one after an unexplained pause.
        (955000183, "between_steps", "save_in_background"),
    ],
)
def test_no_fix_is_advised_for_an_absent_cause(seed: int, fault: str, action: str) -> None:
    actions = {promise.action for promise in referee(seed, 0.0, fault, "both").promises}
    assert action not in actions


def test_the_gain_of_standstills_that_may_be_checkpoints_is_an_upper_bound() -> None:
    (promise,) = referee(922000001, 0.0, "data_loading + checkpoint", "both").promises
    assert promise.action == "load_ahead"
    assert promise.open
    assert promise.promised > promise.realised


def test_a_rank_that_writes_checkpoints_alone_gets_no_advice_to_load_ahead() -> None:
    advised = {
        promise.action
        for seed in range(SEED, SEED + 4)
        for promise in referee(seed, 0.0, "checkpoint of a rank", "both").promises
    }
    assert advised == {"save_in_background"}


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


def test_the_last_line_counts_kept_promises_and_promises_to_healthy_jobs() -> None:
    def promise(promised: float) -> Promise:
        return Promise(
            *(1, "own", "x", "load_ahead"),
            at_most=False,
            itself=True,
            promised=promised,
            realised=2.0,
        )

    slow = Refereed(1, "own", "x", False, (promise(2.02), promise(2.5)), ())  # noqa: FBT003
    healthy = Refereed(2, "own", "none", True, (promise(2.0),), ())  # noqa: FBT003
    assert list(lines([slow, healthy]))[-1] == (
        "fixes within 5 %: 50.0 %, median error 13.00 %, templates within 5 %: 100.0 % of 0, "
        "kept of 0 that say up to: 100.0 %, gains promised on healthy jobs: 1"
    )


@pytest.mark.parametrize(("realised", "error"), [(1.5, 0.0), (2.2, 0.1)])
def test_up_to_holds_where_no_more_comes_of_it(realised: float, error: float) -> None:
    promise = Promise(
        *(1, "own", "x", TEMPLATE), at_most=True, itself=True, promised=1.98, realised=realised
    )
    assert promise.error == pytest.approx(error)


def test_workers_that_move_take_along_how_fast_they_are() -> None:
    world = draw_worlds(SEED, "worker, layers known").struck.world
    stages = world.shape.pp
    layers = ((4,) * world.shape.vpp,) * stages
    turned = arranged(world, layers, layers, [*range(1, stages), 0])
    np.testing.assert_allclose(turned.forward_s, np.roll(world.forward_s, -1, axis=0))
    np.testing.assert_allclose(turned.activation_s, world.activation_s)
