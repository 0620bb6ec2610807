"""Flags of Megatron-Core, TorchTitan and DeepSpeed for a plan, and the parts without flags.

For Megatron-Core 0.16, TorchTitan 0.2 and DeepSpeed 0.19.
"""

from __future__ import annotations

import json

from app.analysis.planning.job.document import FrameworkFlags
from app.analysis.planning.job.space import JobPlan
from app.analysis.planning.job.spec import Recompute

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


def _megatron(plan: JobPlan) -> FrameworkFlags:
    sizes, spec, blocks = plan.space.sizes, plan.space.spec, _blocks(plan)
    flags = [
        f"--tensor-model-parallel-size {sizes.tp}",
        f"--pipeline-model-parallel-size {len(blocks)}",
        f"--micro-batch-size {sizes.microbatch}",
        f"--global-batch-size {spec.global_batch}",
        f"--seq-length {spec.transformer.sequence}",
    ]
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
    return FrameworkFlags("Megatron-Core", " ".join(flags), _unlike(plan))


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
    unsaid = [*_unlike(plan)]
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
    unsaid = [*_unlike(plan)]
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
