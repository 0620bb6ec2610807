"""`make gpu-check`: hooks, pulse and NVML on a real GPU: order, clocks and cost.

Some steps of a small transformer under FSDP2 on one GPU are recorded and not sent. Every operation
has to lie within its step by the host's clock, in the order of the program, and the waits for
earlier reductions within the backward pass. Meanwhile the pulse is sent to a listener in this
process: its rows have to follow the host's clock, compilation must not count as computing, and NVML
is read. Without a GPU it prints that and checks nothing; without ``nvidia-ml-py`` it does not read
NVML. It needs PyTorch and the client, and no server.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

STEPS: Final = 40
WARM_UP: Final = 10
# Allowed difference between the clocks of device and host: an event is read after it happened.
CLOCK_NS: Final = 2_000_000
_GZIP: Final = b"\x1f\x8b"
# Allowed difference of step times between pulse and host clock, for single steps and for their sum.
_STEP_OFF: Final = 0.25
_ALL_OFF: Final = 0.05
_COMPILES_S: Final = 1.0
_READINGS: Final = 20
_ORDER: Final = ("forward-compute", "backward-compute", "optimizer")


@dataclass(frozen=True)
class Row:
    """A recorded operation."""

    step: int
    op: str
    start_ns: int
    end_ns: int


def main() -> int:
    """Return 0 if all checks pass, or if there is no GPU."""
    try:
        import torch  # noqa: PLC0415 - not installed everywhere
    except ImportError:
        print("skipped: PyTorch is not installed")
        return 0
    if not torch.cuda.is_available():
        print("skipped: there is no GPU")
        return 0
    os.environ |= {"PACELINE_PULSE_S": "1", "no_proxy": "127.0.0.1"}
    with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as name, _listening() as received:
        faults = [*_checked(torch, Path(name), received), *_read(torch, received)]
    for fault in faults:
        print(f"wrong: {fault}")
    return 1 if faults else 0


@dataclass
class ReceivedPulse:
    """Received bodies of the pulse, by the path of their request."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def steps(self) -> dict[int, dict[str, int]]:
        """Return the measures of each step."""
        measures = {}
        for body in self.bodies:
            columns = body["columns"]
            # Null for a missing value, otherwise the difference to the last value before it.
            values = {name: _summed(column) for name, column in columns.items()}
            for at, took in enumerate(columns["step_ns"]):
                if took is not None:
                    measures[values["step"][at]] = {name: of[at] for name, of in values.items()}
        return measures


def _summed(column: list[int | None]) -> list[int]:
    return list(accumulate(value or 0 for value in column))


@contextmanager
def _listening() -> Iterator[ReceivedPulse]:
    """Accept the pulse as a server does; chunks of sessions are refused with a request to retry."""
    received = ReceivedPulse()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if self.path.endswith("/pulse"):
                received.bodies.append(json.loads(gzip.decompress(body)))
                self._answer(202, {"record": None, "pulse_s": 1, "files": False})
            elif self.path.endswith("/attempts"):
                self._answer(201, {"attempt": 1})
            else:
                self._answer(503, {})

        do_PUT = do_POST  # noqa: N815 - name of the library

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _read(torch: Any, received: ReceivedPulse) -> Iterator[str]:  # noqa: ANN401 - not typed here
    """Read the device by NVML; yield the faults of the reading and of the pulse's counters."""
    from paceline_client.gpu import GpuMonitor, gpu_of  # noqa: PLC0415 - as PyTorch

    if importlib.util.find_spec("pynvml") is None:
        print("not read: nvidia-ml-py is not installed")
        return
    gpu = gpu_of(torch.cuda)
    uuid, address = gpu.get("gpu_uuids", ""), gpu.get("gpu_pci", "")
    by_uuid, by_address = GpuMonitor(uuid, ""), GpuMonitor("", address)
    reading, other = by_uuid.read(), by_address.read()
    began_s = time.perf_counter()
    for _ in range(_READINGS):
        by_uuid.read()
    cost_ms = 1e3 * (time.perf_counter() - began_s) / _READINGS
    print(f"{uuid} at {address}, NVML: {reading}")
    print(f"a reading takes {cost_ms:.2f} ms")
    for name, reading_ in (("UUID", reading), ("PCI address", other)):
        if reading_ is None:
            yield f"NVML does not find the device by its {name}"
    if reading is None:
        return
    devices = [
        ("clock_mhz", 100, reading.most_clock_mhz or 10_000),
        ("most_clock_mhz", 500, 10_000),
        ("temperature_c", 10, 120),
        ("power_mw", 5_000, 2_000_000),
        ("memory_used", 1 << 20, torch.cuda.get_device_properties(0).total_memory * 1.1),
    ]
    for name, least, most in devices:
        value = getattr(reading, name)
        if value is None or not least <= value <= most:
            yield f"{name} is {value}, and not from {least} to {most:.0f}"
    if reading.throttle is None:
        yield "NVML does not tell why clocks are low"
    readings = [reading_ for body in received.bodies for reading_ in body.get("hardware", [])]
    if len(readings) != 1 or readings[0].get("clock_mhz") is None:
        yield f"the pulse of half a minute has {readings} of its device, and not one reading"


