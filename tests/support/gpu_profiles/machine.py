"""Hosts that launch kernels ahead of their GPUs, streams in order, and collectives of all ranks.

All ranks run the same program, so a statement of it is executed for all ranks at once: times are
arrays with an entry for each rank. Nothing that a statement needs happens in a later statement of
any rank: streams are in order, events are recorded before they are waited for, and collectives are
issued in one order. So executing statements in program order gives exact times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.support.gpu_profiles.job import US, Fault, Job, Place

Times = NDArray[np.float64]  # ns, shape (ranks,)

MAIN: Final = 0
AUTOGRAD: Final = 1
COMPUTE: Final = 7  # number of PyTorch's default stream in profiler files

WARM_UP: Final = 2  # steps before the recording

_LAUNCH_NS: Final = 5 * US  # from the runtime's call to the kernel on an idle device
_CALL_NS: Final = 4 * US  # a call of the CUDA runtime
_QUEUE: Final = 1000  # kernels that a host may be ahead of its device
_END_SPREAD_NS: Final = 3 * US  # ranks leave a collective within this time


@dataclass(slots=True)
class Span:
    """A range of a host thread: an operator, an annotation, or a call of the CUDA runtime."""

    name: str
    category: str
    thread: int
    step: int
    external: int
    begin: Times
    end: Times
    correlation: int | None = None
    sequence: int | None = None  # of autograd: joins an operator to its backward
    collective: Collective | None = None


@dataclass(slots=True)
class Kernel:
    """An activity of a device stream."""

    name: str
    category: str
    stream: int
    step: int
    external: int
    correlation: int
    begin: Times
    end: Times
    annotation: Span | None  # innermost annotation of the launching thread
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective operation of all ranks."""

    name: str  # as `record_param_comms` names it
    group: int
    sequence: int  # within its group, from 1
    elements_in: int
    elements_out: int
    ready: Times  # when each rank was ready for it
    transfer_ns: float


