from __future__ import annotations

import numpy as np
import pytest

from app.analysis.synthesis.fleet import SCALES, draw_fleet_job, draw_gpus
from app.analysis.synthesis.job import Needs, stream
from app.analysis.synthesis.random_sessions import LAST_STAGE, needs_of

SIZES = sorted({gpus for scale in SCALES for gpus in scale.gpus})


def test_sizes_are_drawn_by_their_shares() -> None:
    gpus = np.array(draw_gpus((np.arange(10_000) + 0.5) / 10_000))

    assert (np.diff(gpus) >= 0).all()
    for scale in SCALES:
        assert np.isin(gpus, scale.gpus).mean() == pytest.approx(scale.share, abs=1e-3)


@pytest.mark.parametrize("gpus", SIZES)
@pytest.mark.parametrize(
    "needs",
    [
        Needs(),
        needs_of(["garbage_collection"]),
        Needs(pp=4),
        needs_of(["false_kernel_dependency"]),
        needs_of([LAST_STAGE, "sequence_length_imbalance"]),
    ],
)
def test_jobs_of_any_size_have_what_is_needed_and_are_not_too_long(gpus: int, needs: Needs) -> None:
    pipeline = needs != Needs()
    for seed in range(5):
        job = draw_fleet_job(gpus, needs, stream(seed), pipeline=pipeline)

        assert job.sizes.world == gpus
        assert job.sizes.pp >= needs.pp
        assert (job.sizes.pp > 1) == pipeline
        assert job.sizes.dp >= 2
        assert job.sizes.workers >= needs.workers
        assert (job.sizes.vpp > 1) >= needs.interleaved
        assert 6 <= job.steps <= 24
        passes = 6 if pipeline else 2
        per_step = job.sizes.workers * job.microbatches * job.sizes.vpp * passes
        assert per_step * job.steps <= 400_000


@pytest.mark.parametrize("gpus", [gpus for gpus in SIZES if gpus <= 512])
def test_jobs_that_record_all_tensor_ranks_are_small_enough(gpus: int) -> None:
    needs = needs_of(["tensor_parallel_straggler"])
    job = draw_fleet_job(gpus, needs, stream(gpus), pipeline=True)

    assert job.profiler.tensor_ranks
    assert job.sizes.tp > 1
