"""Steps replayed in tiles on several threads, compared with all steps at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis import loops as threads
from app.analysis.replay.engine import compiled_replay
from app.analysis.replay.engine.compiled_replay import CompiledReplay
from app.analysis.replay.engine.replay import RECORDED, ArrayReplay
from app.analysis.replay.host_delays import launch_delays
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.session import prepare_replay
from tests.random_jobs import random_job
from tests.support.nightly import drawn

seeds = st.integers(min_value=0, max_value=2**32 - 1)


@contextmanager
def step_by_step() -> Iterator[None]:
    """Make each step a separate tile and block, shared among several threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_replay, "_CACHED_BYTES", 0)
        patch.setattr(compiled_replay, "_CACHED_ENDS", 1)
        patch.setattr(threads, "_WORTH_A_THREAD", 0)
        patch.setattr("os.cpu_count", lambda: 3)
        yield


@pytest.mark.slow
@drawn(40)
@given(seeds)
def test_tiles_and_threads_do_not_change_what_comes_out(seed: int) -> None:
    group = prepare_replay(random_job(seed, launch_overhead=True).trace).main
    program, rng = group.simulator.executor.program, np.random.default_rng(seed)
    arrays = replace(group.simulator, executor=ArrayReplay(program))
    compiled = replace(group.simulator, executor=CompiledReplay(program))
    recorded, layout = group.durations.recorded_ns, group.layout
    kept = rng.random((layout.dp, layout.pp)) < 0.5
    names = [layout.op_names[code] for code in np.unique(layout.nodes.op)]
    delays, _ = launch_delays(group)
    takes = rng.integers(RECORDED, 2, (3, len(recorded)), dtype=np.int32)
    late = rng.integers(-1, len(delays), takes.shape, dtype=np.int32)

    def twice(steps: slice) -> FloatArray:
        return recorded[:2, steps] * 2

    with step_by_step():
        assert len(compiled.blocks()) == (1 if program.chain else len(layout.steps))
        for simulator in (arrays, compiled):
            keeps = [simulator.keep(), simulator.keep(cells=kept), simulator.keep(types=names[:1])]
            found = (
                simulator.step_times(keeps),
                *simulator.worker_step_times(),
                simulator.delayed_step_times([[name] for name in names], delays),
                simulator.delayed_step_times([names], lambda steps: delays[:, steps]),
                simulator.coded_step_times(takes, twice, late, delays),
            )
            if simulator is arrays:
                expected = found

    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
