"""Random durations of a healthy job's operations, drawn from the job's cost model."""

from __future__ import annotations

import numpy as np

from app.analysis.quantities import FloatArray
from app.analysis.synthesis.execution import ExpertWork, StepWork
from app.analysis.synthesis.job import JobModel, stream
from app.analysis.synthesis.program import CODES, JobProgram
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    EMBEDDING_ALL_REDUCE,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GC,
    GRADS_REDUCE_SCATTER,
    LAYERNORM_ALL_REDUCE,
    OPTIMIZER,
    OPTIMIZER_CLIP,
    PARAMS_ALL_GATHER,
    SEPARATE_ALL_REDUCE,
)

COMPUTATION = (FORWARD_COMPUTE, BACKWARD_COMPUTE, OPTIMIZER)
PIPELINE_TRANSFERS = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)
# Duration of a transfer without a peer, as a share of a usual transfer: it is only a few calls on
# the host.
_EDGE_TRANSFER = 0.02


def healthy_work(job: JobModel, program: JobProgram, seed: int) -> StepWork:
    """Return random durations and launch delays for all steps of `job`, without injections."""
    duration = np.repeat(
        _nominal_ns(job, program)[:, None, None], job.steps * job.sizes.dp, axis=1
    ).reshape(len(program), job.steps, job.sizes.dp)
    _vary_computation(job, program, duration, stream(seed, "computation"))
    _hiccup(job, program, duration, stream(seed, "hiccups"))
    experts = _share_experts(job, program, duration) if job.experts_over > 1 else None
    _vary_transfers(job, program, duration, stream(seed, "transfers"))
    _vary_links(job, program, duration, stream(seed, "links"))
    delay = _launch_delays(job, program, stream(seed, "launches"))
    delay += _host_stalls(job, program, stream(seed, "host stalls"))
    return StepWork(
        program=program,
        duration_ns=duration,
        delay_ns=delay,
        late_ns=np.zeros_like(duration),
        late_rank=np.zeros(duration.shape, np.int16),
        experts=experts,
    )


def _nominal_ns(job: JobModel, program: JobProgram) -> FloatArray:
    costs, vpp = job.costs, job.sizes.vpp
    collectives = vpp * job.buckets
    by_type = {
        FORWARD_COMPUTE: costs.forward_ns / vpp,
        BACKWARD_COMPUTE: costs.backward_ns / vpp,
        **dict.fromkeys(PIPELINE_TRANSFERS, costs.p2p_ns),
        PARAMS_ALL_GATHER: costs.params_ns / collectives,
        GRADS_REDUCE_SCATTER: costs.grads_ns / collectives,
        SEPARATE_ALL_REDUCE: costs.separate_ns,
        LAYERNORM_ALL_REDUCE: costs.layernorm_ns,
        EMBEDDING_ALL_REDUCE: costs.embedding_ns,
        OPTIMIZER_CLIP: costs.clip_ns,
        OPTIMIZER: costs.optimizer_ns,
        GC: 0.0,
    }
    table = np.zeros(max(CODES.values()) + 1)
    for name, nominal in by_type.items():
        table[CODES[name]] = nominal
    nominal_ns: FloatArray = table[program.op]
    alone = [group.members[0] for group in program.groups if len(group.members) == 1]
    without_peer = np.isin(np.arange(len(program)), alone)
    nominal_ns[without_peer & program.of_types(*PIPELINE_TRANSFERS)] *= _EDGE_TRANSFER
    passes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
    first = passes & (program.stage == 0) & (program.chunk == 0)
    last = passes & (program.stage == job.sizes.pp - 1) & (program.chunk == vpp - 1)
    # Embedding and loss are given as shares of a whole stage, whose chunks each take 1 / vpp of it.
    nominal_ns[first] *= 1 + costs.embedding_fraction * vpp
    nominal_ns[last] *= 1 + costs.loss_fraction * vpp
    return nominal_ns


def _vary_computation(
    job: JobModel, program: JobProgram, duration: FloatArray, rng: np.random.Generator
) -> None:
    speed = _lognormal(rng, job.costs.worker_noise, (job.sizes.pp, 1, job.sizes.dp))
    mask = program.of_types(*COMPUTATION)
    shape = (int(mask.sum()), job.steps, job.sizes.dp)
    duration[mask] *= _lognormal(rng, job.costs.compute_noise, shape) * speed[program.stage[mask]]


