"""Kineto files as PyTorch's profiler writes them, for a pipeline of two stages."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from app.analysis.trace.decode import decode
from app.analysis.trace.model import SessionMeta, Trace
from tests.unit.analysis.trace.bodies import LIMITS

BASE_NS = 1_790_857_026_000_000_000
# Timestamps count from days ago: the fraction of a microsecond is near the resolution of a double.
FIRST_US = "4459370929637"
AT = 4_459_370_929_637_969


@dataclass
class KinetoFile:
    """The file of one rank of a job of DP 2 × PP 2, unless its groups differ."""

    rank: int = 2
    world: int = 4
    groups: dict[str, list[int]] = field(
        default_factory=lambda: {
            "default_pg": [0, 1, 2, 3],
            "mesh_pp": [0, 2],
            "mesh_dp": [2, 3],
        }
    )
    events: list[str] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)

    def add(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        *,
        cat: str = "user_annotation",
        tid: int = 7,
        **args: Any,  # noqa: ANN401 - what an event has
    ) -> None:
        """Add a range, with exactly three decimals in its times."""
        said = {key.replace("_", " ").strip(): value for key, value in args.items()}
        self.events.append(
            f'{{"ph":"X","cat":"{cat}","name":{json.dumps(name)},"pid":1,"tid":{tid},'
            f'"ts":{_us(start_ns)},"dur":{_us(duration_ns)},"args":{json.dumps(said)}}}'
        )

    def body(self) -> bytes:
        """Return the file as one line of JSON."""
        config = [
            {"pg_name": str(number), "pg_desc": name, "pg_size": len(ranks), "ranks": ranks}
            for number, (name, ranks) in enumerate(self.groups.items())
        ]
        head = {
            "schemaVersion": 1,
            "deviceProperties": [],
            "distributedInfo": {
                "backend": "gloo",
                "rank": self.rank,
                "world_size": self.world,
                "pg_config": config,
            },
            "host_name": f"node-{self.rank}",
            "baseTimeNanoseconds": BASE_NS,
            **self.fields,
        }
        text = json.dumps(head)[:-1] + ',"traceEvents":[' + ",".join(self.events) + "]}"
        return text.encode()


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def host_steps(steps: int = 2, **said: Any) -> KinetoFile:  # noqa: ANN401 - fields of the file
    """Return the file of stage 1 of 2 without a device: receives, computations and sends."""
    file = KinetoFile(**said)
    at = 4_459_370_929_637_969
    for step in range(steps):
        file.add(f"ProfilerStep#{step + 10}", at, 90_000_000)
        for mb in range(2):
            begin = at + mb * 40_000_000
            file.add(f"PP:1RECV_F{mb}", begin, 300_000)
            file.add("gloo:recv", begin + 100_001, 5_000_000)
            # The forward pass waits for its receive until 5.100001 ms.
            file.add(f"PP:1F{mb}", begin + 400_000, 14_600_000)
            file.add(f"PP:1B{mb}", begin + 15_000_003, 20_000_004)
            file.add(f"PP:1SEND_B{mb}", begin + 36_000_000, 200_000)
            file.add("gloo:send", begin + 36_100_000, 700_000)
        file.add("Optimizer.step#AdamW.step", at + 85_000_000, 1_000_000)
        at += 100_000_000
    return file


def two_stages(
    rank: int, steps: int = 8, world: int = 2, *, first: int = 10, numbered: bool = True
) -> KinetoFile:
    """Return the file of one stage of a consistent pipeline of two stages.

    The file has steps from `first` on, with their numbers if `numbered`.
    """
    file = KinetoFile(rank=rank, world=world, groups={"default_pg": list(range(world))})
    ms = 1_000_000
    for step in range(first - 10, first - 10 + steps):
        at = 4_459_370_929_637_969 + step * 100 * ms
        if numbered:
            file.add(f"ProfilerStep#{step + 10}", at, 100 * ms)
        for mb in range(3):
            forward = at + (1 + 10 * (mb + rank)) * ms
            backward = at + (41 + 10 * (mb + 1 - rank)) * ms
            if rank == 0:
                transfers = (("SEND_F", forward + 9 * ms), ("RECV_B", backward - ms))
            else:
                transfers = (("RECV_F", forward - ms), ("SEND_B", backward + 9 * ms))
            for action, begin in transfers:
                file.add(f"PP:{rank}{action}{mb}", begin, ms // 4)
                kind = "send" if action.startswith("SEND") else "recv"
                file.add(f"gloo:{kind}", begin + ms // 8, ms // 2)
            file.add(f"PP:{rank}F{mb}", forward, 9 * ms)
            file.add(f"PP:{rank}B{mb}", backward, 9 * ms)
        file.add("Optimizer.step#AdamW.step", at + 90 * ms, 5 * ms)
    return file


def device_file() -> KinetoFile:
    """Return a file with a device, whose kernels run long after their launches."""
    file = KinetoFile(rank=2)
    groups = {"Process_Group_Name": "3", "Process_Group_Description": "mesh_dp"}
    nccl = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    file.add("PP:1RECV_F0", AT, 50_000)
    file.add("cudaLaunchKernelExC", AT + 10_000, 900, cat="cuda_runtime", correlation=1)
    file.add(nccl, AT + 20_000, 4_000_000, cat="kernel", tid=20, correlation=1)
    file.add("PP:1F0", AT + 60_000, 80_000)
    file.add("cudaLaunchKernel", AT + 70_000, 900, cat="cuda_runtime", correlation=2)
    # Launched by autograd's thread, without a recorded runtime call.
    file.add("aten::mm", AT + 80_000, 900, cat="cpu_op", tid=99, External_id=55)
    file.add("gemm", AT + 4_100_000, 1_000_000, cat="kernel", tid=7, correlation=2)
    file.add("gemm", AT + 5_200_000, 300_000, cat="kernel", tid=7, correlation=77, External_id=55)
    for kernel in range(2):
        # Two kernels of one collective.
        file.add(
            "ncclDevKernel_ReduceScatter",
            AT + 6_000_000 + kernel * 100_000,
            90_000,
            cat="kernel",
            tid=21,
            Collective_name="_reduce_scatter_base",
            Seq=4,
            correlation=80,
            **groups,
        )
    file.add("PP:1F1", AT + 150_000, 10_000)
    return file


def operations(trace: Trace) -> dict[tuple[int, str, int], tuple[int, int]]:
    """Return start and duration of each operation by step, type and microbatch."""
    return {
        (step, trace.op_names[op], mb): (start, duration)
        for step, op, mb, start, duration in zip(
            trace.step.tolist(),
            trace.op.tolist(),
            trace.mb.tolist(),
            trace.start_ns.tolist(),
            trace.duration_ns.tolist(),
            strict=True,
        )
    }


def read_trace(file: KinetoFile, meta: SessionMeta | None = None) -> Trace:
    return decode(file.body(), meta, limits=LIMITS, part=True).trace
