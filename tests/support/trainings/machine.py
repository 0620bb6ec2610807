"""Hosts and devices of all ranks of a job, and the events that a profiler records of them.

Every rank runs the same program. A host calls operators, which launch kernels, and continues.
Streams run their kernels in order; a collective moves data once all ranks of its group have
started it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]

_BEGIN_NS = 5_000_000_000
_OPERATOR_NS = 9_000
_LAUNCH_NS = 4_000
_NOISE = 0.008
COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Event:
    """A recorded event of all ranks, which differ in its times only, shape (ranks,)."""

    category: str  # as Kineto calls it
    name: str
    track: str  # thread or stream
    start: Times
    end: Times
    external: int = 0  # the operator that it is, or that launched it
    correlation: int = 0  # of a launch and of what it launched
    group: str = ""  # of a collective
    collective: str = ""
    number: int = 0  # of the collective in its group


@dataclass(frozen=True, slots=True)
class Conditions:
    """Factors of the hardware's speed for each rank; shapes (ranks,)."""

    computes: NDArray[np.float64]  # how long kernels take there, 1.0 as usual
    hosts: NDArray[np.float64]  # how long calls take there
    links: Mapping[tuple[int, ...], float] = field(default_factory=dict)  # of groups of ranks


class Machine:
    """Runs a program on all ranks.

    Parameters
    ----------
    groups : mapping of str to sequence of sequence of int
        The ranks of all process groups, by the program's name of the kind.
    lead_ns : int
        How far a host runs ahead of its device before its queue is full.
    latency_ns : int
        Time from a launch to its start on an idle device.
    """

    def __init__(
        self,
        ranks: int,
        groups: Mapping[str, Sequence[Sequence[int]]],
        conditions: Conditions,
        *,
        lead_ns: int,
        latency_ns: int,
        seed: int,
    ) -> None:
        self.ranks = ranks
        self.groups = groups
        self.events: list[Event] = []
        self.host = np.full(ranks, _BEGIN_NS, np.int64)
        self.recording = True
        self._at = conditions
        self._lead_ns = lead_ns
        self._latency_ns = latency_ns
        self._draw = np.random.default_rng(seed)
        self._streams: dict[str, Times] = {}
        self._thread = "main"
        self._operators: list[int] = [0]
        self._last = 1000
        self._numbers: dict[str, int] = {}

    def stream(self, name: str = COMPUTE) -> Times:
        """Return the time of each rank until which a stream is busy."""
        return self._streams.setdefault(name, np.full(self.ranks, _BEGIN_NS, np.int64))

    @contextmanager
    def operator(self, name: str, *, thread: str | None = None) -> Iterator[None]:
        """Call an operator of the framework, optionally on another thread."""
        yield from self._within("cpu_op", name, thread, _OPERATOR_NS)

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """Annotate a range on the host."""
        yield from self._within("user_annotation", name, None, 500)

    def _within(self, category: str, name: str, thread: str | None, takes: int) -> Iterator[None]:
        outer, self._thread = self._thread, thread or self._thread
        self._last += 1
        number = self._last
        self._operators.append(number)
        start = self.host.copy()
        self._spend(takes)
        place = len(self.events)
        yield
        self._spend(300)
        self._operators.pop()
        self._record(Event(category, name, self._thread, start, self.host.copy(), number), place)
        self._thread = outer

    def kernel(
        self, name: str, takes_ns: float, *, stream: str = COMPUTE, steady: bool = False
    ) -> None:
        """Launch a kernel; a `steady` one takes no longer on a slow device."""
        number = self._launch("cudaLaunchKernel")
        self._run("kernel", name, takes_ns, stream, number, steady=steady)

    def graph(self, kernels: Sequence[tuple[str, float]]) -> None:
        """Launch a graph of kernels in one call."""
        number = self._launch("cudaGraphLaunch")
        for name, takes_ns in kernels:
            self._run("kernel", name, takes_ns, COMPUTE, number, steady=False)

    def copy(self, name: str, takes_ns: float, *, stream: str = COMPUTE) -> None:
        """Copy between the host and the device."""
        number = self._launch("cudaMemcpyAsync")
        self._run("gpu_memcpy", name, takes_ns, stream, number, steady=True)

    def join(self, stream: str, other: str = COMPUTE) -> None:
        """Let a stream wait for the work that another stream has so far."""
        self._streams[stream] = np.maximum(self.stream(stream), self.stream(other))

    def synchronize(self) -> None:
        """Let hosts wait for their devices."""
        start = self.host.copy()
        self.host = np.maximum(self.host, self.stream()) + 8_000
        waited = Event(
            "cuda_runtime", "cudaStreamSynchronize", self._thread, start, self.host.copy()
        )
        self._record(waited)

    def load(self, takes_ns: Times) -> None:
        """Fetch a batch."""
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        with self.annotation(name):
            self.host = self.host + takes_ns

    def collective(
        self, name: str, group: str, takes_ns: float, *, after: str = COMPUTE, waits: bool = False
    ) -> Times:
        """Start a collective when a stream reaches it, and return the times of its end.

        Parameters
        ----------
        name : str
            PyTorch's name: ``allreduce``, ``_allgather_base``.
        waits : bool
            Whether the computing stream waits for it.
        """
        with self.operator(f"c10d::{name}_"), self.operator("record_param_comms"):
            record = self._operators[-1]
            number = self._launch("cudaLaunchKernelExC")
            stream = f"nccl {group}"
            start = np.maximum(self.stream(stream), self.host + self._latency_ns)
            start = np.maximum(start, self.stream(after))
            end = start.copy()
            for ranks in self.groups[group]:
                members = list(ranks)
                link = self._at.links.get(tuple(members), 1.0)
                end[members] = start[members].max() + int(takes_ns * link * self._noise())
            self._streams[stream] = end.copy()
            order = self._numbers[group] = self._numbers.get(group, 0) + 1
            self._record(
                Event("kernel", "", stream, start, end, record, number, group, name, order)
            )
        if waits:
            self.wait(end)
        return end

    def wait(self, end: Times) -> None:
        """Let the computing stream wait for a collective."""
        self._streams[COMPUTE] = np.maximum(self.stream(), end)

    def _launch(self, name: str) -> int:
        # A device has a finite queue, so a host that is too far ahead waits.
        self.host = np.maximum(self.host, self.stream() - self._lead_ns)
        self._last += 1
        start = self.host.copy()
        self._spend(_LAUNCH_NS)
        external = self._operators[-1]
        self._record(
            Event("cuda_runtime", name, self._thread, start, self.host.copy(), external, self._last)
        )
        return self._last

    def _run(
        self, category: str, name: str, takes_ns: float, stream: str, number: int, *, steady: bool
    ) -> None:
        start = np.maximum(self.stream(stream), self.host + self._latency_ns)
        speed = np.ones(self.ranks) if steady else self._at.computes
        noise = 1 + _NOISE * self._draw.standard_normal(self.ranks)
        end = start + (takes_ns * noise * speed).astype(np.int64)
        self._streams[stream] = end.copy()
        self._record(Event(category, name, stream, start, end, self._operators[-1], number))

    def _spend(self, takes_ns: int) -> None:
        self.host = self.host + (takes_ns * self._at.hosts).astype(np.int64)

    def _noise(self) -> float:
        return float(1 + _NOISE * self._draw.standard_normal())

    def _record(self, event: Event, place: int | None = None) -> None:
        if self.recording:
            self.events.insert(len(self.events) if place is None else place, event)
