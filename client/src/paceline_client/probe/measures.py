"""What a probe measures of a device: one function each, in `MEASURES`.

Each takes the device and returns one figure, larger is faster; None where the device cannot do it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

# One operation first pays for kernels that are chosen and memory that is taken.
_WARM_UP: Final = 3
# Operations that are timed as one: else waiting for a device would be a part of the time.
_IN_A_ROW: Final = 4
_LEAST_ROUNDS: Final = 5
# Large enough that the device is the limit, not what starts its kernels.
_MATRIX: Final = {"cuda": 8192, "cpu": 768}
_COPIED_BYTES: Final = {"cuda": 1 << 30, "cpu": 64 << 20}
_MOVED_BYTES: Final = 256 << 20
_REDUCED_BYTES: Final = {"cuda": 256 << 20, "cpu": 16 << 20}
# Of the memory that is free: a probe leaves the rest alone.
_AT_MOST_OF_FREE: Final = 8
_TERA: Final = 1e12
_GIGA: Final = 1e9


@dataclass(frozen=True)
class Bench:
    """A device that is measured: PyTorch, the device, and how long each measure runs."""

    torch: Any
    device: Any  # `torch.device`
    seconds: float
    processes: int  # of this probe, one a device
    join: Callable[[], object]  # begins a group of all of them

    @property
    def kind(self) -> str:
        """Return ``cuda`` or ``cpu``."""
        return str(self.device.type)

    @property
    def is_gpu(self) -> bool:
        """Return whether it is a GPU."""
        return self.kind == "cuda"

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.is_gpu:
            self.torch.cuda.synchronize(self.device)

    def buffer(self, size_bytes: int) -> Any:  # noqa: ANN401 - a tensor
        """Return that many bytes of the device's memory, or fewer where little is free."""
        if self.is_gpu:
            free, _ = self.torch.cuda.mem_get_info(self.device)
            size_bytes = min(size_bytes, free // _AT_MOST_OF_FREE)
        return self.torch.zeros(size_bytes, dtype=self.torch.uint8, device=self.device)


def matmul_tflops(bench: Bench) -> float | None:
    """Return the TFLOP/s of a product of square matrices: bfloat16 on GPUs, else float32."""
    n, torch = _MATRIX[bench.kind], bench.torch
    dtype = torch.bfloat16 if bench.is_gpu else torch.float32
    # Random: GPUs clock higher on zeros.
    one, other = (torch.randn(n, n, device=bench.device).to(dtype) for _ in range(2))
    product = torch.empty_like(one)
    return 2 * n**3 / _seconds(bench, lambda: torch.matmul(one, other, out=product)) / _TERA


def memory_copy_gbs(bench: Bench) -> float | None:
    """Return the GB/s of a copy within the device's memory, bytes read and written."""
    source = bench.buffer(_COPIED_BYTES[bench.kind])
    target = bench.torch.empty_like(source)
    size_bytes = int(source.numel())
    return 2 * size_bytes / _seconds(bench, lambda: target.copy_(source)) / _GIGA


def host_to_device_gbs(bench: Bench) -> float | None:
    """Return the GB/s of a copy from pinned memory of the host; None where there is no GPU."""
    if not bench.is_gpu:
        return None
    device, host = _pair(bench)
    size_bytes = int(host.numel())
    return size_bytes / _seconds(bench, lambda: device.copy_(host, non_blocking=True)) / _GIGA


def device_to_host_gbs(bench: Bench) -> float | None:
    """Return the GB/s of a copy to pinned memory of the host; None where there is no GPU."""
    if not bench.is_gpu:
        return None
    device, host = _pair(bench)
    size_bytes = int(host.numel())
    return size_bytes / _seconds(bench, lambda: host.copy_(device, non_blocking=True)) / _GIGA


def all_reduce_gbs(bench: Bench) -> float | None:
    """Return the bus GB/s of an all-reduce among the machine's devices; None where there is one.

    Bus bandwidth is that of nccl-tests: bytes a second times 2 (n - 1) / n, which does not
    depend on the number of devices.
    """
    n = bench.processes
    if n == 1:
        return None
    torch = bench.torch
    bench.join()
    data = bench.buffer(_REDUCED_BYTES[bench.kind]).view(torch.float32)
    # Equally often on all, or some would wait for others that are done.
    took_s = _seconds(bench, lambda: torch.distributed.all_reduce(data), rounds=_LEAST_ROUNDS)
    size_bytes = int(data.numel() * data.element_size())
    return 2 * (n - 1) / n * size_bytes / took_s / _GIGA


MEASURES: Final[Mapping[str, Callable[[Bench], float | None]]] = {
    measure.__name__: measure
    for measure in (
        matmul_tflops,
        memory_copy_gbs,
        host_to_device_gbs,
        device_to_host_gbs,
        all_reduce_gbs,
    )
}


def _pair(bench: Bench) -> tuple[Any, Any]:
    device = bench.buffer(_MOVED_BYTES)
    return device, bench.torch.empty(device.numel(), dtype=device.dtype, pin_memory=True)


def _seconds(bench: Bench, operation: Callable[[], object], *, rounds: int | None = None) -> float:
    """Return how long an operation takes: the median of rounds, as many as fit into the time."""
    for _ in range(_WARM_UP):
        operation()
    bench.wait()
    took: list[float] = []
    until = time.perf_counter() + bench.seconds
    while len(took) < (rounds or _LEAST_ROUNDS) or (rounds is None and time.perf_counter() < until):
        begin = time.perf_counter()
        for _ in range(_IN_A_ROW):
            operation()
        bench.wait()
        took.append((time.perf_counter() - begin) / _IN_A_ROW)
    return statistics.median(took)
