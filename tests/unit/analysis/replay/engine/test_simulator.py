from __future__ import annotations

import numpy as np
import pytest

from app.analysis.replay.engine import simulator as durations
from app.analysis.replay.engine.simulator import FAULT_NS, own_durations
from app.analysis.replay.session import prepare_replay
from tests.random_jobs import random_job


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("at_a_time", [1, 1 << 20])
def test_transfers_begin_with_the_last_launch_of_their_group(
    seed: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = prepare_replay(random_job(seed, steps=3, launch_overhead=True).trace)
    layout, graph = replayed.layout, replayed.graph
    expected = layout.duration_ns.copy()
    for unit in graph.units:
        if unit.communication and (len(unit.members) > 1 or unit.across_dp):
            members = list(unit.members)
            latest = layout.start_ns[members].max(axis=0)
            if unit.across_dp:
                latest = latest.max(axis=-1, keepdims=True)
            expected[members] += layout.start_ns[members]
            expected[members] -= latest
    faulty = expected < FAULT_NS
    monkeypatch.setattr(durations, "_AT_A_TIME", at_a_time)
    found, clamped = own_durations(layout, graph)

    assert np.array_equal(found[~faulty], expected[~faulty])
    assert clamped == np.count_nonzero(faulty)
