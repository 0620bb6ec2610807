"""Numbers of tokens that differ: how computing grows with them, and who always has more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.pulse.measurements import Subjects
from app.analysis.pulse.notices import NoticeKind
from app.analysis.pulse.token_model import TokenModel
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.analysis.synthesis.random_pulses import FAULTS
from tests.unit.analysis.pulse.test_detector import notices_in

LONG_TAILS = PulseDials(dp=16, steps=700, noise=0.01, lengths=0.8, constant=0.1)


@pytest.mark.parametrize(
    ("constant", "linear", "squared"), [(0.1, 0.9, 0.0), (0.3, 0.5, 0.2), (1.0, 0.0, 0.0)]
)
@pytest.mark.parametrize("dp", [1, 8])
def test_the_constant_linear_and_squared_parts_are_learned(
    constant: float, linear: float, squared: float, dp: int
) -> None:
    rng = stream(1, "growth")
    subjects = Subjects.of(np.arange(dp), np.zeros(dp, np.int64), {})
    model = TokenModel()
    for _ in range(4):
        lengths = 0.8 * rng.normal(size=(32, dp))
        tokens = np.exp(lengths)
        computing = np.log(constant + linear * tokens + squared * tokens**2)
        computing[:, 0] += 0.3
        computing[5] += 0.5
        model.fit(computing + 0.01 * rng.normal(size=lengths.shape), lengths, subjects)

    assert model.shares == pytest.approx([linear, squared], abs=0.02)


@pytest.mark.parametrize("lengths", [0.4, 0.8, 1.2])
@pytest.mark.parametrize(("dp", "pp"), [(16, 1), (4, 4), (1, 1)])
def test_long_tailed_tokens_of_a_healthy_job_make_no_notice(
    lengths: float, dp: int, pp: int
) -> None:
    for seed, squared in enumerate((0.0, 0.15)):
        dials = replace(LONG_TAILS, dp=dp, pp=pp, lengths=lengths, squared=squared)
        job = PulseJob.healthy(dials, stream(seed, "healthy tokens"))

        assert notices_in(job.rows(), job.hosts) == ()


def test_no_step_is_long_because_the_rank_with_most_tokens_is_missing() -> None:
    dials = replace(LONG_TAILS, lengths=1.0, squared=0.2)
    job = PulseJob.healthy(dials, stream(10, "missing"))
    job.missing[300:400, 8:] = True

    assert notices_in(job.rows(), job.hosts) == ()


def test_a_slow_rank_is_named_within_a_few_steps_despite_long_tailed_tokens() -> None:
    job = PulseJob.healthy(LONG_TAILS, stream(2, "slow"))
    truth = FAULTS["rank"](job, stream(3, "slow"), 300, 1.1)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks) == (NoticeKind.SLOW_RANK, truth.ranks)
    assert notice.noticed_step <= 320
    assert notice.factor == pytest.approx(1.1, abs=0.02)


@pytest.mark.parametrize("lengths", [0.0, 0.02, 0.3, 0.8])
@pytest.mark.parametrize(("constant", "squared"), [(0.0, 0.25), (0.4, 0.0)])
def test_a_replica_that_always_has_twice_the_tokens_is_an_imbalance(
    lengths: float, constant: float, squared: float
) -> None:
    dials = replace(LONG_TAILS, dp=8, pp=2, lengths=lengths, constant=constant, squared=squared)
    job = PulseJob.healthy(dials, stream(4, "imbalance"))
    truth = FAULTS["tokens"](job, stream(5, "imbalance"), 0, 2.0)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks, notice.hosts) == (NoticeKind.IMBALANCE, truth.ranks, ())
    assert "as many tokens" in notice.evidence.sentence
    assert notice.noticed_step < (150 if lengths < 0.5 else 500)


@pytest.mark.parametrize("squared", [0.0, 0.25])
def test_a_replica_that_gets_more_tokens_later_is_no_slow_rank_and_recovers(squared: float) -> None:
    # Before, all ranks have the same number, so that the growth of their time is unknown.
    dials = replace(LONG_TAILS, lengths=0.0, squared=squared)
    job = PulseJob.healthy(dials, stream(6, "later"))
    factors = np.ones(job.computing.shape)
    factors[300:500, 3] = 2
    job.lengthen(factors)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks) == (NoticeKind.IMBALANCE, (3,))
    assert 300 <= notice.noticed_step < 400
    assert notice.cleared_step is not None
    assert 500 <= notice.cleared_step < 650
    assert notice.factor == pytest.approx(2.4 if squared else 1.9, rel=0.1)


def test_more_tokens_of_a_faster_device_are_no_imbalance() -> None:
    job = PulseJob.healthy(replace(LONG_TAILS, lengths=0.1), stream(7, "faster"))
    factors = np.ones(job.dials.world)
    factors[:2] = 2
    job.lengthen(factors)
    job.computing[:, :2] /= 1.9

    assert notices_in(job.rows(), job.hosts) == ()


def test_a_rank_with_more_tokens_that_becomes_slow_has_both_notices() -> None:
    job = PulseJob.healthy(replace(LONG_TAILS, lengths=0.1), stream(8, "both"))
    FAULTS["tokens"](job, stream(9, "both"), 0, 2.0)
    (imbalance,) = notices_in(job.rows(), job.hosts)
    job.computing[400:, list(imbalance.ranks)] *= 1.3
    kinds = {notice.kind: notice.ranks for notice in notices_in(job.rows(), job.hosts)}

    assert kinds == {
        NoticeKind.IMBALANCE: imbalance.ranks,
        NoticeKind.SLOW_RANK: imbalance.ranks,
    }
