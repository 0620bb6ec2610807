"""Hosts that launch, streams that compute, and collectives that wait for the last rank.

All ranks run one program. Its instructions are gone through once, for all ranks at a time: a host
launches a kernel and goes on, a stream runs what it was given in order, a collective begins to move
data when all of its ranks have come to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.support.gpu_profiles.job import GpuJob, Sharding

Times = NDArray[np.int64]

_LAUNCH_NS = 6_000
_LATENCY_NS = 4_000
_NOISE = 0.01
# Processes begin at that time of the job's own clock.
_BEGIN_NS = 3_000_000_000


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel on each rank: when it was called and launched, and when it ran; shapes (ranks,)."""

    name: str
    backward: bool
    called: Times
    start: Times
    end: Times


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective on each rank, as `Kernel`."""

    name: str  # as PyTorch names it: ``allreduce``, ``_allgather_base``
    group: str
    backward: bool
    called: Times
    start: Times
    end: Times


@dataclass(frozen=True, slots=True)
class Range:
    """A range of the host on each rank."""

    name: str
    backward: bool
    start: Times
    end: Times


@dataclass(slots=True)
class Run:
    """What happened, and when each step ended on the devices."""

    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    step_ends: list[Times] = field(default_factory=list)

    @property
    def step_ns(self) -> float:
        """Return the mean step, but for the first, which fills what runs ahead."""
        ends = np.array([one.max() for one in self.step_ends])
        return float(np.diff(ends).mean())


def slowdown_of(job: GpuJob) -> float:
    """Return how much longer steps take than with nothing wrong."""
    return simulate(job).step_ns / simulate(job.healthy()).step_ns


def simulate(job: GpuJob) -> Run:
    """Run a job."""
    return _Simulation(job).run()


class _Simulation:
    def __init__(self, job: GpuJob) -> None:
        self._job = job
        self._noise = np.random.default_rng(job.seed)
        begin = np.full(job.ranks, _BEGIN_NS, np.int64)
        self._host, self._stream = begin.copy(), begin.copy()
        self._comm = {group: begin.copy() for group in ("world", "shard", "replica")}
        self._launch = np.full(job.ranks, _LAUNCH_NS, np.int64)
        if job.faults.late_rank is not None:
            self._launch[job.faults.late_rank] = job.faults.launch_ns
        self._speed = np.ones(job.ranks)
        if job.faults.slow_rank is not None:
            self._speed[job.faults.slow_rank] = job.faults.slow_factor
        self._found = Run()
        self._pending: list[Collective] = []

    def run(self) -> Run:
        for step in range(self._job.steps + 1):
            self._step(step)
        return self._found

    def _step(self, step: int) -> None:
        job, begin = self._job, self._host.copy()
        for round_ in range(job.rounds):
            self._load()
            forward = self._host.copy()
            self._forward()
            if job.sharding is Sharding.DDP:
                self._range("DistributedDataParallel.forward", forward)
            self._backward(last=round_ + 1 == job.rounds)
        if job.clips:
            self._kernel("norm", 100_000, backward=False)
            self._wait(self._collective("allreduce", "world", backward=False))
        opening = self._host.copy()
        for _ in range(4):
            self._kernel("multi_tensor_apply_kernel", job.optimizer_ns // 4, backward=False)
        self._range("Optimizer.step#AdamW.step", opening)
        self._found.step_ends.append(self._stream.copy())
        self._range(f"ProfilerStep#{step + 1}", begin)

    def _load(self) -> None:
        faults, begin = self._job.faults, self._host.copy()
        takes = np.full(self._job.ranks, self._job.loader_ns, np.int64)
        if faults.loading_ns:
            takes[slice(None) if faults.loading_rank is None else faults.loading_rank] += (
                faults.loading_ns
            )
            # A batch that is late has to be there before anything of the step is launched.
        self._host += takes
        self._range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin)

    def _forward(self) -> None:
        gathered = self._gather(0, backward=False)
        for layer in range(self._job.layers):
            self._wait(gathered)
            begin = self._host.copy()
            gathered = self._gather(layer + 1, backward=False)
            self._compute(self._job.forward_ns, backward=False)
            if self._job.sharding is not Sharding.DDP:
                self._range(f"FSDP::pre_forward ({layer})", begin)

    def _backward(self, *, last: bool) -> None:
        job = self._job
        reduced: list[Collective] = []
        gathered = self._gather(job.layers - 1, backward=True)
        for layer in reversed(range(job.layers)):
            self._wait(gathered)
            begin = self._host.copy()
            gathered = self._gather(layer - 1, backward=True)
            if job.recomputes:
                self._compute(job.forward_ns, backward=True)
            self._compute(2 * job.forward_ns, backward=True)
            if job.sharding is not Sharding.DDP:
                group = "world" if job.sharding is Sharding.FSDP else "shard"
                reduced.append(self._collective("_reduce_scatter_base", group, backward=True))
            elif last and layer % 2 == 0:
                reduced.append(self._collective("allreduce", "world", backward=True))
            if job.sharding is Sharding.HSDP and last:
                reduced.append(
                    self._collective("allreduce", "replica", backward=True, after=reduced[-1])
                )
            self._range("autograd::engine::evaluate_function: AddmmBackward0", begin, backward=True)
        for one in reduced:
            self._wait(one)

    def _gather(self, layer: int, *, backward: bool) -> Collective | None:
        if self._job.sharding is Sharding.DDP or not 0 <= layer < self._job.layers:
            return None
        group = "world" if self._job.sharding is Sharding.FSDP else "shard"
        return self._collective("_allgather_base", group, backward=backward)

    def _compute(self, takes_ns: int, *, backward: bool) -> None:
        for _ in range(self._job.kernels):
            self._kernel("sm90_xmma_gemm_bf16", takes_ns // self._job.kernels, backward=backward)

    def _kernel(self, name: str, takes_ns: int, *, backward: bool) -> None:
        called = self._call()
        start = np.maximum(self._stream, self._host + _LATENCY_NS)
        noise = 1 + _NOISE * self._noise.standard_normal(self._job.ranks)
        speed = self._speed if name.startswith("sm90") else 1.0
        self._stream = start + (takes_ns * noise * speed).astype(np.int64)
        self._found.kernels.append(Kernel(name, backward, called, start, self._stream.copy()))

    def _call(self) -> Times:
        """Let hosts call something, which is launched when they have gone on."""
        called = np.maximum(self._host, self._stream - self._job.lead_ns)
        self._host = called + self._launch
        return called

    def _collective(
        self, name: str, group: str, *, backward: bool, after: Collective | None = None
    ) -> Collective:
        called = self._call()
        begin = np.maximum(self._comm[group], self._host + _LATENCY_NS)
        begin = np.maximum(begin, self._stream if after is None else after.end)
        end = begin.copy()
        takes = self._job.transfer_ns * self._job.faults.link
        for ranks in self.groups(self._job)[group]:
            noise = 1 + _NOISE * self._noise.standard_normal()
            end[list(ranks)] = begin[list(ranks)].max() + int(takes * noise)
        self._comm[group] = end.copy()
        one = Collective(name, group, backward, called, begin, end)
        self._found.collectives.append(one)
        return one

    def _wait(self, one: Collective | None) -> None:
        if one is not None:
            self._stream = np.maximum(self._stream, one.end)

    def _range(self, name: str, begin: Times, *, backward: bool = False) -> None:
        self._found.ranges.append(Range(name, backward, begin, self._host.copy()))

    @staticmethod
    def groups(job: GpuJob) -> dict[str, Sequence[Sequence[int]]]:
        """Return the ranks of all groups of each name."""
        return groups_of(job)


def groups_of(job: GpuJob) -> dict[str, Sequence[Sequence[int]]]:
    """Return the ranks of all groups of each name."""
    shards = job.shards
    return {
        "world": [range(job.ranks)],
        "shard": [range(at, at + shards) for at in range(0, job.ranks, shards)],
        "replica": [range(at, job.ranks, shards) for at in range(shards)],
    }
