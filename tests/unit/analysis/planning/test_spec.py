"""Specifications of templates around slow workers, made from a session's times."""

from __future__ import annotations

import numpy as np
import pytest

from app.analysis.planning.plan import plan
from app.analysis.planning.spec import Layer, MeasuredSession, spec_of_session
from app.analysis.planning.template import evaluate


def session(slowdown: float = 1.0) -> MeasuredSession:
    """Return four stages of four layers on three DP ranks; the last has a head of 2 + 4 ms."""
    speeds = np.ones((3, 4))
    speeds[1, 2] /= slowdown
    return MeasuredSession((Layer(2.0, 4.0),) * 16 + (Layer(2.0, 4.0),), speeds, microbatches=12)


def test_a_slow_worker_is_a_type_of_its_own() -> None:
    spec = spec_of_session(session(2.0))
    healthy, slow = spec.devices
    assert (healthy.nodes, slow.nodes) == (3, 1)
    assert slow.speed == pytest.approx(0.5)
    # Only DP rank 1 has a slow worker.
    assert len(spec_of_session(session(2.0), dp_rank=0).devices) == 1
    assert len(spec_of_session(session(2.0), dp_rank=1).devices) == 2


def test_workers_about_as_fast_as_their_peers_are_healthy() -> None:
    spec = spec_of_session(session(1.03))
    assert [(device.name, device.nodes) for device in spec.devices] == [("healthy", 4)]
    assert spec.microbatches == 12


def test_the_plan_gives_the_slow_worker_less() -> None:
    found = plan(spec_of_session(session(2.0)), compare=False)
    sizes = {
        found.problem.spec.devices[stage.nodes[0][0]].name: stage.end - stage.first
        for stage in found.template
    }
    assert found.optimal
    assert sizes["stage 2's worker"] < sizes["healthy"]
    # Without a template, the stages take 24, 24, 48 and 30 ms.
    assert evaluate(found.problem, found.template).t_std / 1e9 < 0.7 * (126 + 11 * 48)
