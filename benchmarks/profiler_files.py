"""Time from files of PyTorch's profiler to the report, against `json.load`; part of `make bench`.

Both read the same files in turns; memory is that of separate processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from app.analysis.report.build import analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.cli.convert import read_recordings
from benchmarks.support.measuring import peak_bytes

RANKS: Final = 8
STEPS: Final = 3
KERNELS: Final = 25_000  # of a step; each comes with its operator, its launch and an arrow
LARGE_BYTES: Final = 1_000_000_000
_MIB: Final = 1024 * 1024
_FORWARD: Final = 0.3
_OPTIMIZER: Final = 0.02
_REDUCTIONS: Final = 40
_KERNEL_US: Final = 8
_MAIN, _AUTOGRAD = 1, 2
_LEAD_US: Final = 3_000
_PAIRS: Final = 2


def measure_profiler_files() -> Iterator[str]:
    """Yield the figures as lines of text."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        folder = Path(directory) / "ranks"
        folder.mkdir()
        for rank in range(RANKS):
            write_rank(folder / f"rank{rank}.json", rank, STEPS)
        ratios = []
        for _ in range(_PAIRS):
            base, ours = _plain_s(folder), _ours_s(folder)
            ratios.append(ours / base)
        yield (
            f"{RANKS} ranks, {STEPS} steps of {4 * KERNELS:,} events: json.load {base:.1f} s, "
            f"paceline analyze {ours:.1f} s, ratio {min(ratios):.2f} to {max(ratios):.2f}; "
            f"peak memory {_peak_mib(folder):.0f} MiB"
        )
        large = Path(directory) / "large.json"
        write_rank(large, 0, 1)
        steps = -(-LARGE_BYTES // large.stat().st_size)
        write_rank(large, 0, steps)
        gigabytes = large.stat().st_size / 1e9
        yield f"one file of {gigabytes:.2f} GB: peak memory {_peak_mib(large):.0f} MiB"


def write_rank(path: Path, rank: int, steps: int) -> None:
    """Write the file of one rank of a DDP job, in the profiler's format."""
    head = {
        "rank": rank,
        "world_size": RANKS,
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": RANKS, "ranks": [*range(RANKS)]}
        ],
    }
    with path.open("w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1760000000000000000,\n')
        file.write(f'  "distributedInfo": {json.dumps(head)},\n  "traceEvents": [\n')
        events = (event for step in range(steps) for event in _step(step))
        file.write(next(events))
        file.writelines(",\n" + event for event in events)
        file.write("\n  ]\n}\n")


def _step(step: int) -> Iterator[str]:
    begin = 1_000_000 + step * (KERNELS + _REDUCTIONS) * _KERNEL_US
    backward, optimizer = int(_FORWARD * KERNELS), int((1 - _OPTIMIZER) * KERNELS)
    at = [begin + number * _KERNEL_US for number in range(KERNELS + 1)]
    yield _host("user_annotation", f"ProfilerStep#{step}", 1, begin, at[-1] - begin, step + 1)
    node = "autograd::engine::evaluate_function: MmBackward0"
    yield _host("cpu_op", node, 2, at[backward], at[optimizer] - at[backward], step + 1)
    update = "Optimizer.step#AdamW.step"
    yield _host("user_annotation", update, 1, at[optimizer], at[-1] - at[optimizer], step + 1)
    every = (optimizer - backward) // _REDUCTIONS
    for number in range(KERNELS):
        identifier = step * KERNELS + number + 1000
        thread = _AUTOGRAD if backward <= number < optimizer else _MAIN
        reduces = thread == _AUTOGRAD and (number - backward) % every == every - 1
        yield _host("cpu_op", "aten::mm", thread, at[number], 6.125, identifier)
        yield (
            f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 40, '
            f'"tid": {thread},\n    "ts": {at[number] + 1}.250, "dur": 3.500,\n    "args": {{\n'
            f'      "External id": {identifier},"cbid": 211, "correlation": {identifier}\n    }}\n'
            "  }"
        )
        yield (
            f'  {{\n    "ph": "s", "id": {identifier}, "pid": 40, "tid": {thread}, '
            f'"ts": {at[number] + 1}.250,\n    "cat": "ac2g", "name": "ac2g"\n  }}'
        )
        name, stream, more = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 7, ""
        if reduces:
            name, stream = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", 20
            more = ',"Collective name": "allreduce", "Process Group Name": "0", "Group size": 8'
        yield (
            f'  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},\n'
            f'    "ts": {at[number] + _LEAD_US}.125, "dur": {_KERNEL_US - 1}.500,\n    "args": {{\n'
            f'      "External id": {identifier},"queued": 0, "device": 0, "context": 1, '
            f'"stream": {stream}, "correlation": {identifier}, "registers per thread": 168,\n'
            f'      "shared memory": 200704, "blocks per SM": 0.97, "grid": [128, 1, 1], '
            f'"block": [384, 1, 1]{more}\n    }}\n  }}'
        )


def _host(  # noqa: PLR0913, PLR0917 - the fields of an event
    category: str, name: str, thread: int, begin: int, takes: float, number: int
) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 40, '
        f'"tid": {thread},\n    "ts": {begin}.000, "dur": {takes:.3f},\n    "args": {{\n'
        f'      "External id": {number},"Record function id": 0, "Ev Idx": {number}\n    }}\n  }}'
    )


def _plain_s(folder: Path) -> float:
    began = time.process_time()
    for path in sorted(folder.iterdir()):
        with path.open(encoding="utf-8") as file:
            json.load(file)
    return time.process_time() - began


def _ours_s(folder: Path) -> float:
    began = time.process_time()
    _analyze(folder)
    return time.process_time() - began


def _analyze(path: Path) -> None:
    if path.is_dir():
        analyze(read_recordings([path], None, None).trace)
    else:
        decode(path, None, limits=Limits(), local=True, part=True)


def _peak_mib(path: Path) -> float:
    done = subprocess.run(  # noqa: S603 - this interpreter and our own program
        [sys.executable, "-m", "benchmarks.profiler_files", str(path)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(done.stdout) / _MIB


if __name__ == "__main__":
    pa.set_cpu_count(1)
    if len(sys.argv) > 1:
        _analyze(Path(sys.argv[1]))
        print(peak_bytes())
    else:
        for line in measure_profiler_files():
            print(line, flush=True)
