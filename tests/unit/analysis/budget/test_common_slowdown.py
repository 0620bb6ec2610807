"""Common slowdowns of all workers: found where they exist, and seldom where they do not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from app.analysis.budget.common_slowdown import CommonFactor, common_factor, computing_ns
from app.analysis.diagnosis.observation import Observation
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes

STEPS = 40


def _job(
    factor: NDArray[np.float64], pp: int = 1, dp: int = 8, noise: float = 0.02, seed: int = 0
) -> NDArray[np.float64]:
    """Return the computing times of workers in ns, with a factor on each step."""
    random = np.random.default_rng(seed)
    own = random.uniform(0.5, 2, (pp, 1, dp))
    scatter = np.exp(random.normal(0, noise, (pp, len(factor), dp)))
    return np.asarray(1e8 * own * factor[None, :, None] * scatter)


def _found(computing: NDArray[np.float64]) -> CommonFactor:
    return common_factor(computing, np.arange(computing.shape[1]))


def _spell(times: float, begin: int = 14, end: int = 26) -> NDArray[np.float64]:
    factor = np.ones(STEPS)
    factor[begin:end] = times
    return factor


@pytest.mark.parametrize("times", [1.1, 1.5, 3.0])
@pytest.mark.parametrize(("pp", "dp"), [(1, 8), (4, 1), (4, 4), (1, 2)])
def test_a_stretch_in_which_all_workers_are_slow(times: float, pp: int, dp: int) -> None:
    found = _found(_job(_spell(times), pp, dp))

    assert np.flatnonzero(found.slow).tolist() == list(range(14, 26))
    assert found.times == pytest.approx(times, rel=0.02)
    assert found.growth is None
    assert (found.by_step[~found.slow] == 1).all()


@pytest.mark.parametrize("since", [8, 20, 30])
def test_slow_since_a_step_until_the_end(since: int) -> None:
    found = _found(_job(_spell(1.4, since, STEPS)))

    assert np.flatnonzero(found.slow).tolist() == list(range(since, STEPS))
    assert found.times == pytest.approx(1.4, rel=0.02)


def test_slow_until_a_step() -> None:
    assert np.flatnonzero(_found(_job(_spell(1.4, 0, 7))).slow).tolist() == list(range(7))


def test_scattered_steps() -> None:
    factor = np.ones(STEPS)
    slow = np.random.default_rng(1).permutation(STEPS)[:12]
    factor[slow] = 1.4

    found = _found(_job(factor))

    assert np.flatnonzero(found.slow).tolist() == sorted(slow.tolist())
    assert found.times == pytest.approx(1.4, rel=0.02)


@pytest.mark.parametrize("growth", [0.005, 0.01, 0.02, -0.01])
def test_steps_that_grow_all_along(growth: float) -> None:
    factor = np.asarray((1 + growth) ** np.arange(STEPS), np.float64)

    found = _found(_job(factor))

    assert found.growth == pytest.approx(growth, rel=0.1)
    best = factor / factor.min()
    assert found.by_step.mean() == pytest.approx(best.mean(), rel=0.01)


def test_a_jump_is_no_growth() -> None:
    assert _found(_job(_spell(1.8, 20, STEPS))).growth is None


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_a_healthy_job_has_no_slow_step(noise: float) -> None:
    assert not any(
        _found(_job(np.ones(STEPS), noise=noise, seed=seed)).slow.any() for seed in range(50)
    )


@pytest.mark.parametrize("steps", [3, 5])
def test_too_few_steps_tell_nothing(steps: int) -> None:
    factor = np.ones(steps)
    factor[-2:] = 3.0

    assert not _found(_job(factor)).slow.any()


def test_one_odd_step_is_not_slow_together() -> None:
    factor = np.ones(STEPS)
    factor[0] = 5.0

    assert not _found(_job(factor)).slow.any()


def test_not_where_a_quarter_of_the_workers_goes_on_as_before() -> None:
    computing = _job(_spell(1.5))
    computing[:, :, :2] = _job(np.ones(STEPS))[:, :, :2]

    assert not _found(computing).slow.any()


def test_one_slow_worker_is_not_all() -> None:
    computing = _job(np.ones(STEPS))
    computing[0, 14:26, 3] *= 2

    assert not _found(computing).slow.any()


def test_a_slow_worker_does_not_hide_what_all_do() -> None:
    computing = _job(_spell(1.5))
    computing[0, 20:, 3] *= 2

    assert _found(computing).times == pytest.approx(1.5, rel=0.02)


def test_more_to_compute_is_not_slower() -> None:
    factor = _spell(1.5)
    work = np.repeat(factor[:, None], 8, axis=1)

    assert not common_factor(_job(factor), np.arange(STEPS), work).slow.any()
    assert common_factor(_job(factor**2), np.arange(STEPS), work).times == pytest.approx(1.5, 0.02)


def test_long_sessions_are_looked_at_in_stretches() -> None:
    factor = np.ones(3_000)
    factor[1_000:1_600] = 1.3

    found = _found(_job(factor))

    assert 580 <= found.slow.sum() <= 620
    assert found.times == pytest.approx(1.3, rel=0.02)


def test_computing_is_what_each_worker_computes_in_each_step() -> None:
    session = synthesize(JobModel(sizes=Sizes(dp=2, pp=2), steps=4, microbatches=4), (), seed=1)
    replayed = prepare_replay(session.trace)
    observation = Observation(session.trace, replayed.main)

    found = computing_ns(replayed.layout, observation.recorded_ns)

    assert found.shape == (2, 4, 2)
    passes = observation.passes.values()
    expected = np.sum([of_type.times_ns.sum(axis=1) for of_type in passes], axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
