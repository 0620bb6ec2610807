from __future__ import annotations

import numpy as np
import pytest

from app.analysis.diagnosis.counterfactual import Counterfactuals
from app.analysis.diagnosis.finding import Change
from app.analysis.diagnosis.late_launches import first_delays
from app.analysis.replay.engine.simulator import Replacement
from app.analysis.synthesis.injections.computations import SlowWorker, StageImbalance
from app.analysis.synthesis.injections.delays import SlowDataLoading
from tests.unit.analysis.diagnosis.jobs import MS, observe, session

SICK = session(SlowWorker((2, 1), 1.6), StageImbalance(), SlowDataLoading(100 * MS))
OBSERVATION = observe(SICK)
GROUP = OBSERVATION.group
PASSES = OBSERVATION.passes["forward-compute"].nodes
LATE = first_delays(OBSERVATION)


def replays() -> Counterfactuals:
    changes = [
        Change(less_ns={int(node): np.asarray(5 * MS) for node in PASSES[0]}),
        Change(times={int(node): np.asarray(0.5) for node in PASSES[3]}),
        Change(on_time={node: np.ones(late.shape, bool) for node, late in LATE.items()}),
    ]
    return Counterfactuals(GROUP, changes, LATE)


def test_without_any_cause_removed_late_launches_are_part_of_the_steps() -> None:
    recorded = (GROUP.layout.start_ns + GROUP.layout.duration_ns).max(axis=(0, 2)) / 1e9

    assert replays().without(frozenset()) == pytest.approx(recorded, rel=0.01)


def test_known_replays_are_not_repeated() -> None:
    simulator = GROUP.simulator
    (plain,) = simulator.step_times([simulator.keep()]) * 1e-9
    change = Change(less_ns={int(node): np.asarray(5 * MS) for node in PASSES[0]})

    anew = Counterfactuals(GROUP, [change], {})
    known = Counterfactuals(GROUP, [change], {}, now_s=plain)

    assert np.array_equal(anew.without(frozenset()), plain)
    assert known.without(frozenset()) is plain
    assert np.array_equal(known.shares([0]), anew.shares([0]))
    assert (known.with_delays(LATE).without(frozenset()) > plain).all()


def test_with_late_launches_removed_the_steps_are_those_of_the_plain_replay() -> None:
    simulator = GROUP.simulator
    (plain,) = simulator.step_times([simulator.keep()]) / 1e9

    assert replays().without(frozenset({2})) == pytest.approx(plain, rel=1e-9)


def test_changes_equal_a_replay_of_the_changed_durations() -> None:
    simulator, recorded = GROUP.simulator, GROUP.durations.recorded_ns
    replacement = Replacement(
        np.concatenate([PASSES[0], PASSES[3]]),
        lambda steps: np.concatenate(
            [recorded[PASSES[0], steps] - 5 * MS, recorded[PASSES[3], steps] * 0.5]
        ),
    )
    (expected,) = simulator.replaced_step_times(replacement) / 1e9

    assert replays().without(frozenset({0, 1, 2})) == pytest.approx(expected, rel=1e-9)


def test_fair_shares_add_up_to_what_removing_everything_saves() -> None:
    counterfactuals = replays()
    shares = counterfactuals.shares([0, 1, 2])

    saved = counterfactuals.without(frozenset()) - counterfactuals.without(frozenset({0, 1, 2}))
    assert shares.sum(axis=0) == pytest.approx(saved, rel=1e-9)
    assert counterfactuals.gain(frozenset({0, 1, 2})) == pytest.approx(saved.mean())


def test_two_equal_causes_have_equal_shares_and_one_that_changes_nothing_has_none() -> None:
    half = Change(times={int(node): np.asarray(0.5) for node in PASSES[3][:4]})
    other = Change(times={int(node): np.asarray(0.5) for node in PASSES[3][:4]})
    shares = Counterfactuals(GROUP, [half, Change(), other], {}).shares([0, 1, 2]).mean(axis=1)

    assert shares[0] == pytest.approx(shares[2])
    assert shares[1] == pytest.approx(0, abs=1e-12)
