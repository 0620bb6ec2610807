"""Sessions whose metadata suffice for the plan of their whole job."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes, Trace

SAID = {
    "model": {"hidden": 4096, "heads": 32, "vocabulary": 32000},
    "global_batch_size": 16,
    "seq_length": 2048,
    "gpu_type": "A100",
    "network": {"inter_node_gbytes_per_s": 100},
}


@cache
def _recorded() -> Trace:
    job = JobModel(Sizes(dp=4, pp=2, tp=4), microbatches=4, steps=4, layers=(8, 8))
    return synthesize(job, [SlowWorker((1, 1), 1.6)], seed=1).trace


def told(trace: Trace, hosts: dict[int, str], **said: Any) -> Trace:  # noqa: ANN401 - JSON
    """Return a session with other metadata."""
    extra = {key: value for key, value in {**trace.meta.extra, **said}.items() if value is not None}
    return dataclasses.replace(
        trace, meta=dataclasses.replace(trace.meta, extra=extra, hosts=hosts)
    )


def whole_job_trace(**said: Any) -> Trace:  # noqa: ANN401 - JSON
    """Return a session on 4 nodes of 8 A100; on `n2`, the worker of DP rank 1 and stage 1 is slow.

    Parameters
    ----------
    said : object
        Metadata that replace the default ones; None removes a key.
    """
    return told(_recorded(), {rank: f"n{rank // 8}" for rank in range(32)}, **{**SAID, **said})
