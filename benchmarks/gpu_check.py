"""`make gpu-check`: the hooks on a real GPU: order of events, clocks, and what recording costs.

A small transformer under FSDP2, on one GPU, is recorded for some steps to nowhere. Every operation
has to lie within its step by the host's clock, in the order of the program, with the waits for
earlier reductions inside of the backward. Without a GPU it says so and does nothing.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

NOWHERE: Final = "http://127.0.0.1:9"
STEPS: Final = 40
WARM_UP: Final = 10
# By so much a device's clock may be off the host's: an event is read a little after it happened.
CLOCK_NS: Final = 2_000_000
_GZIP: Final = b"\x1f\x8b"
_ORDER: Final = ("forward-compute", "backward-compute", "optimizer")


@dataclass(frozen=True)
class Row:
    """A recorded operation."""

    step: int
    op: str
    start_ns: int
    end_ns: int


def main() -> int:
    """Return 0 where all holds, or there is nothing to check."""
    try:
        import torch  # noqa: PLC0415 - not installed everywhere
    except ImportError:
        print("skipped: PyTorch is not installed")
        return 0
    if not torch.cuda.is_available():
        print("skipped: there is no GPU")
        return 0
    with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as name:
        faults = list(_checked(torch, Path(name)))
    for fault in faults:
        print(f"wrong: {fault}")
    return 1 if faults else 0


def _checked(torch: Any, folder: Path) -> Iterator[str]:  # noqa: ANN401 - not typed here
    import paceline_client.torch as paceline  # noqa: PLC0415 - needs PyTorch
    from paceline_client.delivery import RetryPolicy  # noqa: PLC0415

    dist = torch.distributed
    torch.cuda.init()
    store = dist.FileStore(str(folder / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    layers = [
        torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda")
        for _ in range(8)
    ]
    model = torch.nn.Sequential(*layers)
    for layer in layers:
        dist.fsdp.fully_shard(layer)
    dist.fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = paceline.attach(
        NOWHERE,
        "gpu-check",
        model=model,
        every=None,
        spool=folder / "spool",
        retry=RetryPolicy(give_up_after_s=0),
    )
    x = torch.randn(8, 256, 512, device="cuda")

    def train(steps: int) -> list[int]:
        ends_ns = [time.time_ns()]
        for _ in range(steps):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step()
            torch.cuda.synchronize()
            ends_ns.append(time.time_ns())
        return ends_ns

    train(WARM_UP)
    without_ns = _typical(train(STEPS))
    first = WARM_UP + STEPS + 3
    monitor.record(STEPS, at=first)
    train(3)
    ends_ns = train(STEPS)
    monitor.wait(30.0)
    monitor.close()
    dist.destroy_process_group()
    rows = list(_rows(folder / "spool"))
    per_step = len(rows) / STEPS
    cost_ns = (_typical(ends_ns) - without_ns) / max(per_step, 1.0)
    print(f"{torch.cuda.get_device_name()}: {per_step:.0f} operations a step")
    print(f"a recorded operation costs {cost_ns / 1e3:.1f} µs")
    yield from _faults(rows, first, ends_ns)


def _typical(ends_ns: list[int]) -> float:
    took = sorted(end - begin for begin, end in pairwise(ends_ns))
    return float(took[len(took) // 2])


def _rows(spool: Path) -> Iterator[Row]:
    for path in sorted(spool.rglob("*.share")):
        content = path.read_bytes()
        _, *lines = gzip.decompress(content[content.index(_GZIP) :]).decode().splitlines()
        for line in lines:
            row = json.loads(line)
            yield Row(row["step"], row["op"], row["start_ns"], row["start_ns"] + row["dur_ns"])


def _faults(rows: list[Row], first: int, ends_ns: list[int]) -> Iterator[str]:
    """Yield what is wrong with what was recorded; `ends_ns` are the ends of its steps."""
    for step in range(first, first + STEPS):
        mine = [row for row in rows if row.step == step]
        begin, end = ends_ns[step - first], ends_ns[step - first + 1]
        found = [next((row for row in mine if row.op == op), None) for op in _ORDER]
        if None in found:
            yield f"step {step} lacks operations: {sorted({row.op for row in mine})}"
            continue
        main = [row for row in found if row is not None]
        if any(later.start_ns < earlier.end_ns for earlier, later in pairwise(main)):
            yield f"step {step}: forward, backward and optimizer are not one after the other"
        outside = [r for r in mine if r.start_ns < begin - CLOCK_NS or r.end_ns > end + CLOCK_NS]
        if outside:
            yield f"step {step}: {len(outside)} operations are outside of it by the host's clock"
        backward = main[1]
        waits = [row for row in mine if row.op == "grads-reduce-scatter"]
        if not waits:
            yield f"step {step}: no wait for a reduction is recorded"
        inside = [
            row
            for row in waits
            if backward.start_ns <= row.start_ns and row.end_ns <= backward.end_ns
        ]
        if len(inside) < len(waits):
            yield f"step {step}: {len(waits) - len(inside)} waits are outside of the backward"


if __name__ == "__main__":
    sys.exit(main())
