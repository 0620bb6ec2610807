"""Conversion of a whole job's plan to its document."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.planning.build import DIGITS, MOST_DRAWN
from app.analysis.planning.document import SCHEMA, SimulatedIteration, Starts
from app.analysis.planning.job.costs import MEMORY_MARGIN, forward_flops, static_bytes_per_parameter
from app.analysis.planning.job.document import (
    AfterLossDocument,
    AsItRunsDocument,
    JobAlternative,
    JobDocument,
    JobStageDocument,
    JobTemplateDocument,
    JobTimes,
    MemoryParts,
    PipelineDocument,
    PlacedNode,
    SimplerJob,
    TimeShares,
)
from app.analysis.planning.job.framework_flags import framework_flags
from app.analysis.planning.job.node_losses import after_losses
from app.analysis.planning.job.schedule import executed_ps, iteration_ps, stage_extras, stage_passes
from app.analysis.planning.job.space import FoundJob, JobPipeline, JobPlan, in_flight
from app.analysis.planning.job.spec import JobSpec, Parallelism
from app.analysis.planning.problem import PS_PER_MS
from app.analysis.planning.template import simulate

# Number of operations of a training step ÷ number of operations of its forward pass.
_TRAINING: Final = 3
_BILLION: Final = 1e9
_S_PER_HOUR: Final = 3600
_MS: Final = 1e3


def job_document(found_job: FoundJob) -> JobDocument:
    """Return the document of a plan."""
    plan = found_job.plan
    space, spec = plan.space, plan.space.spec
    times = times_of(plan)
    seconds = times.simulated / _MS
    tokens = spec.global_batch * spec.transformer.sequence
    templates = list(dict.fromkeys(pipeline.template for pipeline in plan.pipelines))
    peak = sum(
        device.accelerator.peak_flops * device.nodes * spec.gpus_per_node for device in spec.devices
    )
    hours = seconds / _S_PER_HOUR * _BILLION / tokens
    prices = [device.price_per_gpu_hour for device in spec.devices]
    cost = None
    if all(price is not None for price in prices):
        cost = hours * sum(
            device.nodes * spec.gpus_per_node * (device.price_per_gpu_hour or 0.0)
            for device in spec.devices
        )
    documents = tuple(_template(plan, template) for template in templates)
    used = {node for pipeline in plan.pipelines for node in pipeline.nodes}
    flops = _TRAINING * forward_flops(spec.transformer) * spec.global_batch
    return JobDocument(
        schema=SCHEMA,
        parallelism=parallelism_of(plan),
        iteration_time_ms=times,
        tokens_per_s=tokens / seconds,
        model_flops_utilization=flops / (seconds * peak),
        gpu_hours_per_billion_tokens=hours * spec.gpus,
        cost_per_billion_tokens=cost,
        optimal=found_job.optimal,
        lower_bound_ms=found_job.lower_bound_ps / PS_PER_MS,
        gap=found_job.gap,
        planning_time_s=found_job.planning_time_s,
        global_batch=spec.global_batch,
        sequence=spec.transformer.sequence,
        layers=space.layers,
        gpus=spec.gpus,
        templates=documents,
        pipelines=tuple(
            PipelineDocument(
                template=templates.index(pipeline.template),
                microbatches=pipeline.microbatches,
                nodes=tuple(
                    PlacedNode(spec.devices[kind].name, node) for kind, node in pipeline.nodes
                ),
                time_ms=pipeline.time_ps / PS_PER_MS,
            )
            for pipeline in plan.pipelines
        ),
        memory=max(
            (stage.memory for document in documents for stage in document.stages),
            key=lambda memory: memory.total,
        ),
        time=_time_shares(plan),
        idle={
            device.name: (device.nodes - sum(at == kind for at, _ in used)) * spec.gpus_per_node
            for kind, device in enumerate(spec.devices)
        },
        alternatives=tuple(_alternative(other, plan) for other in found_job.alternatives),
        comparison={
            name: SimplerJob(None, None, None)
            if other is None
            else SimplerJob(parallelism_of(other), times_of(other), other.time_ps / plan.time_ps)
            for name, other in found_job.comparison.items()
        },
        after_losses=tuple(
            AfterLossDocument(
                device=spec.devices[loss.device].name,
                nodes=loss.lost,
                iteration_time_ms=None if loss.plan is None else loss.plan.time_ps / PS_PER_MS,
                dp=0 if loss.plan is None else loss.plan.dp,
                kept=loss.kept,
                moved_bytes=loss.moved_bytes,
            )
            for loss in after_losses(plan)
        ),
        flags=framework_flags(plan),
        as_it_runs=_as_it_runs(spec, times),
    )


def _as_it_runs(spec: JobSpec, times: JobTimes) -> AsItRunsDocument | None:
    runs = spec.as_it_runs
    if runs is None:
        return None
    sizes = runs.sizes
    return AsItRunsDocument(
        iteration_time_ms=runs.iteration_ms,
        relative=runs.iteration_ms / times.simulated,
        tp=sizes.tp,
        pp=sizes.pp,
        dp=sizes.dp,
        microbatch=sizes.microbatch,
        recompute=sizes.recompute,
        interleave=sizes.interleave,
        session=runs.session,
    )


def slowest_iteration(plan: JobPlan) -> SimulatedIteration:
    """Return the slowest pipeline's executed iteration without synchronization and optimizer."""
    slowest = max(plan.pipelines, key=lambda pipeline: executed_ps(plan.space, pipeline))
    forward, backward = stage_passes(plan.space, slowest)
    whole = executed_ps(plan.space, slowest) - slowest.template.tail_ps
    busy = (forward + backward) * slowest.microbatches
    starts = None
    computations = len(forward) * slowest.microbatches
    if plan.space.sizes.interleave == 1 and computations <= MOST_DRAWN:
        line = simulate(
            forward.tolist(),
            backward.tolist(),
            [0] * max(len(forward) - 1, 1),
            [0] * max(len(forward) - 1, 1),
            slowest.microbatches,
        )
        ahead, behind = (
            tuple(tuple(round(int(ps) / PS_PER_MS, DIGITS) for ps in stage) for stage in starts_ps)
            for starts_ps in line.start_ps
        )
        starts = Starts(ahead, behind)
    return SimulatedIteration(
        iteration_time_ms=whole / PS_PER_MS,
        bubble=tuple(1 - int(ps) / whole for ps in busy),
        starts=starts,
    )