def _hiccup(
    job: JobModel, program: JobProgram, duration: FloatArray, rng: np.random.Generator
) -> None:
    mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
    shape = (int(mask.sum()), job.steps, job.sizes.dp)
    hit = rng.random(shape) < job.costs.hiccup_probability
    duration[mask] *= 1 + np.where(hit, rng.exponential(job.costs.hiccup_fraction, shape), 0.0)


def _share_experts(job: JobModel, program: JobProgram, duration: FloatArray) -> ExpertWork:
    """Make the computations of ranks that share experts end together; experts take one half."""
    mask = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
    own = duration[mask]
    groups = own.reshape(*own.shape[:2], -1, job.experts_over)
    latest = np.broadcast_to(groups.max(axis=-1, keepdims=True), groups.shape).reshape(own.shape)
    experts = ExpertWork(np.zeros_like(duration), np.zeros((2, *duration.shape)))
    experts.takes_ns[mask] = latest / 2
    experts.ahead_ns[:, mask] = (latest - own) / 2
    duration[mask] = latest
    return experts


def _vary_links(
    job: JobModel, program: JobProgram, duration: FloatArray, rng: np.random.Generator
) -> None:
    """Give the links of each stage and DP rank, and each stage's collectives, a lasting speed."""
    pp, dp = job.sizes.pp, job.sizes.dp
    links = _lognormal(rng, job.costs.link_noise, (pp, dp))
    collectives = _lognormal(rng, job.costs.link_noise, (pp, 1))
    pairs = program.of_types(*PIPELINE_TRANSFERS)
    for group in program.groups:
        members = list(group.members)
        stages = program.stage[members]
        if pairs[members[0]]:
            # The link from the last stage back to the first one (virtual stages) counts as a link
            # of stage 0.
            lower = 0 if len(members) > 1 and np.ptp(stages) == pp - 1 > 1 else int(stages.max())
            duration[members] *= links[lower]
        elif group.across_dp and len(members) == 1:
            duration[members] *= collectives[stages[0]]


def _vary_transfers(
    job: JobModel, program: JobProgram, duration: FloatArray, rng: np.random.Generator
) -> None:
    costs, steps, dp = job.costs, job.steps, job.sizes.dp
    transfers = ~program.of_types(*COMPUTATION, GC)
    for group in program.groups:
        members = list(group.members)
        if not transfers[members[0]]:
            continue
        # All members of a group move the same data: they share one random factor, and then each end
        # gets a jitter.
        shape = (steps, 1 if group.across_dp else dp)
        common = _lognormal(rng, costs.transfer_noise, shape)
        unlucky = rng.random(shape) < costs.tail_probability
        common *= np.where(unlucky, 1 + rng.pareto(costs.tail_shape, shape), 1.0)
        duration[members] *= common
        duration[members] += rng.exponential(costs.member_jitter_ns, (len(members), steps, dp))


def _launch_delays(job: JobModel, program: JobProgram, rng: np.random.Generator) -> FloatArray:
    steps, dp = job.steps, job.sizes.dp
    delay = rng.exponential(job.costs.launch_overhead_ns, (len(program), steps, dp))
    # All stages of a DP rank wait for the same batch, so that they share one random delay.
    delay[list(program.first)] += rng.exponential(job.costs.data_loading_ns, (steps, dp))
    return delay


def _host_stalls(job: JobModel, program: JobProgram, rng: np.random.Generator) -> FloatArray:
    shape = (len(program), job.steps, job.sizes.dp)
    hit = rng.random(shape) < job.costs.host_stall_probability
    hit &= program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)[:, None, None]
    stalls: FloatArray = np.where(hit, rng.exponential(job.costs.host_stall_ns, shape), 0.0)
    return stalls


def _lognormal(rng: np.random.Generator, sigma: float, shape: tuple[int, ...]) -> FloatArray:
    """Return log-normal random factors with mean 1."""
    return rng.lognormal(-sigma * sigma / 2, sigma, shape)
