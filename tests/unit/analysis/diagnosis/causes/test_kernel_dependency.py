from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.causes.kernel_dependency import KERNEL_DEPENDENCY, held_up
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.delays import FalseKernelDependency
from app.analysis.synthesis.job import JobModel
from tests.unit.analysis.diagnosis.jobs import (
    INTERLEAVED,
    JOB,
    check_named_alone,
    found,
    observe,
    session,
    signs_of,
)


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (FalseKernelDependency(), INTERLEAVED),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert KERNEL_DEPENDENCY.find(signs_of(session())) is None
    assert held_up(observe(session(job=INTERLEAVED))) == {}


def test_computations_held_up_by_a_reduce_scatter_are_named_with_their_wait() -> None:
    observation = observe(session(FalseKernelDependency(), job=INTERLEAVED))

    held = held_up(observation)
    nodes = observation.layout.nodes
    assert {int(nodes.op[node]) for node in held} == {
        observation.layout.op_names.index("backward-compute")
    }


def test_only_launches_that_are_held_up_come_on_time_without_it() -> None:
    finding = found(KERNEL_DEPENDENCY, signs_of(session(FalseKernelDependency(), job=INTERLEAVED)))

    for node, late in finding.launches.late_ns.items():
        assert (finding.change.on_time[node] == (late > 0)).all()


def test_nothing_can_be_said_without_reduce_scatters() -> None:
    bare = signs_of(session(job=replace(JOB, op_types=frozenset())))

    assert KERNEL_DEPENDENCY.cannot_judge(bare) == "no reduce-scatters recorded"
    assert KERNEL_DEPENDENCY.cannot_judge(signs_of(session())) is None
