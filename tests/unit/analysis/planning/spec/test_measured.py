"""From a session's times to a template around its slow workers."""

from __future__ import annotations

import numpy as np
import pytest

from app.analysis.planning.plan import plan
from app.analysis.planning.spec.measured import (
    SessionTimes,
    measure_session,
    spec_of_session,
)
from app.analysis.planning.template import evaluate
from app.analysis.synthesis.job import JobModel, Schedule
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from app.errors import InfeasiblePlanError


def times(slowdown: float = 1.0) -> SessionTimes:
    """Four stages of four layers on three DP ranks; the last also has a head of 2 + 4 ms."""
    forward = np.tile([8.0, 8.0, 8.0, 10.0], (3, 1))
    backward = 2 * forward
    for array in (forward, backward):
        array[1, 2] *= slowdown
    return SessionTimes(forward, backward, microbatches=12)


def test_layers_are_what_the_stages_took() -> None:
    spec = spec_of_session(times(), (4, 4, 4, 4))
    assert len(spec.layers) == 17
    assert {layer.forward_ms for layer in spec.layers[:16]} == {2.0}
    assert spec.layers[16].forward_ms == pytest.approx(2.0)
    assert spec.layers[16].backward_ms == pytest.approx(4.0)
    assert [(device.name, device.nodes) for device in spec.devices] == [("healthy", 4)]
    assert spec.microbatches == 12


def test_a_slow_worker_is_a_type_of_its_own() -> None:
    spec = spec_of_session(times(2.0), (4, 4, 4, 4))
    healthy, slow = spec.devices
    assert (healthy.nodes, slow.nodes) == (3, 1)
    assert slow.speed == pytest.approx(0.5)
    # only its own DP rank is slow
    assert len(spec_of_session(times(2.0), (4, 4, 4, 4), dp_rank=0).devices) == 1
    assert len(spec_of_session(times(2.0), (4, 4, 4, 4), dp_rank=1).devices) == 2


def test_the_plan_gives_the_slow_worker_less() -> None:
    found = plan(spec_of_session(times(2.0), (4, 4, 4, 4)), compare=False)
    sizes = {
        found.problem.spec.devices[stage.nodes[0][0]].name: stage.end - stage.first
        for stage in found.template
    }
    assert found.optimal
    assert sizes["stage 2's worker"] < sizes["healthy"]
    # today the stages take 24, 24, 48 and 30 ms
    assert evaluate(found.problem, found.template).t_std / 1e9 < 0.7 * (126 + 11 * 48)


@pytest.mark.parametrize("stages", [1, 2])
def test_few_stages(stages: int) -> None:
    forward = np.full((2, stages), 12.0)
    spec = spec_of_session(SessionTimes(forward, forward, 8), (4,) * stages)
    assert [layer.forward_ms for layer in spec.layers] == [3.0] * (4 * stages)


def test_times_come_from_the_trace() -> None:
    job = JobModel(Sizes(dp=2, pp=3), microbatches=6, steps=4)
    trace = synthesize(job, seed=1).trace
    measured = measure_session(trace)
    assert measured.microbatches == 6
    assert measured.forward_ms.shape == (2, 3)
    codes = [trace.op_names.index("forward-compute")]
    mine = np.isin(trace.op, codes) & (trace.dp == 1) & (trace.pp == 2)
    assert measured.forward_ms[1, 2] == pytest.approx(trace.duration_ns[mine].mean() / 1e6)
    assert (measured.backward_ms > measured.forward_ms).all()


def test_virtual_stages_are_not_planned() -> None:
    job = JobModel(Sizes(dp=1, pp=2, vpp=2), microbatches=4, steps=2, schedule=Schedule.INTERLEAVED)
    with pytest.raises(InfeasiblePlanError) as caught:
        measure_session(synthesize(job, seed=1).trace)
    assert caught.value.stable_code == "plan.virtual_stages"
