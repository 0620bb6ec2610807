from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.analysis.synthesis.injections.delays import Congestion
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import BACKWARD_SEND, FORWARD_RECV, Sizes
from tests.unit.analysis.synthesis.jobs import EXACT, rows

JOB = JobModel(
    sizes=Sizes(dp=4, pp=2),
    microbatches=4,
    steps=20,
    costs=replace(EXACT, p2p_ns=2e6),
)


def test_congestion_slows_all_transfers_in_the_same_steps_and_comes_back() -> None:
    session = synthesize(JOB, [Congestion(8.0, 10, busy=0.5)], seed=3)
    trace = session.trace
    steps = np.array(session.truth.steps)

    slow = np.isin(steps, session.truth.slow_steps)
    assert slow[:10].tolist() == slow[10:].tolist()
    assert 3 <= slow[:10].sum() <= 5
    for name in (FORWARD_RECV, BACKWARD_SEND):
        for dp in range(4):
            chosen = rows(trace, name, dp=dp)
            # A send takes at least as long as its transfer.
            shortest = [trace.duration_ns[chosen & (trace.step == step)].min() for step in steps]
            assert min(np.array(shortest)[slow]) > 1.5 * max(np.array(shortest)[~slow])
