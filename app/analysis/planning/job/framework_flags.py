"""Flags of Megatron-Core, TorchTitan and DeepSpeed for a plan, and the parts without flags.

For Megatron-Core 0.16, TorchTitan 0.2 and DeepSpeed 0.19.
"""

from __future__ import annotations

import json
from collections import Counter

from app.analysis.planning.job.document import FrameworkFlags
from app.analysis.planning.job.space import JobPlan
from app.analysis.planning.job.spec import Recompute
from app.analysis.planning.transformer import Attention

_UNLIKE = (
    "pipelines of unlike devices, stages or shares of the batch: every data-parallel rank has as "
    "many stages, cut alike, and as many microbatches"
)


def framework_flags(plan: JobPlan) -> tuple[FrameworkFlags, ...]:
    """Return the flags of each framework for the pipeline with the most microbatches."""
    return (_megatron(plan), _torchtitan(plan), _deepspeed(plan))


def _blocks(plan: JobPlan) -> tuple[int, ...]:
    """Return the number of blocks of each stage of the pipeline with the most microbatches."""
    pipeline = max(plan.pipelines, key=lambda item: item.microbatches)
    return tuple(stage.blocks for stage in pipeline.template.stages)


def _unlike(plan: JobPlan) -> tuple[str, ...]:
    """Return the note that no framework supports unequal pipelines; empty if all are equal."""
    shapes = {
        (tuple(stage.blocks for stage in pipeline.template.stages), pipeline.microbatches)
        for pipeline in plan.pipelines
    }
    return () if len(shapes) == 1 else (_UNLIKE,)


def _replicas(plan: JobPlan) -> int:
    """Return the least number of pipelines that share a node."""
    return min(pipeline.template.unit.replicas for pipeline in plan.pipelines)


def _places_pipelines(plan: JobPlan) -> bool:
    """Return whether ranks are numbered by pipeline: each node holds stages of one pipeline."""
    return plan.dp > 1 and plan.pp > 1 and _replicas(plan) == 1 and plan.space.slots > 1


def _node_order(plan: JobPlan, *, by_pipeline: bool = False) -> tuple[str, ...]:
    """Return how to order the nodes, if flags do not say it; empty if any order does.

    The frameworks number ranks by tensor-parallel rank, then by data-parallel rank, then by stage:
    the first nodes hold the first stage of all pipelines.

    Parameters
    ----------
    by_pipeline : bool
        Whether flags number the ranks by stage before the data-parallel rank.
    """
    devices = plan.space.spec.devices
    if plan.pp > 1 and plan.dp > 1 and not by_pipeline and _replicas(plan) < plan.space.slots:
        text = (
            "the placement: a node holds several stages of a pipeline here, and by default the "
            "data-parallel ranks of one stage"
        )
        return (text,)
    if len(devices) == 1:
        return ()
    orders = {tuple(stage.device for stage in item.template.stages) for item in plan.pipelines}
    if len(orders) > 1:
        return ("the order of nodes: pipelines have different types in different order",)
    kinds = dict.fromkeys(orders.pop())
    pipelines = plan.pipelines[:1] if by_pipeline else plan.pipelines
    used = Counter(kind for kind, _ in {node for item in pipelines for node in item.nodes})
    text = ", then ".join(f"{used[kind]} × {devices[kind].name}" for kind in kinds)
    each = " for each pipeline" if by_pipeline else ""
    return (f"the order of nodes{each}: start {text}",)


def _megatron(plan: JobPlan) -> FrameworkFlags:
    sizes, spec, blocks = plan.space.sizes, plan.space.spec, _blocks(plan)
    flags = [
        f"--tensor-model-parallel-size {sizes.tp}",
        f"--pipeline-model-parallel-size {len(blocks)}",
        f"--micro-batch-size {sizes.microbatch}",
        f"--global-batch-size {spec.global_batch}",
        f"--seq-length {spec.transformer.sequence}",
    ]
    flags.append(f"--attention-backend {spec.transformer.attention}")
    if sizes.tp > 1:
        flags.append("--sequence-parallel")
    if spec.shard_optimizer:
        flags.append("--use-distributed-optimizer --overlap-grad-reduce")
    if sizes.interleave > 1:
        flags.append(f"--num-layers-per-virtual-pipeline-stage {blocks[0] // sizes.interleave}")
    elif len(set(blocks)) > 1:
        layout = "|".join(
            f"{'E' if i == 0 else ''}{'t' * count}{'L' if i == len(blocks) - 1 else ''}"
            for i, count in enumerate(blocks)
        )
        flags.append(f'--pipeline-model-parallel-layout "{layout}"')
    if sizes.recompute is Recompute.SELECTIVE:
        flags.append("--recompute-activations")
    elif sizes.recompute is Recompute.FULL:
        flags.append("--recompute-granularity full --recompute-method uniform")
        flags.append("--recompute-num-layers 1")
    placed = _places_pipelines(plan)
    if placed:
        flags.append("--use-tp-pp-dp-mapping")
    unsaid = (*_unlike(plan), *_node_order(plan, by_pipeline=placed))
    return FrameworkFlags("Megatron-Core", " ".join(flags), unsaid)


