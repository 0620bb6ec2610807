"""Files of trainings, one a rank, in the formats of several versions of PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.trainings.job import Kind, Style, Training, Writer
from tests.support.trainings.loops import Loop, groups_of
from tests.support.trainings.machine import COMPUTE, Event

_HOST_PID, _DEVICE_PID = 9120, 0
_THREADS: Final = {"main": 9120, "autograd": 9377}
_BASE_NS: Final = 1_750_000_000_000_000_000
_PER_HOST: Final = 2
_KERNELS: Final = {
    Writer.NOW: {
        "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "_reduce_scatter_base": (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        ),
        "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "all_to_allv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    },
    Writer.OLD: {
        "allreduce": "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)",
        "_allgather_base": "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
        "_reduce_scatter_base": "ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)",
        "broadcast": "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)",
        "all_to_allv": "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, ncclWork*)",
    },
}
_RANGES: Final = {
    "allreduce": "all_reduce",
    "_allgather_base": "_all_gather_base",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "broadcast": "broadcast",
    "all_to_allv": "all_to_all",
}
_HIP: Final = {
    "cudaLaunchKernel": "hipLaunchKernel",
    "cudaLaunchKernelExC": "hipExtLaunchKernel",
    "cudaGraphLaunch": "hipGraphLaunch",
    "cudaMemcpyAsync": "hipMemcpyAsync",
    "cudaStreamSynchronize": "hipStreamSynchronize",
}
_MESH: Final = {
    Kind.HSDP: {"inner": "mesh_dp_shard", "outer": "mesh_dp_replicate"},
    Kind.CONTEXT: {"inner": "mesh_cp", "outer": "mesh_dp"},
    Kind.EXPERTS: {"inner": "mesh_ep", "outer": "mesh_dp"},
}
_TENSOR_MESH: Final = {"inner": "mesh_tp", "outer": "mesh_dp"}
_SHAPES: Final = {
    "Record function id": 0,
    "Input Dims": [[8192, 4096], [], [4096, 4096]],
    "Input type": ["c10::BFloat16", "Scalar", "c10::BFloat16"],
    "Concrete Inputs": ["", "1.0", ""],
}
_ONE_CCL: Final = "void oneccl_ring_kernel<sycl::half, 16>"


def write_training(training: Training, style: Style, folder: Path) -> float:
    """Run a training, write its files, and return the duration of a step in ns."""
    loop = _run(training, style)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(training.ranks):
        path = folder / f"worker_rank{rank}.1750000000{rank}.pt.trace.json.gz"
        text = json.dumps(_document(training, style, loop.machine.events, rank))
        path.write_bytes(gzip.compress(text.encode(), 1, mtime=0))
    return loop.step_ns


def recorded(training: Training, style: Style, rank: int) -> dict[str, Any]:
    """Run a training and return the file of one rank."""
    return _document(training, style, _run(training, style).machine.events, rank)


def step_ns(training: Training, style: Style | None = None) -> float:
    """Return the duration of a recorded step of a training in ns."""
    return _run(training, style or Style()).step_ns


def _run(training: Training, style: Style) -> Loop:
    loop = Loop(training)
    windows = style.windows or ((0, training.steps - 1),)
    loop.run(lambda step: any(first <= step <= last for first, last in windows))
    return loop


def _document(training: Training, style: Style, events: list[Event], rank: int) -> dict[str, Any]:
    said: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 1}],
    }
    if style.rank_said:
        said["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": training.ranks,
        }
        if style.groups_listed and style.writer is not Writer.OLD:
            groups = [_group(training, style, name, rank) for name in groups_of(training)]
            said["distributedInfo"] |= {"pg_count": len(groups), "pg_config": groups}
    if style.writer is not Writer.OLD:
        said |= {"baseTimeNanoseconds": _BASE_NS, "host_name": f"gpu-{rank // _PER_HOST:03d}"}
    said |= {"displayTimeUnit": "ms", "traceName": f"rank{rank}.json"}
    written = _File(training, style, rank, events)
    said["traceEvents"] = list(written.head())
    for event in events:
        if event.name.startswith("ProfilerStep") and not style.numbered:
            continue
        said["traceEvents"] += written.of(event)
    return said


def _group(training: Training, style: Style, name: str, rank: int) -> dict[str, Any]:
    number = list(groups_of(training)).index(name)
    ranks = next(list(ranks) for ranks in groups_of(training)[name] if rank in ranks)
    mesh = _MESH.get(training.kind, _TENSOR_MESH)
    described = mesh.get(name, "default_pg") if style.groups_named else "undefined"
    return {
        "pg_name": str(number) if number == 0 else str(number * 7 + ranks[0]),
        "pg_desc": "default_pg" if number == 0 else described,
        "backend_config": "cuda:nccl",
        "pg_size": len(ranks),
        "ranks": ranks,
    }


class _File:
    def __init__(self, training: Training, style: Style, rank: int, events: list[Event]) -> None:
        self._of_record = {one.external: one for one in events if one.collective}
        self._training = training
        self._style = style
        self._rank = rank
        self._ahead = style.clock_ns * (rank // _PER_HOST)
        self._streams: dict[str, int] = {COMPUTE: 7}
        self._python = 0

    def head(self) -> Iterator[Mapping[str, Any]]:
        for pid, name in ((_HOST_PID, "python"), (_DEVICE_PID, "python")):
            yield {
                "name": "process_name",
                "ph": "M",
                "ts": self._us(0),
                "pid": pid,
                "tid": 0,
                "args": {"name": name},
            }
            yield {
                "name": "process_labels",
                "ph": "M",
                "ts": self._us(0),
                "pid": pid,
                "tid": 0,
                "args": {"labels": "CPU" if pid else "GPU 0"},
            }
        yield {
            "ph": "X",
            "cat": "Trace",
            "ts": self._us(0),
            "dur": 10**7,
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "name": "PyTorch Profiler (0)",
            "args": {"Op count": 0},
        }

    def of(self, event: Event) -> Iterator[Mapping[str, Any]]:
        """Yield the JSON events of an event."""
        on_device = event.category in {"kernel", "gpu_memcpy"}
        start, end = int(event.start[self._rank]), int(event.end[self._rank])
        tid: int = _THREADS.get(event.track, 0)
        if on_device:
            tid = self._streams.setdefault(event.track, 13 + 4 * len(self._streams))
        if event.correlation:
            pid = _DEVICE_PID if on_device else _HOST_PID
            yield self._flow("f" if on_device else "s", event.correlation, pid, tid, start)
        category, name, args = self._called(event)
        if on_device:
            args |= {"device": 0, "context": 1, "stream": tid, "queued": 0}
        if self._style.noise and category == "cpu_op":
            args |= _SHAPES | {"Sequence number": event.external, "Ev Idx": event.external}
            yield from self._python_of(start, end, tid)
        yield {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": _DEVICE_PID if on_device else _HOST_PID,
            "tid": tid,
            "ts": self._us(start),
            "dur": (end - start) / 1000,
            "args": args,
        }
        if category == "user_annotation" and self._style.writer is not Writer.OLD:
            # The profiler shows annotations on the device as well.
            yield {
                "ph": "X",
                "cat": "gpu_user_annotation",
                "name": name,
                "pid": _DEVICE_PID,
                "tid": 7,
                "ts": self._us(start + 5_000),
                "dur": (end - start) / 1000,
                "args": {"External id": event.external},
            }

    def _called(self, event: Event) -> tuple[str, str, dict[str, Any]]:
        """Return the category, the name and the arguments of an event."""
        writer = self._style.writer
        category, name = event.category, event.name
        args: dict[str, Any] = {}
        if event.external:
            args["External id"] = event.external
        if event.correlation:
            args["correlation"] = event.correlation
        if event.collective:
            name, more = self._collective(event)
            args |= more
        elif name == "record_param_comms":
            kernel = self._of_record.get(event.external)
            if writer is not Writer.OLD:
                args |= {} if kernel is None else self._details(kernel)
            elif kernel is not None:
                name, args = f"nccl:{_RANGES[kernel.collective]}", {}
                category = "user_annotation"
        elif writer is Writer.ROCM:
            name = _HIP.get(name, name)
        elif writer is Writer.XPU and category == "cuda_runtime":
            category, name = "xpu_runtime", "urEnqueueKernelLaunch"
        return category, name, args

    def _collective(self, event: Event) -> tuple[str, dict[str, Any]]:
        writer = self._style.writer
        if writer is Writer.ROCM:
            return "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", {}
        if writer is Writer.XPU:
            return _ONE_CCL, {}
        names = _KERNELS[Writer.OLD if writer is Writer.OLD else Writer.NOW]
        more = self._details(event) if writer is Writer.NOW and self._style.arguments else {}
        return names[event.collective], more

    def _details(self, event: Event) -> dict[str, Any]:
        group = _group(self._training, self._style, event.group, self._rank)
        return {
            "Collective name": event.collective,
            "In msg nelems": 4_194_304,
            "Out msg nelems": 4_194_304,
            "Group size": group["pg_size"],
            "dtype": "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group["pg_name"],
            "Process Group Description": group["pg_desc"],
            "Process Group Ranks": str(group["ranks"]),
            "Seq": event.number,
        }

    def _python_of(self, start: int, end: int, tid: int) -> Iterator[Mapping[str, Any]]:
        self._python += 1
        yield {
            "ph": "X",
            "cat": "python_function",
            "name": f"torch/nn/modules/linear.py({self._python % 300}): forward",
            "pid": _HOST_PID,
            "tid": tid,
            "ts": self._us(start - 200),
            "dur": (end - start + 300) / 1000,
            "args": {"Python id": self._python, "Python parent id": None, "Ev Idx": self._python},
        }
        yield {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": _HOST_PID,
            "tid": tid,
            "ts": self._us(start),
            "args": {"Total Allocated": 1, "Device Type": 1, "Device Id": 0, "Bytes": 512},
        }

    def _flow(self, phase: str, number: int, pid: int, tid: int, time: int) -> Mapping[str, Any]:
        return {
            "ph": phase,
            "id": number,
            "pid": pid,
            "tid": tid,
            "ts": self._us(time),
            "cat": "ac2g",
            "name": "ac2g",
            "bp": "e",
        }

    def _us(self, time: int) -> float:
        base = _BASE_NS if self._style.writer is Writer.OLD else 0
        return (time + self._ahead + base % 10**15) / 1000
