"""Profiler files of a simulated training, as PyTorch's Kineto writes them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from tests.support.gpu_profiles.job import Job, Style, Writer
from tests.support.gpu_profiles.machine import (
    AUTOGRAD,
    MAIN,
    WARM_UP,
    Collective,
    Kernel,
    Machine,
    Span,
)

Event = dict[str, object]

_BASE_NS: Final = 1_759_277_232_000_000_000  # Kineto's base of times
_STARTED_NS: Final = 1_764_000_000_000_000_000
_TRUNCATED: Final = 30  # ranks of a group that a file lists
_OLD_KERNELS: Final = {
    "AllReduce_Sum_f32": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "AllGather": "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
    "ReduceScatter_Sum_bf16": "ncclKernel_ReduceScatter_RING_LL_Sum___nv_bfloat16(ncclWorkElem)",
}


class _Clock:
    """The clock of a rank's host."""

    def __init__(self, style: Style, random: np.random.Generator) -> None:
        """Draw how far the clock is off, and how much faster it runs."""
        self.whole = style.writer is Writer.OLD
        offset = int(random.uniform(-style.clock_ns, style.clock_ns))
        self.origin = _STARTED_NS + offset - (0 if self.whole else _BASE_NS)
        self.speed = 1 + random.uniform(-style.drift_ppm, style.drift_ppm) * 1e-6

    def ns(self, time: float) -> int:
        """Return what the clock shows at a true time, ns after the base."""
        return self.origin + round(time * self.speed)

    def us(self, ns: int) -> float | int:
        """Return a time or a duration in the unit and precision of the file."""
        return ns // 1000 if self.whole else ns / 1000


def write(machine: Machine, style: Style, folder: Path) -> None:
    """Write a file for each rank into a folder."""
    random = np.random.default_rng(machine.job.seed + 1)
    for rank in range(machine.job.ranks):
        clock = _Clock(style, random)
        pid = 4000 + rank % 8 * 13 + 1
        name = f"rank{rank}.json"
        if style.named_by_host:
            host = f"gpu-{rank // 8:03}"
            name = f"{host}_{pid}.{_STARTED_NS + rank * 1_234_567}.pt.trace.json"
        document = _header(machine.job, style, rank)
        document["traceEvents"] = list(_Rank(machine, style, rank, clock, pid).events())
        text = json.dumps(document).encode()
        path = folder / (f"{name}.gz" if style.compressed else name)
        path.write_bytes(gzip.compress(text, 1) if style.compressed else text)


def _header(job: Job, style: Style, rank: int) -> Event:
    info: Event = {"backend": "nccl", "rank": rank, "world_size": job.ranks}
    document: Event = {"schemaVersion": 1, "distributedInfo": info}
    document["deviceProperties"] = [
        {"id": rank % 8, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_899_345_920}
    ]
    if style.writer is Writer.OLD:
        return document
    groups = {0: "default_pg", 1: "undefined"}
    info["pg_count"] = _groups(job)
    info["pg_config"] = [
        {
            "pg_name": str(group),
            "pg_desc": groups[group],
            "backend_config": "cuda:nccl",
            "pg_size": job.ranks,
            "ranks": list(range(job.ranks)),
        }
        for group in range(_groups(job))
    ]
    info["nccl_version"] = "2.21.5"
    document["displayTimeUnit"] = "ms"
    document["baseTimeNanoseconds"] = _BASE_NS
    return document


def _groups(job: Job) -> int:
    return job.streams if job.mode.value == "DDP" else 1


