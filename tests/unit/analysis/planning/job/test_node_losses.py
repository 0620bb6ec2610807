"""Plans after the loss of nodes, and their flags for frameworks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.planning.job.build import job_document
from app.analysis.planning.job.costs import GEMM_EFFICIENCY
from app.analysis.planning.job.node_losses import after_losses
from app.analysis.planning.job.plan import plan_job
from app.analysis.planning.job.spec import FixedParallelism, JobDevice, JobSpec, Recompute
from app.analysis.planning.transformer import Accelerator, Transformer


def job(nodes: int, **fixed: int | Recompute) -> JobSpec:
    return JobSpec(
        Transformer(32, 4096, 32, 50257, 2048, 1, 16384, 32),
        (JobDevice(Accelerator.known("A100"), nodes, GEMM_EFFICIENCY, 300.0),),
        gpus_per_node=8,
        global_batch=96,
        inter_node_gbytes_per_s=200.0,
        fixed=FixedParallelism(**fixed),  # type: ignore[arg-type]
        losses=2,
    )


def test_pipelines_that_lost_no_node_stay_and_share_the_batch() -> None:
    plan = plan_job(job(8, tp=8, pp=2, dp=4), compare=False).plan
    one, two = after_losses(plan)
    assert (one.lost, two.lost) == (1, 2)
    for loss in (one, two):
        assert loss.plan is not None
        assert loss.kept == 3
        assert sum(pipeline.microbatches for pipeline in loss.plan.pipelines) == 96
        assert loss.plan.time_ps > plan.time_ps
    # Both nodes of one pipeline are lost, so no state moves.
    assert two.plan is not None
    assert (two.plan.dp, two.moved_bytes) == (3, 0)


def test_the_only_node_lost_leaves_no_plan() -> None:
    plan = plan_job(job(1), compare=False).plan
    [loss] = after_losses(plan)
    assert (loss.plan, loss.kept) == (None, 0)


def test_flags_say_the_sizes_and_what_cannot_be_said() -> None:
    spec = job(4, tp=8, pp=2, dp=2, microbatch=1, interleave=2, recompute=Recompute.SELECTIVE)
    megatron, titan, deepspeed = job_document(plan_job(spec, compare=False)).flags
    assert "--num-layers-per-virtual-pipeline-stage 8" in megatron.flags
    assert "--recompute-activations" in megatron.flags
    assert megatron.unsaid == ()
    assert "--parallelism.pipeline_parallel_schedule Interleaved1F1B" in titan.flags
    assert "interleaved stages: it runs 1F1B" in deepspeed.unsaid


def test_memory_parts_stay_below_what_a_device_has() -> None:
    document = job_document(plan_job(job(2), compare=False))
    for template in document.templates:
        for stage in template.stages:
            assert stage.memory_limit_bytes is not None
            assert stage.memory.total <= stage.memory_limit_bytes


def test_a_price_gives_the_cost_of_tokens() -> None:
    spec = job(2)
    priced = replace(spec, devices=(replace(spec.devices[0], price_per_gpu_hour=2.0),))
    document = job_document(plan_job(priced, compare=False))
    hours = document.gpu_hours_per_billion_tokens
    assert document.cost_per_billion_tokens == pytest.approx(2 * hours)
    assert hours == pytest.approx(16 * 1e9 / document.tokens_per_s / 3600)


def test_after_a_loss_slow_nodes_stay_idle_where_the_fast_ones_alone_are_faster() -> None:
    slow, fast = (Accelerator.known(name) for name in ("V100", "H100"))
    devices = tuple(
        JobDevice(chip, nodes, GEMM_EFFICIENCY, 300.0) for chip, nodes in ((slow, 4), (fast, 2))
    )
    spec = replace(job(1, tp=8, dp=1), devices=devices, losses=1)
    plan = plan_job(spec, compare=False).plan
    [lost_slow, _] = after_losses(plan)
    alone = plan_job(replace(spec, devices=devices[1:]), compare=False).plan
    assert lost_slow.plan is not None
    assert lost_slow.plan.time_ps <= alone.time_ps
