from __future__ import annotations

import re
from typing import Any

import pytest

from app.analysis.synthesis.job import JobModel, Schedule
from app.analysis.trace.model import FORWARD_SEND, Sizes


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"sizes": Sizes(dp=0, pp=1), "microbatches": 1}, "start at 1"),
        ({"sizes": Sizes(dp=1, pp=1), "microbatches": 0}, "start at 1"),
        ({"sizes": Sizes(dp=1, pp=2, vpp=2), "microbatches": 2}, "need each other"),
        (
            {
                "sizes": Sizes(dp=1, pp=2),
                "microbatches": 2,
                "schedule": Schedule.INTERLEAVED,
            },
            "need each other",
        ),
        (
            {
                "sizes": Sizes(dp=1, pp=2, vpp=2),
                "microbatches": 3,
                "schedule": Schedule.INTERLEAVED,
            },
            "groups of PP",
        ),
        (
            {
                "sizes": Sizes(dp=1, pp=2),
                "microbatches": 2,
                "unrecorded": frozenset({FORWARD_SEND}),
            },
            "not optional operation types: ['forward-send']",
        ),
    ],
)
def test_a_job_that_contradicts_itself_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        JobModel(steps=1, **arguments)


def test_ranks_count_tensor_then_context_then_data_then_pipeline() -> None:
    job = JobModel(sizes=Sizes(dp=4, pp=4, tp=4), microbatches=1, steps=1)

    assert [job.traced_rank(dp, 0) for dp in range(4)] == [0, 4, 8, 12]
    assert [job.traced_rank(0, pp) for pp in range(4)] == [0, 16, 32, 48]
    with_context = JobModel(sizes=Sizes(dp=2, pp=2, tp=2, cp=3), microbatches=1, steps=1)
    assert with_context.traced_rank(1, 1) == 18
