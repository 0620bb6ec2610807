"""Time and memory of a transformer's blocks, embedding and head on one device of a TP group.

A block's kernels run one after another: matrix products at a share of the device's peak, then
kernels that only move memory. Stored activations follow Korthikanti et al. (arXiv:2205.05198, Eq. 1
to 5) with sequence parallelism: s·b·h·(34 + 5·a·s/h)/t bytes per block with unfused attention;
without the attention scores (5·a·s/h) if they are recomputed; s·b·h·2/t if the whole block is
recomputed. Flash attention stores a sum per head and token instead of the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_high
from typing import Final

from app.analysis.planning.job.spec import JobDevice, JobSpec, Parallelism, Recompute
from app.analysis.planning.problem import LONGEST_PS
from app.analysis.planning.transformer import (
    BACKWARD_WORK,
    TRAFFIC_EFFICIENCY,
    Attention,
    Transformer,
)

PS: Final = 1e12
# Share of the links' nominal bandwidth that collectives reach.
LINK_EFFICIENCY: Final = 0.75
# Share of the nominal bandwidth that a send between stages reaches; it is lower because a send uses
# few channels.
SEND_EFFICIENCY: Final = 0.5
# Share of the device's peak that a transformer's matrix products reach, unless specified.
GEMM_EFFICIENCY: Final = 0.62
# Bytes that elementwise kernels move per stored byte of activations: one read, one write.
MOVED_PER_STORED: Final = 2.0
# Stored activations of a block in bytes per token and hidden unit (Korthikanti et al., Eq. 1):
# layer norms and attention without attention scores, and a feed-forward part of width 4·h.
STORED_ATTENTION: Final = 15.0
STORED_FEED_FORWARD: Final = 19.0
STORED_SCORES: Final = 5.0
STORED_INPUT: Final = 2.0
# Flash attention (Dao, arXiv:2307.08691): bytes that it stores per head and token, the logarithm of
# a softmax's sum; share of the scores that it computes under a causal mask; products of its
# backward pass beyond twice those of the forward pass (five instead of four for two).
FLASH_STORED_BYTES: Final = 4.0
FLASH_COMPUTED: Final = 0.5
FLASH_AGAIN: Final = 0.5
# Number of all-reduces of a block in each direction (Shoeybi et al., arXiv:1909.08053).
COLLECTIVES: Final = 2
# Share of the backward pass's collectives that the computation of weight gradients does not hide.
BACKWARD_EXPOSED: Final = 0.5
# Optimizer state in bytes per parameter (fp32 weights, two moments), and bytes per parameter that
# an optimizer step moves. Gradients narrower than fp32 also have an fp32 copy (Megatron-Core,
# distributed optimizer).
OPTIMIZER_BYTES: Final = 12.0
FP32_BYTES: Final = 4
OPTIMIZER_MOVED_BYTES: Final = 30.0
LOGIT_BYTES: Final = 4.0
# Share of a device's memory reserved for contexts, communication buffers and fragmentation.
MEMORY_MARGIN: Final = 0.08
# Share of the gradients' synchronization that the backward pass hides.
SYNC_OVERLAP: Final = 0.5


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Time of one microbatch and memory of one device, by part, on a device type."""

    block_forward_ps: int
    block_backward_ps: int  # recomputation included
    tensor_parallel_ps: int  # exposed collectives of forward and backward, included above
    embedding_ps: int
    head_ps: int
    receive_inside_ps: int  # transfer of activations or gradients inside a node
    receive_between_ps: int  # the same between nodes
    block_parameters: float
    table_parameters: float  # of the embedding, and of the head
    stored_bytes: float  # activations of a block, for each microbatch in flight
    working_bytes: float  # recomputed activations of one block at a time
    input_bytes: float  # input of the embedding, for each microbatch in flight
    logits_bytes: float
    capacity_bytes: float  # infinite without a limit

    @property
    def block_ps(self) -> int:
        """Return the time of a block, forward and backward, ps."""
        return self.block_forward_ps + self.block_backward_ps


