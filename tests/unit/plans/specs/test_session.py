"""The specification of a whole job from a session: measured values, and missing metadata."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.layers.costs import running_job
from app.analysis.planning.job.build import job_document
from app.analysis.planning.job.costs import stage_costs
from app.analysis.planning.job.plan import plan_job
from app.analysis.planning.job.spec import JobSpec, Recompute
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes, Trace
from app.errors import InvalidSpecError
from app.plans.specs.session import session_job, spec_of_session
from app.plans.specs.spec import parse_any_spec
from tests.support.whole_jobs import told, whole_job_trace

PS_PER_MS = 1e9


def document(trace: Trace, step_s: float = 0.5) -> dict[str, Any]:
    job = session_job(trace.meta)
    running = running_job(Observation(trace, prepare_replay(trace).main), job.layers)
    assert running is not None
    return spec_of_session(job, running, step_s)


def refused(trace: Trace) -> tuple[str, dict[str | None, str]]:
    with pytest.raises(InvalidSpecError) as error:
        document(trace)
    return error.value.stable_code, {one.column: one.message for one in error.value.faults}


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_blocks_are_predicted_to_take_what_they_took(recompute: str) -> None:
    trace = whole_job_trace(recompute=recompute)
    job = session_job(trace.meta)
    running = running_job(Observation(trace, prepare_replay(trace).main), job.layers)
    spec = parse_any_spec(document(trace))
    assert running is not None
    assert isinstance(spec, JobSpec)
    assert [device.nodes for device in spec.devices] == [3, 1]
    slow = spec.devices[1]
    assert slow.name.startswith("A100 at 0.6")
    speed = float(slow.name.split()[-1])
    for device, faster in zip(spec.devices, (1.0, speed), strict=True):
        costs = stage_costs(spec, device, 4, 1, Recompute(recompute))
        took = running.forward_ms / faster, running.backward_ms / faster
        assert costs.block_forward_ps / PS_PER_MS == pytest.approx(took[0], rel=1e-6)
        assert costs.block_backward_ps / PS_PER_MS == pytest.approx(took[1], rel=1e-6)


def test_the_plan_is_next_to_the_job_as_it_runs() -> None:
    found = job_document(plan_job(_spec(whole_job_trace())))
    runs, same = found.as_it_runs, found.comparison["same_sizes"]
    assert runs is not None
    assert (runs.tp, runs.pp, runs.dp, runs.microbatch) == (4, 2, 4, 1)
    assert runs.relative == pytest.approx(500 / found.iteration_time_ms.simulated)
    assert same.parallelism is not None
    assert (same.parallelism.tp, same.parallelism.dp) == (4, 4)
    assert same.relative is not None
    assert same.relative >= 1


def _spec(trace: Trace) -> JobSpec:
    spec = parse_any_spec(document(trace))
    assert isinstance(spec, JobSpec)
    return spec


def test_everything_that_metadata_lack_is_named_at_once() -> None:
    bare = whole_job_trace(
        model=None, global_batch_size=None, seq_length=None, gpu_type=None, layers=None
    )
    code, faults = refused(told(bare, {}))
    assert code == "plan.metadata_missing"
    assert sorted(map(str, faults)) == [
        "global_batch_size", "gpu_type", "hosts", "layers", "model.heads", "model.hidden",
        "model.vocabulary", "seq_length",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ({"global_batch_size": 17}, "micro_batch_size"),
        ({"micro_batch_size": 2}, "micro_batch_size"),
        ({"gpu_type": "abacus"}, "devices[0].type"),
        ({"recompute": "some"}, "recompute"),
        ({"model": {"hidden": 4096, "heads": 32, "vocabulary": 32000, "depth": 3}}, "model.depth"),
        ({"network": {"speed": 3}}, "network.speed"),
    ],
)
def test_metadata_that_no_job_can_have_are_named(said: dict[str, Any], key: str) -> None:
    code, faults = refused(whole_job_trace(**said))
    assert code == "plan.metadata_unfit"
    assert key in faults


def test_nodes_of_different_sizes_are_refused() -> None:
    trace = whole_job_trace()
    hosts = {**trace.meta.hosts, 0: "n9"}
    assert refused(told(trace, hosts))[1].keys() == {"hosts"}


def test_layers_that_are_not_said_are_shared_out_and_types_read_from_names_of_gpus() -> None:
    shape = {"hidden": 4096, "heads": 32, "vocabulary": 32000, "layers": 16}
    trace = whole_job_trace(layers=None, gpu_type=None, model=shape)
    meta = dataclasses.replace(trace.meta, gpus=dict.fromkeys(range(32), "NVIDIA A100-SXM4-80GB"))
    job = session_job(meta)
    assert job.layers == ((8,), (8,))
    assert set(job.types.values()) == {"A100"}
    # One traced rank of each TP group suffices to identify the nodes.
    few = dataclasses.replace(meta, hosts={rank: f"n{rank // 8}" for rank in range(0, 32, 4)})
    assert session_job(few).gpus_per_node == 8


def test_blocks_of_a_job_of_one_stage_share_out_what_it_takes() -> None:
    trace = synthesize(
        JobModel(Sizes(dp=2, pp=1), microbatches=2, steps=3, layers=(8,)), seed=1
    ).trace
    found = running_job(Observation(trace, prepare_replay(trace).main), ((8,),))
    assert found is not None
    passes = Observation(trace, prepare_replay(trace).main).passes["forward-compute"]
    assert found.forward_ms == pytest.approx(passes.own_ns.mean() / 8e6, rel=0.05)
    assert found.microbatches == 2