class _Rank:
    """The events of one rank's file."""

    def __init__(self, machine: Machine, style: Style, rank: int, clock: _Clock, pid: int) -> None:
        """Take what the rank did during the recording."""
        self.machine, self.style, self.rank, self.clock, self.pid = machine, style, rank, clock, pid
        self.threads = {MAIN: pid, AUTOGRAD: pid + 417}
        self.spans = [span for span in machine.spans if span.step >= WARM_UP]
        self.kernels = [k for k in machine.kernels if k.step >= WARM_UP]
        if style.cut_rank == rank:
            self.kernels = self._cut()

    def events(self) -> Iterator[Event]:
        """Yield the events: names of processes, hosts' ranges, devices' kernels, arrows."""
        yield self._meta("process_name", self.pid, 0, {"name": "python3.11"})
        yield self._meta("process_labels", self.pid, 0, {"labels": "CPU"})
        yield self._meta("process_labels", self.rank % 8, 0, {"labels": f"GPU {self.rank % 8}"})
        for thread in self.threads.values():
            yield self._meta(
                "thread_name", self.pid, thread, {"name": f"thread {thread} (python3)"}
            )
        for number, span in enumerate(self.spans):
            yield self._span(span, number)
            if self.style.memory and span.name.startswith(("aten::", "FSDP::all_gather_copy")):
                yield from self._memory(span, number)
        for kernel in self.kernels:
            yield self._kernel(kernel)
        yield from self._annotations()
        yield from self._arrows()
        stop = self.clock.ns(max(self.spans[-1].end[self.rank], self.kernels[-1].end[self.rank]))
        yield {
            "ph": "i",
            "s": "g",
            "name": "Record Window End",
            "pid": "",
            "tid": "",
            "ts": self.clock.us(stop),
        }

    def _cut(self) -> list[Kernel]:
        last = [k for k in self.kernels if k.step == self.kernels[-1].step]
        middle = (last[0].begin[self.rank] + last[-1].end[self.rank]) / 2
        return [k for k in self.kernels if k.step < last[0].step or k.begin[self.rank] < middle]

    def _meta(self, name: str, pid: int, tid: int, args: Event) -> Event:
        start = self.clock.us(self.clock.ns(self.spans[0].begin[self.rank]))
        return {"name": name, "ph": "M", "ts": start, "pid": pid, "tid": tid, "args": args}

    def _times(self, begin: float, end: float) -> tuple[float | int, float | int]:
        first, last = self.clock.ns(begin), self.clock.ns(end)
        return self.clock.us(first), self.clock.us(last - first)

    def _span(self, span: Span, number: int) -> Event:
        ts, dur = self._times(span.begin[self.rank], span.end[self.rank])
        args: Event = {"External id": span.external}
        if span.correlation is not None:
            args |= {"cbid": 211, "correlation": span.correlation}
        else:
            args["Ev Idx"] = number
            if span.sequence is not None:
                args |= {"Sequence number": span.sequence, "Fwd thread id": span.thread}
            args |= self._collective(span.collective)
        return {
            "ph": "X",
            "cat": span.category,
            "name": span.name,
            "pid": self.pid,
            "tid": self.threads[span.thread],
            "ts": ts,
            "dur": dur,
            "args": args,
        }

    def _kernel(self, kernel: Kernel) -> Event:
        ts, dur = self._times(kernel.begin[self.rank], kernel.end[self.rank])
        device = self.rank % 8
        args: Event = {
            "External id": kernel.external,
            "device": device,
            "context": 1,
            "stream": kernel.stream,
            "correlation": kernel.correlation,
        }
        if kernel.category == "kernel":
            args |= {"queued": 0, "grid": [128, 1, 1], "block": [256, 1, 1], "shared memory": 0}
        else:
            args |= {"bytes": 1_048_576, "memory bandwidth (GB/s)": 17.5}
        return {
            "ph": "X",
            "cat": kernel.category,
            "name": self._kernel_name(kernel),
            "pid": device,
            "tid": kernel.stream,
            "ts": ts,
            "dur": dur,
            "args": args | self._collective(kernel.collective),
        }

    def _kernel_name(self, kernel: Kernel) -> str:
        if kernel.collective is None:
            return kernel.name
        if self.style.writer is Writer.OLD:
            return _OLD_KERNELS[kernel.name]
        return f"ncclDevKernel_{kernel.name}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

    def _collective(self, collective: Collective | None) -> Event:
        """Return the fields of `record_param_comms`."""
        if collective is None or self.style.writer is Writer.OLD:
            return {}
        ranks = [str(rank) for rank in range(self.machine.job.ranks)]
        listed = ranks if len(ranks) <= _TRUNCATED else [*ranks[:_TRUNCATED], "..."]
        fields: Event = {
            "Collective name": collective.name,
            "In msg nelems": collective.elements_in,
            "Out msg nelems": collective.elements_out,
            "Group size": len(ranks),
            "dtype": "Float" if collective.name.startswith("allreduce") else "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": str(collective.group),
            "Process Group Description": "undefined" if collective.group else "default_pg",
            "Process Group Ranks": f"[{', '.join(listed)}]",
        }
        if self.style.writer is Writer.NUMBERED:
            fields["Seq"] = collective.sequence
        return fields

    def _annotations(self) -> Iterator[Event]:
        """Yield the twins on device streams of hosts' annotations."""
        times: dict[tuple[int, int], tuple[Span, float, float]] = {}
        for kernel in self.kernels:
            if kernel.annotation is None or kernel.annotation.step < WARM_UP:
                continue
            key = (kernel.annotation.external, kernel.stream)
            begin, end = kernel.begin[self.rank], kernel.end[self.rank]
            _, first, last = times.get(key, (kernel.annotation, begin, end))
            times[key] = kernel.annotation, min(first, begin), max(last, end)
        for (external, stream), (span, begin, end) in times.items():
            ts, dur = self._times(begin, end)
            yield {
                "ph": "X",
                "cat": "gpu_user_annotation",
                "name": span.name,
                "pid": self.rank % 8,
                "tid": stream,
                "ts": ts,
                "dur": dur,
                "args": {"External id": external},
            }

    def _arrows(self) -> Iterator[Event]:
        """Yield the arrows from launches to kernels, and from operators to their backwards."""
        launches = {s.correlation: s for s in self.spans if s.correlation is not None}
        for kernel in self.kernels:
            launch = launches[kernel.correlation]
            begin = self.clock.us(self.clock.ns(launch.begin[self.rank]))
            arrive = self.clock.us(self.clock.ns(kernel.begin[self.rank]))
            common: Event = {"id": kernel.correlation, "cat": "ac2g", "name": "ac2g"}
            thread = self.threads[launch.thread]
            yield {"ph": "s", "pid": self.pid, "tid": thread, "ts": begin, **common}
            device = {"pid": self.rank % 8, "tid": kernel.stream, "ts": arrive, "bp": "e"}
            yield {"ph": "f", **device, **common}
        for span in self.spans:
            if span.sequence is None or "evaluate_function" in span.name:
                continue
            event: Event = {
                "ph": "s" if span.thread == MAIN else "f",
                "id": span.sequence,
                "pid": self.pid,
                "tid": self.threads[span.thread],
                "ts": self.clock.us(self.clock.ns(span.begin[self.rank])),
                "cat": "fwdbwd",
                "name": "fwdbwd",
            }
            yield event if span.thread == MAIN else {**event, "bp": "e"}

    def _memory(self, span: Span, number: int) -> Iterator[Event]:
        """Yield an allocation within a range, as `profile_memory=True` records it."""
        middle = (span.begin[self.rank] + span.end[self.rank]) / 2
        size = 512 * (number % 97 + 1) * (-1 if number % 2 else 1)
        yield {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": self.pid,
            "tid": self.threads[span.thread],
            "ts": self.clock.us(self.clock.ns(middle)),
            "args": {
                "Total Reserved": 24_696_061_952,
                "Total Allocated": 12_348_030_976 + size,
                "Bytes": size,
                "Addr": 139_964_000_000_000 + number * 512,
                "Device Id": self.rank % 8,
                "Device Type": 1,
                "Ev Idx": number,
            },
        }
