"""Computations that contain the collectives of several layers, as in FSDP2."""

from __future__ import annotations

import json

import numpy as np
import pytest

from app.analysis.report.build import analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import Trace

LAYERS, MICROBATCHES, STEPS = 3, 4, 8
LAYER_NS, TRANSFER_NS, WORKER_AND_FACTOR = 8_000_000, 3_000_000, (1, 1.8)


def fsdp(dp: int, seed: int) -> tuple[Trace, float]:
    """Return a session of one stage with collectives inside computations, and its slowdown.

    Every collective waits for all ranks. The slowdown is the step time ÷ the step time without the
    slow worker.
    """
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    now, even = np.zeros(dp), np.zeros(dp)
    factor = np.where(np.arange(dp) == WORKER_AND_FACTOR[0], WORKER_AND_FACTOR[1], 1.0)

    def note(step: int, op: str, begin: np.ndarray, mb: int | None = None) -> None:
        for rank in range(dp):
            row = {"rank": rank, "dp": rank, "pp": 0, "step": step, "op": op}
            row |= {} if mb is None else {"mb": mb}
            row |= {"start_ns": int(begin[rank]), "dur_ns": int(now[rank] - begin[rank])}
            rows.append(row)

    def collective(step: int, op: str) -> None:
        nonlocal now, even
        begin, took = now.copy(), TRANSFER_NS * rng.uniform(1, 2, dp)
        now = now.max() + took
        even = even.max() + took
        note(step, op, begin)

    def computing(mean_ns: float) -> None:
        nonlocal now, even
        own = mean_ns * rng.normal(1, 0.01, dp)
        now = now + own * factor
        even = even + own

    for step in range(STEPS):
        for mb in range(MICROBATCHES):
            begin = now.copy()
            for _ in range(LAYERS):
                collective(step, "params-all-gather")
                computing(LAYER_NS)
            note(step, "forward-compute", begin, mb)
            begin = now.copy()
            for _ in range(LAYERS):
                collective(step, "params-all-gather")
                computing(2 * LAYER_NS)
                collective(step, "grads-reduce-scatter")
            note(step, "backward-compute", begin, mb)
        begin = now.copy()
        now, even = now + 1e6, even + 1e6
        note(step, "optimizer", begin)
    meta = {"dp": dp, "pp": 1, "world": dp}
    text = [{"schema": "paceline.trace/1", "meta": meta}, *rows]
    body = "\n".join(json.dumps(item) for item in text).encode()
    return decode(body, None, limits=Limits()).trace, float(now.max() / even.max())


@pytest.mark.parametrize("dp", [2, 4])
def test_the_slow_worker_of_layers_that_wait_for_each_other_is_named(dp: int) -> None:
    trace, true = fsdp(dp, seed=3)

    report = analyze(trace).report

    assert report.fidelity.discrepancy < 0.02
    assert [cause.cause for cause in report.causes] == ["slow_worker"]
    assert report.causes[0].where.workers == ((1, 0),)
    assert report.headline.slowdown == pytest.approx(true, rel=0.03)
