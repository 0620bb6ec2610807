"""The order of computations on one pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.synthesis.job import JobModel, Schedule


@dataclass(frozen=True, slots=True)
class Computation:
    """Forward or backward of one microbatch through one model chunk."""

    forward: bool
    microbatch: int
    chunk: int


def stage_order(job: JobModel, stage: int) -> list[Computation]:
    """Return the computations of one step on `stage` in the order of their launch.

    GPipe does every forward, then every backward, both in microbatch order. 1F1B does one
    forward for each later stage, then alternates. The interleaved schedule is Megatron-LM's:
    microbatches go through the chunks in groups of PP.
    """
    pp, vpp = job.sizes.pp, job.sizes.vpp
    total = job.microbatches * vpp
    forwards = [_virtual(job, k, forward=True) for k in range(total)]
    backwards = [_virtual(job, k, forward=False) for k in range(total)]
    if job.schedule is Schedule.GPIPE:
        warm_up = total
    elif job.schedule is Schedule.ONE_F_ONE_B:
        warm_up = min(total, pp - 1 - stage)
    elif job.microbatches == pp:
        # Megatron-LM: with a single group there is nothing to alternate.
        warm_up = total
    else:
        warm_up = min(total, (pp - 1 - stage) * 2 + (vpp - 1) * pp)
    order = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - warm_up :]


def evaluation_order(job: JobModel) -> list[Computation]:
    """Return the computations of one evaluation step: forwards alone."""
    return [_virtual(job, k, forward=True) for k in range(job.microbatches * job.sizes.vpp)]


def _virtual(job: JobModel, k: int, *, forward: bool) -> Computation:
    pp, vpp = job.sizes.pp, job.sizes.vpp
    if vpp == 1:
        return Computation(forward=forward, microbatch=k, chunk=0)
    group, within = divmod(k, pp * vpp)
    chunk, offset = divmod(within, pp)
    return Computation(
        forward=forward,
        microbatch=group * pp + offset,
        chunk=chunk if forward else vpp - 1 - chunk,
    )
