"""Runs as PyTorch's profiler writes them: one JSON file a rank."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.support.gpu_profiles.job import GpuJob, Naming, Sharding
from tests.support.gpu_profiles.simulation import Collective, Run, groups_of, simulate

_MAIN, _AUTOGRAD = 4000, 4100
_COMPUTE, _COMM = 7, 20
_NS_PER_US = 1000
_BASE_NS = 1_760_000_000_000_000_000
_KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)",
}
_GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
_RANGES = {
    "allreduce": "nccl:all_reduce",
    "_allgather_base": "nccl:_all_gather_base",
    "_reduce_scatter_base": "nccl:_reduce_scatter_base",
}
_CALLS = {
    "allreduce": "c10d::allreduce_",
    "_allgather_base": "c10d::_allgather_base_",
    "_reduce_scatter_base": "c10d::_reduce_scatter_base_",
}


def write_job(job: GpuJob, folder: Path, *, without: tuple[int, ...] = ()) -> Run:
    """Simulate a job and write a file for each rank; return what happened."""
    run = simulate(job)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(job.ranks):
        if rank not in without:
            text = json.dumps(document(job, run, rank)).encode()
            path = folder / f"rank{rank}.pt.trace.json.gz"
            path.write_bytes(gzip.compress(text, 1, mtime=0))
    return run


def document(job: GpuJob, run: Run, rank: int) -> dict[str, Any]:
    """Return the file of one rank."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": job.ranks,
            "pg_config": _config(job, rank),
            "nccl_version": "2.21.5",
        },
        "host_name": f"node-{job.host_of(rank):02d}",
        "baseTimeNanoseconds": _BASE_NS,
        "traceEvents": _Writer(job, rank).events(run),
    }


def _mine(job: GpuJob, group: str, rank: int) -> list[int]:
    return list(next(ranks for ranks in groups_of(job)[group] if rank in ranks))


def _names(job: GpuJob) -> dict[str, tuple[str, str]]:
    """Return the name and the description of each group that the job has."""
    if job.sharding is not Sharding.HSDP:
        return {"world": ("0", "default_pg")}
    said = ("mesh_dp_shard", "mesh_dp_replicate") if job.named_mesh else ("undefined", "undefined")
    return {"world": ("0", "default_pg"), "shard": ("1", said[0]), "replica": ("2", said[1])}


def _config(job: GpuJob, rank: int) -> list[dict[str, Any]]:
    found = []
    for group, (name, said) in _names(job).items():
        ranks = _mine(job, group, rank)
        found.append({"pg_name": name, "pg_desc": said, "pg_size": len(ranks), "ranks": ranks})
    return found


class _Writer:
    def __init__(self, job: GpuJob, rank: int) -> None:
        self._job = job
        self._rank = rank
        self._clock = job.clock_ns * job.host_of(rank)
        self._events: list[dict[str, Any]] = []
        self._number = 1000
        self._seq: dict[str, int] = {}

    def events(self, run: Run) -> list[dict[str, Any]]:
        rank = self._rank
        self._meta("process_name", {"name": "python"})
        for one in run.ranges:
            if not self._job.numbered and one.name.startswith("ProfilerStep"):
                continue
            self._number += 1
            thread = _AUTOGRAD if one.backward else _MAIN
            category = "cpu_op" if one.backward else "user_annotation"
            start, end = int(one.start[rank]), int(one.end[rank])
            self._event(category, one.name, thread, start, end, {"External id": self._number})
        for kernel in run.kernels:
            called = int(kernel.called[rank])
            thread = _AUTOGRAD if kernel.backward else _MAIN
            number = self._launch("aten::mm", thread, called, 2_000)
            args = {"device": 0, "stream": _COMPUTE, **number}
            self._event(
                "kernel",
                kernel.name,
                _COMPUTE,
                int(kernel.start[rank]),
                int(kernel.end[rank]),
                args,
            )
        for collective in run.collectives:
            self._collective(collective)
        return self._events

    def _collective(self, one: Collective) -> None:
        job, rank = self._job, self._rank
        thread = _AUTOGRAD if one.backward else _MAIN
        called = int(one.called[rank])
        self._number += 1
        self._event(
            "cpu_op",
            _CALLS[one.name],
            thread,
            called,
            called + 5_000,
            {"External id": self._number},
        )
        naming = job.naming
        name, said = _names(job)[one.group]
        ranks = _mine(job, one.group, rank)
        seq = self._seq[name] = self._seq.get(name, 0) + 1
        details = {
            "Collective name": one.name,
            "Process Group Name": name,
            "Process Group Description": said,
            "Process Group Ranks": str(ranks),
            "Group size": len(ranks),
            "In msg nelems": 4096,
            "dtype": "BFloat16",
            "Seq": seq,
        }
        if naming is Naming.RANGES:
            self._event("user_annotation", _RANGES[one.name], thread, called, called + 4_500, {})
            details = {}
        number = self._launch("record_param_comms", thread, called, 4_000, details)
        kernel = _GENERIC if naming is Naming.GENERIC else _KERNELS[one.name]
        args: dict[str, Any] = {"device": 0, "stream": _COMM + int(name), **number}
        if naming is Naming.FULL:
            args |= details
        start, end = int(one.start[rank]), int(one.end[rank])
        self._event("kernel", kernel, _COMM + int(name), start, end, args)

    def _launch(
        self,
        operator: str,
        thread: int,
        called: int,
        takes: int,
        args: dict[str, Any] | None = None,
    ) -> dict[str, int]:
        """Write an operator, its launch and the arrow to its kernel; return its numbers."""
        self._number += 1
        number = {"External id": self._number, "correlation": self._number}
        external = {"External id": self._number}
        self._event("cpu_op", operator, thread, called, called + takes, external | (args or {}))
        at = called + 500
        self._event("cuda_runtime", "cudaLaunchKernel", thread, at, at + 1_000, number)
        self._events.append(
            {
                "ph": "s",
                "id": self._number,
                "pid": _MAIN,
                "tid": thread,
                "ts": self._us(at),
                "cat": "ac2g",
                "name": "ac2g",
            }
        )
        return number

    def _event(  # noqa: PLR0917 - the fields of an event
        self, category: str, name: str, thread: int, start: int, end: int, args: dict[str, Any]
    ) -> None:
        on_device = category == "kernel"
        self._events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0 if on_device else _MAIN,
                "tid": thread,
                "ts": self._us(start),
                "dur": (end - start) / _NS_PER_US,
                "args": args,
            }
        )

    def _meta(self, name: str, args: dict[str, Any]) -> None:
        self._events.append(
            {"name": name, "ph": "M", "ts": 0, "pid": _MAIN, "tid": 0, "args": args}
        )

    def _us(self, time: int) -> float:
        return (time + self._clock) / _NS_PER_US
