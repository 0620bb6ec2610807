"""The planner compared with a real job: a plan that it predicts to be faster is faster."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from app.analysis.planning.job.costs import SEND_EFFICIENCY
from app.analysis.planning.job.schedule import iteration_ps
from app.analysis.planning.job.search import search_job
from app.analysis.planning.job.spec import FixedParallelism, JobDevice, JobSpec, Recompute
from app.analysis.planning.transformer import Accelerator, Measured, Transformer
from tests.conftest import skip_or_fail
from tests.real_jobs.divisions import BATCH, BLOCKS, DIVISIONS, HIDDEN, SEQUENCE, WORLD, Division
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import missing, run_workers
from tests.support.nightly import by_night

LIMIT_S = 180
PS = 1e12
NUMBER_BYTES = 4


def predicted_s(division: Division, profile: Sequence[float]) -> float:
    """Return the planner's step time, from the measured times of a block and a send."""
    size = division.microbatch
    forward_s, backward_s, send_s = profile
    link = SEQUENCE * size * HIDDEN * NUMBER_BYTES / send_s / SEND_EFFICIENCY / 1e9
    device = JobDevice(Accelerator("process", 1e11, 1e10, None), 1, 0.5, link)
    model = Transformer(
        BLOCKS, HIDDEN, 4, 64, SEQUENCE, size, 2 * HIDDEN, 4, number_bytes=NUMBER_BYTES,
        measured=(Measured("process", 1, 1e3 * forward_s, 1e3 * backward_s),),
    )  # fmt: skip
    fixed = FixedParallelism(1, division.pp, division.dp, size, Recompute.NONE, interleave=1)
    found = search_job(JobSpec(model, (device,), WORLD, BATCH, fixed=fixed))
    assert found is not None
    return iteration_ps(found.plan) / PS


@by_night
def test_divisions_of_a_real_job_take_what_they_take_in_the_order_that_is_predicted(
    tmp_path: Path,
) -> None:
    reason = missing(Framework.HAND_WRITTEN)
    if reason is not None:
        skip_or_fail(reason)
    arguments = ["tests.real_jobs.worker.divided", str(tmp_path), str(LIMIT_S)]
    run_workers("divisions", arguments, tmp_path / "log", LIMIT_S)
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORLD)]
    steps = dict(zip(DIVISIONS, zip(*said[0]["steps_s"], strict=True), strict=True))
    predicted = {}
    for one in DIVISIONS:
        profiles = [turn[str(one.microbatch)] for rank in said for turn in rank["profiles"]]
        taken = zip(*profiles, strict=True)
        predicted[one] = predicted_s(one, [statistics.median(times) for times in taken])
    told = "\n".join(
        f"dp {one.dp} pp {one.pp} microbatch {one.microbatch}: predicted {predicted[one]:.3f} s, "
        f"measured {statistics.median(steps[one]):.3f} s"
        for one in DIVISIONS
    )
    print(told)  # noqa: T201 - what a run of this test says
    compared = 0
    for one, other in itertools.combinations(DIVISIONS, 2):
        # Both are of the same turn, so that other load of the machine affects both.
        apart = [mine - its for mine, its in zip(steps[one], steps[other], strict=True)]
        middle = statistics.median(apart)
        noise = statistics.median(abs(difference - middle) for difference in apart)
        if abs(middle) > 3 * noise:
            compared += 1
            assert (predicted[one] > predicted[other]) == (middle > 0), told
    assert compared >= len(DIVISIONS), told