def _torchtitan(plan: JobPlan) -> FrameworkFlags:
    sizes, spec, blocks = plan.space.sizes, plan.space.spec, _blocks(plan)
    flags = [
        f"--parallelism.tensor_parallel_degree {sizes.tp}",
        f"--parallelism.pipeline_parallel_degree {len(blocks)}",
    ]
    replicas = "shard" if spec.shard_optimizer else "replicate"
    flags.append(f"--parallelism.data_parallel_{replicas}_degree {plan.dp}")
    pipeline = max(plan.pipelines, key=lambda item: item.microbatches)
    if len(blocks) > 1:
        schedule = "Interleaved1F1B" if sizes.interleave > 1 else "1F1B"
        flags.append(f"--parallelism.pipeline_parallel_schedule {schedule}")
        flags.append(f"--parallelism.pipeline_parallel_microbatch_size {sizes.microbatch}")
        # By default TorchTitan gives the first and the last stage a block less than the others.
        flags.append("--parallelism.pipeline_parallel_first_stage_less_layers 0")
        flags.append("--parallelism.pipeline_parallel_last_stage_less_layers 0")
        if sizes.interleave > 1:
            each = blocks[0] // sizes.interleave
            flags.append(f"--parallelism.pipeline_parallel_layers_per_stage {each}")
    flags.append(f"--training.local_batch_size {pipeline.microbatches * sizes.microbatch}")
    flags.append(f"--training.global_batch_size {spec.global_batch}")
    flags.append(f"--training.seq_len {spec.transformer.sequence}")
    modes = {
        Recompute.NONE: "none",
        Recompute.SELECTIVE: "selective",
        Recompute.FULL: "full",
    }
    flags.append(f"--activation_checkpoint.mode {modes[sizes.recompute]}")
    unsaid = [*_unlike(plan), *_node_order(plan)]
    if spec.transformer.attention is Attention.UNFUSED:
        unsaid.append("attention that stores its scores: its attention is flash attention")
    if spec.shard_optimizer:
        unsaid.append(
            "an optimizer that alone is divided over data-parallel ranks (ZeRO-1): fully sharded "
            "data parallelism divides weights and gradients too"
        )
    if sizes.recompute is Recompute.SELECTIVE:
        unsaid.append("recomputation of attention's scores alone: its selective mode saves more")
    if len(set(blocks)) > 1:
        ends, starts = 0, []
        for count in blocks[:-1]:
            ends += count
            starts.append(f"layers.{ends}")
        unsaid.append(
            "unequal stages by a flag: list each stage's modules as "
            "parallelism.module_fqns_per_model_part of its configuration; stages after the first "
            f"begin with {' '.join(starts)}"
        )
    return FrameworkFlags("TorchTitan", " ".join(flags), tuple(unsaid))


def _deepspeed(plan: JobPlan) -> FrameworkFlags:
    sizes, spec, blocks = plan.space.sizes, plan.space.spec, _blocks(plan)
    pipeline = max(plan.pipelines, key=lambda item: item.microbatches)
    config = {
        "train_batch_size": spec.global_batch,
        "train_micro_batch_size_per_gpu": sizes.microbatch,
        "gradient_accumulation_steps": pipeline.microbatches,
        "zero_optimization": {"stage": int(spec.shard_optimizer)},
        "bf16": {"enabled": True},
    }
    text = json.dumps(config)
    if len(blocks) > 1:
        method = "uniform" if len(set(blocks)) == 1 else "parameters"
        topology = f"num_pp={len(blocks)}, num_mp={sizes.tp}, num_dp={plan.dp}"
        text += (
            f" and PipelineModule(layers, topology=PipeModelDataParallelTopology({topology}), "
            f'partition_method="{method}", '
            f"activation_checkpoint_interval={int(sizes.recompute is Recompute.FULL)})"
        )
    elif sizes.tp > 1:
        text = json.dumps(config | {"tensor_parallel": {"autotp_size": sizes.tp}})
    unsaid = [*_unlike(plan), *_node_order(plan)]
    if len(blocks) > 1 and sizes.tp > 1:
        unsaid.append("tensor-parallel layers of a pipeline: the model brings them")
    if len(blocks) == 1 and sizes.recompute is Recompute.FULL:
        unsaid.append("recomputation of whole blocks: the model checkpoints them itself")
    if sizes.interleave > 1:
        unsaid.append("interleaved stages: it runs 1F1B")
    if sizes.recompute is Recompute.SELECTIVE:
        unsaid.append("recomputation of attention alone: the model does it itself")
    if len(set(blocks)) > 1:
        unsaid.append(
            f"unequal stages of {', '.join(map(str, blocks))} blocks: it balances parameters"
        )
    return FrameworkFlags("DeepSpeed", text, tuple(unsaid))