def _pulse_faults(
    received: ReceivedPulse, ends_ns: list[int], first: int, compiled: int
) -> Iterator[str]:
    """Yield the faults in the rows of a pulse.

    `ends_ns` are the ends of steps from `first` on by the host's clock; in step `compiled` code was
    compiled.
    """
    steps = received.steps()
    print(f"the pulse has {len(steps)} steps in {len(received.bodies)} bodies")
    last = first + len(ends_ns) - 1
    if missing := [step for step in range(last) if step not in steps]:
        yield f"the pulse lacks steps {missing[:8]}"
        return
    own = [steps[step] for step in range(first, last)]
    took = [end - begin for begin, end in pairwise(ends_ns)]
    off = [abs(row["step_ns"] / by_host - 1) for row, by_host in zip(own, took, strict=True)]
    print(f"steps of the pulse are {sum(off) / len(off):.1%} off the host's clock, {max(off):.1%}")
    if sum(off) / len(off) > _ALL_OFF or sorted(off)[len(off) // 2] > _STEP_OFF:
        yield f"steps of the pulse are {sum(off) / len(off):.1%} off those of the host's clock"
    for step, row in enumerate(own, first):
        busy = row["compute_ns"] + row["wait_ns"] + row["optimizer_ns"]
        if not 0 < row["compute_ns"] <= busy <= 1.02 * row["step_ns"]:
            yield f"step {step} of {row['step_ns']} ns was busy for {busy} ns"
    measures = steps.get(compiled)
    if measures is None:
        yield f"the pulse lacks step {compiled}, in which code was compiled"
        return
    print(
        f"a step with a compilation took {measures['step_ns'] / 1e9:.2f} s, "
        f"computing {measures['compute_ns'] / 1e9:.3f} s"
    )
    if not measures["compute_ns"] < measures["step_ns"] - 0.9e9 * _COMPILES_S:
        yield "what was compiled counts as computing"


def _checked(torch: Any, folder: Path, received: ReceivedPulse) -> Iterator[str]:  # noqa: ANN401 - not typed here
    import paceline_client.torch as paceline  # noqa: PLC0415 - needs PyTorch
    from paceline_client.delivery import RetryPolicy  # noqa: PLC0415

    dist = torch.distributed
    torch.cuda.init()
    store = dist.FileStore(str(folder / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    model = _sharded(torch)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 256, 512, device="cuda")

    def train(steps: int, ended: Callable[[], object]) -> list[int]:
        ends_ns = [time.time_ns()]
        for _ in range(steps):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            ended()
            torch.cuda.synchronize()
            ends_ns.append(time.time_ns())
        return ends_ns

    train(WARM_UP, lambda: None)
    bare_ns = _typical(train(STEPS, lambda: None))
    monitor = paceline.attach(
        received.url,
        "gpu-check",
        model=model,
        every=None,
        spool=folder / "spool",
        retry=RetryPolicy(give_up_after_s=0),
    )
    train(WARM_UP, monitor.step)
    without_ns = _typical(train(STEPS, monitor.step))
    first = WARM_UP + STEPS + 3
    monitor.record(STEPS, at=first)
    train(3, monitor.step)
    ends_ns = train(STEPS, monitor.step)
    monitor.wait(30.0)

    # The same forward pass through code whose compilation takes a second; the first compilation
    # also loads the compiler.
    def compiles(module: Any, _inputs: Any) -> Any:  # noqa: ANN401 - not typed here
        time.sleep(_COMPILES_S)
        return module.forward

    doubled = torch.compile(lambda tensor: tensor * 2.0, backend=compiles, dynamic=False)
    doubled(x[:1])
    train(1, monitor.step)
    handle = model[0].register_forward_pre_hook(lambda _, given: (doubled(given[0]),))
    compiled = first + STEPS + 1
    train(1, monitor.step)
    handle.remove()
    train(2, monitor.step)
    monitor.close(30.0)
    dist.destroy_process_group()
    yield from _pulse_faults(received, ends_ns, first, compiled)
    rows = list(_rows(folder / "spool"))
    per_step = len(rows) / STEPS
    cost_ns = (_typical(ends_ns) - without_ns) / max(per_step, 1.0)
    print(f"{torch.cuda.get_device_name()}: {per_step:.0f} operations a step")
    pulse_ns = without_ns - bare_ns
    print(f"a step takes {bare_ns / 1e3:.0f} µs, {pulse_ns / 1e3:.1f} µs more with a pulse")
    print(f"a recorded operation costs {cost_ns / 1e3:.1f} µs")
    yield from _faults(rows, first, ends_ns)


def _sharded(torch: Any) -> Any:  # noqa: ANN401 - not typed here
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - not installed everywhere

    model = torch.nn.Sequential(
        *(
            torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda")
            for _ in range(8)
        )
    )
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


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
    """Yield the faults of the recorded operations; `ends_ns` are the ends of the steps."""
    for step in range(first, first + STEPS):
        of_step = [row for row in rows if row.step == step]
        begin, end = ends_ns[step - first], ends_ns[step - first + 1]
        ordered = [next((row for row in of_step if row.op == op), None) for op in _ORDER]
        if None in ordered:
            yield f"step {step} lacks operations: {sorted({row.op for row in of_step})}"
            continue
        main = [row for row in ordered if row is not None]
        if any(later.start_ns < earlier.end_ns for earlier, later in pairwise(main)):
            yield f"step {step}: forward, backward and optimizer are not one after the other"
        outside = [r for r in of_step if r.start_ns < begin - CLOCK_NS or r.end_ns > end + CLOCK_NS]
        if outside:
            yield f"step {step}: {len(outside)} operations are outside of it by the host's clock"
        backward = main[1]
        waits = [row for row in of_step if row.op == "grads-reduce-scatter"]
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