@dataclass(slots=True)
class Machine:
    """Hosts and devices of all ranks while they run a job."""

    job: Job
    fault: Fault
    spans: list[Span] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    step: int = 0
    thread: int = MAIN
    step_ends: list[Times] = field(default_factory=list)
    host: Times = field(init=False)
    _free: dict[int, Times] = field(default_factory=dict)
    _group_free: dict[int, Times] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)
    _random: np.random.Generator = field(init=False)
    _rank_factor: Times = field(init=False)
    _host_factor: Times = field(init=False)
    _lengths: NDArray[np.float64] = field(init=False)
    _number: int = 0
    _annotations: tuple[list[Span], list[Span]] = field(default_factory=lambda: ([], []))

    def __post_init__(self) -> None:
        """Draw the ranks' lasting differences; start all hosts within 200 µs."""
        self._random = np.random.default_rng(self.job.seed)
        ranks = self.job.ranks
        self._rank_factor = np.exp(self._random.normal(0, 0.002, ranks))
        self._host_factor = np.exp(self._random.normal(0, 0.05, ranks))
        self.host = self._random.uniform(0, 200 * US, ranks)
        shape = (WARM_UP + self.job.steps, ranks)
        # A generator of its own: a job without its fault draws the same other numbers.
        drawn = np.random.default_rng((self.job.seed, 1)).normal(0, 1, shape)
        lengths = np.exp(self.fault.lengths * drawn)
        self._lengths = lengths / lengths[WARM_UP:].mean()

    def stream(self, number: int) -> Times:
        """Return when each rank's stream has done what was launched on it so far."""
        return self._free.setdefault(number, np.zeros(self.job.ranks))

    def work(self, duration_ns: float) -> None:
        """Let hosts work; each draws its own time."""
        noise = np.exp(self._random.normal(0, 0.1, self.job.ranks))
        self.host = self.host + duration_ns * self._host_factor * noise

    @contextmanager
    def range(
        self, name: str, category: str = "cpu_op", *, sequence: int | None = None
    ) -> Iterator[Span]:
        """Record a range around what hosts do inside of it."""
        span = self._span(name, category)
        span.sequence = sequence
        annotations = self._annotations[self.thread]
        if category == "user_annotation":
            annotations.append(span)
        yield span
        if category == "user_annotation":
            annotations.remove(span)
        self.work(1 * US)
        span.end = self.host

    def call(self, name: str, external: int, *, until: Times | None = None) -> int:
        """Call CUDA, which returns not before `until`; return the correlation of the call."""
        span = self._span(name, "cuda_driver" if name.startswith("cuL") else "cuda_runtime")
        span.external, span.correlation = external, span.external
        self.work(_CALL_NS)
        if until is not None:
            self.host = np.maximum(self.host, until)
        span.end = self.host
        assert span.correlation is not None
        return span.correlation

    def kernel(
        self, name: str, duration_ns: float, operator: Span, *, stream: int = COMPUTE
    ) -> None:
        """Launch a computing kernel, which a slow rank executes slower."""
        noise = np.exp(self._random.normal(0, self.job.noise, self.job.ranks))
        duration = duration_ns * self._rank_factor * noise
        if operator.sequence is not None:
            duration = duration * self._lengths[self.step]
        if self.fault.slow_rank is not None:
            duration[self.fault.slow_rank] *= self.fault.slow_factor
        self._hold_queue()
        launch = "cuLaunchKernel" if name.startswith("triton") else "cudaLaunchKernel"
        correlation = self.call(launch, operator.external)
        begin = np.maximum(self.stream(stream), self.host + _LAUNCH_NS)
        self._put(name, stream, operator, correlation, (begin, begin + duration))

    def copy_batch(self, operator: Span) -> None:
        """Copy a batch from the host to the device."""
        correlation = self.call("cudaMemcpyAsync", operator.external)
        begin = np.maximum(self.stream(COMPUTE), self.host + _LAUNCH_NS)
        name = "Memcpy HtoD (Pinned -> Device)"
        end = begin + 60 * US
        self._put(name, COMPUTE, operator, correlation, (begin, end), category="gpu_memcpy")

    def record(self, stream: int, operator: Span) -> Times:
        """Record an event on a stream; return when each rank's event completes."""
        self.call("cudaEventRecord", operator.external)
        return np.maximum(self.stream(stream), self.host)

    def wait(self, stream: int, event: Times, operator: Span) -> None:
        """Let a stream wait for an event."""
        self.call("cudaStreamWaitEvent", operator.external)
        self._free[stream] = np.maximum(self.stream(stream), event)

    def collective(
        self,
        operation: tuple[str, str, str],
        kernel: str,
        sizes: tuple[int, int],
        transfer_ns: float,
        *,
        stream: int,
        group: int = 0,
        after: Times | None = None,
    ) -> Times:
        """Issue a collective of all ranks, by its names in c10d, NCCL's range and the record.

        A kernel starts when its own rank is ready, and ends when the last rank was ready and the
        transfer is done. Kernels of one group run one after another, whatever their streams.

        Returns
        -------
        Times
            When each rank's kernel ends.
        """
        dispatched, annotated, recorded = operation
        noise = float(np.exp(self._random.normal(0, 0.02)))
        spread = self._random.uniform(0, _END_SPREAD_NS, self.job.ranks)
        transfer = transfer_ns * noise
        slow = self.fault.network_steps
        if slow is None or self.step - WARM_UP in slow:
            transfer *= self.fault.network_factor
        with self.range(dispatched):
            self.work(2 * US)
            with self.range("record_param_comms") as call:
                self.work(3 * US)
                with self.range(annotated, "user_annotation"):
                    event = self.record(COMPUTE, call) if after is None else after
                    self.wait(stream, event, call)
                    self._hold_queue()
                    correlation = self.call("cudaLaunchKernelExC", call.external)
                    begin = np.maximum(self.stream(stream), self.host + _LAUNCH_NS)
                    free = self._group_free.get(group)
                    if free is not None:
                        begin = np.maximum(begin, free + self.job.gap_ns)
                    end: Times = begin.max() + transfer + spread
                    activity = self._put(kernel, stream, call, correlation, (begin, end))
                self._group_free[group] = end
                number = self._sequences[group] = self._sequences.get(group, 0) + 1
                call.collective = Collective(recorded, group, number, *sizes, begin, transfer)
                activity.collective = call.collective
        return end

    def pause(self, place: Place) -> None:
        """Let the hosts pause that do so at this place of the step."""
        for pause in self.fault.pauses:
            if pause.place is place and pause.step + WARM_UP == self.step:
                self.host = self.host.copy()
                self.host[pause.rank] += pause.pause_ns

    def end_step(self) -> None:
        """Note when each rank's device has done the step, and begin the next one."""
        self.step_ends.append(self.stream(COMPUTE))
        self.step += 1

    def _hold_queue(self) -> None:
        if len(self.kernels) >= _QUEUE:
            self.host = np.maximum(self.host, self.kernels[-_QUEUE].begin)

    def _span(self, name: str, category: str) -> Span:
        self._number += 1
        span = Span(name, category, self.thread, self.step, self._number, self.host, self.host)
        self.spans.append(span)
        return span

    def _put(
        self,
        name: str,
        stream: int,
        operator: Span,
        correlation: int,
        times: tuple[Times, Times],
        *,
        category: str = "kernel",
    ) -> Kernel:
        """Put an activity on a stream, which is free again when it ends."""
        begin, end = times
        self._free[stream] = end
        around = self._annotations[self.thread]
        kernel = Kernel(
            name=name,
            category=category,
            stream=stream,
            step=self.step,
            external=operator.external,
            correlation=correlation,
            begin=begin,
            end=end,
            annotation=around[-1] if around else None,
        )
        self.kernels.append(kernel)
        return kernel


def step_time_ns(machine: Machine) -> float:
    """Return the mean time of a recorded step, by when the last device is done with each."""
    ends = [ends.max() for ends in machine.step_ends]
    return float(ends[-1] - ends[WARM_UP - 1]) / (len(ends) - WARM_UP)