@dataclass(frozen=True, slots=True)
class _Block:
    """Work of a block's forward pass on one of `tp` devices for `microbatch` sequences."""

    gemm_flops: float
    scores_flops: float  # of the scores that the kernels compute
    scores_again: float  # share of them that the backward pass computes again
    weights_bytes: float
    linear_bytes: float
    scores_bytes: float
    boundary_bytes: float


def _block(model: Transformer, tp: int, microbatch: int) -> _Block:
    h, s, tokens = model.hidden, model.sequence, model.sequence * microbatch
    attention = 2 * h * h + 2 * h * (h * model.kv_heads // model.heads)
    feed_forward = (3 if model.gated else 2) * h * model.intermediate
    used = attention + feed_forward * model.active_experts
    width = model.active_experts * feed_forward / (8 * h * h)
    stored = STORED_ATTENTION + STORED_FEED_FORWARD * width
    flash = model.attention is Attention.FLASH
    return _Block(
        gemm_flops=2.0 * tokens * used / tp,
        scores_flops=4.0 * tokens * s * h * (FLASH_COMPUTED if flash else 1.0) / tp,
        scores_again=FLASH_AGAIN if flash else 0.0,
        weights_bytes=float(used * model.number_bytes) / tp,
        linear_bytes=stored * tokens * h / tp,
        scores_bytes=(FLASH_STORED_BYTES if flash else STORED_SCORES * s)
        * model.heads
        * tokens
        / tp,
        boundary_bytes=float(tokens * h * model.number_bytes),
    )


def block_parameters(model: Transformer) -> int:
    """Return the number of parameters of a block, including all experts."""
    h = model.hidden
    attention = 2 * h * h + 2 * h * (h * model.kv_heads // model.heads)
    return attention + (3 if model.gated else 2) * h * model.intermediate * model.experts


def forward_flops(model: Transformer) -> float:
    """Return the FLOPs of the model's forward pass for one sequence (Narayanan et al., Eq. 3).

    Scores of all pairs of tokens count, computed or not, as published utilizations count them.
    """
    s, h = model.sequence, model.hidden
    block_flops = _block(model, 1, 1).gemm_flops + 4.0 * s * s * h
    return model.layers_count * block_flops + 2.0 * s * h * model.vocabulary


def stage_costs(
    spec: JobSpec, device: JobDevice, tp: int, microbatch: int, recompute: Recompute
) -> StageCosts:
    """Return the costs on one device of a device type in a TP group of `tp` devices."""
    model, chip = spec.transformer, device.accelerator
    block = _block(model, tp, microbatch)
    traffic = chip.bytes_per_s * TRAFFIC_EFFICIENCY
    flops = chip.peak_flops * device.efficiency

    def seconds(gemm: float, moved: float, weights: float = 0.0) -> float:
        return max(gemm / flops, weights / traffic) + moved / traffic

    scores_s = seconds(block.scores_flops, MOVED_PER_STORED * block.scores_bytes)
    linear_s = seconds(block.gemm_flops, MOVED_PER_STORED * block.linear_bytes, block.weights_bytes)
    link = device.link_gbytes_per_s
    collective_s = 0.0
    if tp > 1 and link is not None:
        moved = 2 * (tp - 1) / tp * block.boundary_bytes
        collective_s = COLLECTIVES * moved / (link * 1e9 * LINK_EFFICIENCY)
    forward_s, backward_s = linear_s + scores_s, BACKWARD_WORK * (linear_s + scores_s)
    own = _calibration(spec, device)
    repeated_s = {Recompute.NONE: 0.0, Recompute.SELECTIVE: scores_s, Recompute.FULL: forward_s}
    again_s = repeated_s[recompute] + block.scores_again * scores_s
    repeated = 1 if recompute is Recompute.FULL else 0
    stored = {
        Recompute.NONE: block.linear_bytes + block.scores_bytes,
        Recompute.SELECTIVE: block.linear_bytes,
        Recompute.FULL: STORED_INPUT * block.boundary_bytes / model.number_bytes / tp,
    }
    boundary = block.boundary_bytes / tp
    between = spec.inter_node_gbytes_per_s
    mine = None if between is None else between / spec.gpus_per_node
    tokens = model.sequence * microbatch
    logits = LOGIT_BYTES * tokens * model.vocabulary / tp
    head_s = seconds(2.0 * tokens * model.hidden * model.vocabulary / tp, MOVED_PER_STORED * logits)
    return StageCosts(
        block_forward_ps=_ps(forward_s * own[0] + collective_s),
        block_backward_ps=_ps(
            backward_s * own[1] + again_s * own[0] + (BACKWARD_EXPOSED + repeated) * collective_s
        ),
        tensor_parallel_ps=_ps((1 + BACKWARD_EXPOSED + repeated) * collective_s),
        embedding_ps=_ps((1 + BACKWARD_WORK) * 3 * boundary / traffic),
        head_ps=_ps((1 + BACKWARD_WORK) * head_s),
        receive_inside_ps=_ps(_transfer_s(boundary, link, SEND_EFFICIENCY)),
        receive_between_ps=_ps(_transfer_s(boundary, mine, SEND_EFFICIENCY)),
        block_parameters=block_parameters(model) / tp,
        table_parameters=float(model.vocabulary * model.hidden) / tp,
        stored_bytes=stored[recompute],
        working_bytes=block.linear_bytes + block.scores_bytes - stored[recompute],
        input_bytes=boundary / model.number_bytes,
        logits_bytes=logits,
        capacity_bytes=float("inf")
        if chip.memory_bytes is None
        else chip.memory_bytes * (1 - MEMORY_MARGIN),
    )


def _calibration(spec: JobSpec, device: JobDevice) -> tuple[float, float]:
    """Return a block's measured ÷ predicted time, forward and backward; 1 without measurements."""
    model = spec.transformer
    blocks = [
        layer
        for layer in model.measured
        if layer.device == device.name and 0 < layer.layer <= model.layers_count
    ]
    if not blocks:
        return 1.0, 1.0
    predicted_s = _alone_s(spec, device)
    forward = median_high([layer.forward_ms / 1e3 / predicted_s for layer in blocks])
    backward = [
        layer.backward_ms / 1e3 / (BACKWARD_WORK * predicted_s)
        for layer in blocks
        if layer.backward_ms is not None
    ]
    return forward, median_high(backward) if backward else forward


def alone_ms(
    spec: JobSpec, device: JobDevice, sizes: Parallelism, forward_ms: float, backward_ms: float
) -> tuple[float, float]:
    """Return a block's forward and backward time on one device, ms, from its times in a job.

    Input of `_calibration`. Predicted collectives are subtracted, at most half of the measured
    time; the plan adds them for its own TP size.

    Parameters
    ----------
    sizes : Parallelism
        Sizes of the running job; `spec` has its microbatch and no measured times.
    forward_ms, backward_ms : float
        Measured times of one microbatch in the TP group, with collectives and recomputation.
    """
    costs = stage_costs(spec, device, sizes.tp, sizes.microbatch, sizes.recompute)
    repeated = 1 if sizes.recompute is Recompute.FULL else 0
    collective_ps = costs.tensor_parallel_ps / (1 + BACKWARD_EXPOSED + repeated)
    exposed_ps = (BACKWARD_EXPOSED + repeated) * collective_ps
    forward_ps = costs.block_forward_ps - collective_ps
    again_ps = costs.block_backward_ps - exposed_ps - BACKWARD_WORK * forward_ps
    measured_ps = forward_ms * PS / 1e3, backward_ms * PS / 1e3
    ahead = max(measured_ps[0] - collective_ps, measured_ps[0] / 2) / forward_ps
    off_ps = exposed_ps + again_ps * ahead
    behind = max(measured_ps[1] - off_ps, measured_ps[1] / 2) / (BACKWARD_WORK * forward_ps)
    predicted_ms = _alone_s(spec, device) * 1e3
    return ahead * predicted_ms, behind * BACKWARD_WORK * predicted_ms


def _alone_s(spec: JobSpec, device: JobDevice) -> float:
    """Return the predicted time of a block's forward pass on a single device, s."""
    model, chip = spec.transformer, device.accelerator
    block = _block(model, 1, model.microbatch)
    traffic = chip.bytes_per_s * TRAFFIC_EFFICIENCY
    flops = (block.gemm_flops + block.scores_flops) / (chip.peak_flops * device.efficiency)
    return flops + MOVED_PER_STORED * (block.linear_bytes + block.scores_bytes) / traffic


def _transfer_s(size: float, gbytes_per_s: float | None, efficiency: float) -> float:
    return 0.0 if gbytes_per_s is None else size / (gbytes_per_s * 1e9 * efficiency)


def _ps(seconds: float) -> int:
    return int(min(round(seconds * PS), LONGEST_PS))


def static_bytes_per_parameter(spec: JobSpec, dp: int) -> tuple[float, float, float]:
    """Return weights, gradients and optimizer state of a device, in bytes per parameter."""
    share = dp if spec.shard_optimizer else 1
    copied = FP32_BYTES if spec.gradient_bytes < FP32_BYTES else 0
    state = (OPTIMIZER_BYTES + copied) / share
    return float(spec.transformer.number_bytes), float(spec.gradient_bytes), state


def least_bytes(spec: JobSpec) -> float:
    """Return a lower bound of the total memory of all devices in any plan, bytes."""
    model, dp = spec.transformer, spec.fixed.dp or 1
    parameters = model.layers_count * block_parameters(model) + 2 * model.vocabulary * model.hidden
    return parameters * dp * sum(static_bytes_per_parameter(spec, dp))


def room_bytes(spec: JobSpec) -> float:
    """Return the usable memory of all devices, without the margin, bytes; infinite if unlimited."""
    sizes = [(device.accelerator.memory_bytes, device.nodes) for device in spec.devices]
    each = [float("inf") if size is None else size * nodes for size, nodes in sizes]
    return sum(each) * spec.gpus_per_node * (1 - MEMORY_MARGIN)


def synchronization_ps(
    spec: JobSpec, slowest: JobDevice, parameters: float, dp: int, in_node: int
) -> tuple[int, int]:
    """Return the exposed part of the gradients' all-reduce and the optimizer step's time, ps.

    The all-reduce is hierarchical: first among the `in_node` replicas of a node, then across nodes,
    where each replica sends its part over its share of the node's link.

    Parameters
    ----------
    parameters : float
        Number of parameters of one device of the mean stage. Later stages may have more, but the
        pipeline's drain hides their excess.
    """
    chip = slowest.accelerator
    sharded = dp if spec.shard_optimizer else 1
    step_s = OPTIMIZER_MOVED_BYTES * parameters / sharded / (chip.bytes_per_s * TRAFFIC_EFFICIENCY)
    if dp == 1:
        return 0, _ps(step_s)
    size = parameters * spec.gradient_bytes
    inside, across = min(in_node, dp), -(-dp // in_node)
    total_s = _transfer_s(
        2 * (inside - 1) / inside * size, slowest.link_gbytes_per_s, LINK_EFFICIENCY
    )
    if spec.inter_node_gbytes_per_s is not None:
        mine = spec.inter_node_gbytes_per_s / spec.gpus_per_node
        total_s += _transfer_s(2 * (across - 1) / across * size / inside, mine, LINK_EFFICIENCY)
    return _ps((1 - SYNC_OVERLAP) * total_s), _ps(step_s)