def parallelism_of(plan: JobPlan) -> Parallelism:
    """Return the parallel sizes (dp, pp, tp, …) of a plan."""
    sizes = plan.space.sizes
    return Parallelism(
        tp=sizes.tp,
        pp=plan.pp,
        dp=plan.dp,
        microbatch=sizes.microbatch,
        recompute=sizes.recompute,
        interleave=sizes.interleave,
    )


def times_of(plan: JobPlan) -> JobTimes:
    """Return the time of a plan's iteration according to t_std and as executed, ms."""
    return JobTimes(plan.time_ps / PS_PER_MS, iteration_ps(plan) / PS_PER_MS)


def stage_memory(plan: JobPlan, pipeline: JobPipeline) -> tuple[MemoryParts, ...]:
    """Return the memory of one device of each pipeline stage, by part, bytes."""
    space, stages = plan.space, pipeline.template.stages
    costs = space.arrays
    weights, gradients, optimizer = static_bytes_per_parameter(space.spec, plan.dp)
    parts = []
    for position, stage in enumerate(stages):
        first, last = position == 0, position == len(stages) - 1
        parameters = stage.blocks * costs.block_parameters
        parameters += (first + last) * costs.table_parameters
        flight = in_flight(len(stages), position, space.sizes.interleave, space.microbatches)
        held = flight * (stage.blocks * costs.stored + first * costs.inputs)
        limit = space.spec.devices[stage.device].accelerator.memory_bytes
        parts.append(
            MemoryParts(
                weights=weights * parameters,
                gradients=gradients * parameters,
                optimizer=optimizer * parameters,
                activations=held,
                other=costs.working + last * costs.logits,
                margin=0.0 if limit is None else MEMORY_MARGIN * limit,
            )
        )
    return tuple(parts)


def _template(plan: JobPlan, template: object) -> JobTemplateDocument:
    pipeline = next(item for item in plan.pipelines if item.template == template)
    spec, unit = plan.space.spec, pipeline.template.unit
    forward, backward = stage_passes(plan.space, pipeline)
    stages, layer = [], 0
    last = len(pipeline.template.stages) - 1
    memory = stage_memory(plan, pipeline)
    for position, stage in enumerate(pipeline.template.stages):
        count = stage.blocks + (position == 0) + (position == last)
        device = spec.devices[stage.device]
        stages.append(
            JobStageDocument(
                layers=(layer, layer + count - 1),
                device=device.name,
                gpus=plan.space.sizes.tp,
                forward_ms=int(forward[position]) / PS_PER_MS,
                backward_ms=int(backward[position]) / PS_PER_MS,
                memory=memory[position],
                memory_limit_bytes=device.accelerator.memory_bytes,
            )
        )
        layer += count
    return JobTemplateDocument(
        stages=tuple(stages),
        nodes={
            device.name: number
            for device, number in zip(spec.devices, unit.nodes, strict=True)
            if number
        },
        pipelines_per_node_set=unit.replicas,
    )


def _time_shares(plan: JobPlan) -> TimeShares:
    """Return by activity the share of the used devices' time in an iteration, from t_std."""
    space = plan.space
    whole = plan.time_ps
    parts = np.zeros(5)
    groups = 0
    for pipeline in plan.pipelines:
        extra = stage_extras(space, pipeline)
        at_ends = np.zeros(len(extra), dtype=np.int64)
        stages = pipeline.template.stages
        at_ends[0] += space.costs[stages[0].device].embedding_ps
        at_ends[-1] += space.costs[stages[-1].device].head_ps
        synchronization, step = space.tail_parts_ps(pipeline.template.unit, plan.dp)
        for position, stage in enumerate(stages):
            cost = space.costs[stage.device]
            collective = stage.blocks * cost.tensor_parallel_ps
            block = stage.blocks * cost.block_ps - collective + int(at_ends[position])
            transfer = int(extra[position] - at_ends[position])
            parts += (
                pipeline.microbatches * block,
                pipeline.microbatches * collective,
                pipeline.microbatches * transfer,
                synchronization,
                step,
            )
            groups += 1
    computing, collective, transfer, synchronization, step = (parts / (groups * whole)).tolist()
    return TimeShares(
        computing=computing,
        tensor_parallel=collective,
        transfers=transfer,
        bubble=1 - computing - collective - transfer - synchronization - step,
        synchronization=synchronization,
        optimizer=step,
    )


def _alternative(other: JobPlan, plan: JobPlan) -> JobAlternative:
    distinct = {pipeline.template: pipeline for pipeline in other.pipelines}
    memory = max(
        part.total for pipeline in distinct.values() for part in stage_memory(other, pipeline)
    )
    return JobAlternative(
        parallelism_of(other), times_of(other), memory, other.time_ps / plan.time_ps
    )
