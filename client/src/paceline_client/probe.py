"""Probe an idle machine: measure how fast its devices multiply, copy and reduce.

A session names the slow worker; a probe confirms or clears its machine before it is replaced. The
server compares the figures with those of the same kind of device elsewhere.

Each device is measured by a process of its own, ``python -m paceline_client.probe``. All devices of
a machine are measured at the same time, as in training: a power supply or a bus that several share
shows only then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from paceline_client.delivery import RetryPolicy, send_document
from paceline_client.environment import Machine, machine_of
from paceline_client.gpu import gpu_of

# Number of untimed operations at the start, which also choose kernels and allocate memory.
_WARM_UP: Final = 3
# Number of operations that are timed together, so that the wait for the device is a small part of
# the time.
_IN_A_ROW: Final = 4
_LEAST_ROUNDS: Final = 5
# Matrix sizes that are large enough for the device to be the limit, not the launch of its kernels.
_MATRIX: Final = {"cuda": 8192, "cpu": 768}
_COPIED_BYTES: Final = {"cuda": 1 << 30, "cpu": 64 << 20}
_MOVED_BYTES: Final = 256 << 20
_REDUCED_BYTES: Final = {"cuda": 256 << 20, "cpu": 16 << 20}
# A probe uses at most the free memory divided by this number.
_PARTS_OF_FREE: Final = 8
# Maximum length in characters of the server's sentence and of an address.
_LONGEST_SENTENCE: Final = 2048
_TERA: Final = 1e12
_GIGA: Final = 1e9


@dataclass(frozen=True)
class Bench:
    """A device to measure: PyTorch, the device, and the duration of each measurement."""

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
        """Return whether the device is a GPU."""
        return self.kind == "cuda"

    def wait(self) -> None:
        """Wait until the device has completed all queued work."""
        if self.is_gpu:
            self.torch.cuda.synchronize(self.device)

    def buffer(self, size_bytes: int) -> Any:  # noqa: ANN401 - a tensor
        """Return a tensor of `size_bytes` bytes, or a smaller one if little memory is free."""
        if self.is_gpu:
            free, _ = self.torch.cuda.mem_get_info(self.device)
            size_bytes = min(size_bytes, free // _PARTS_OF_FREE)
        return self.torch.zeros(size_bytes, dtype=self.torch.uint8, device=self.device)


def matmul_tflops(bench: Bench) -> float | None:
    """Return the TFLOP/s of a square matrix product: bfloat16 on GPUs, float32 on CPUs."""
    n, torch = _MATRIX[bench.kind], bench.torch
    dtype = torch.bfloat16 if bench.is_gpu else torch.float32
    # Random values, because GPUs reach higher clocks with zeros.
    left, right = (torch.randn(n, n, device=bench.device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    return 2 * n**3 / _seconds(bench, lambda: torch.matmul(left, right, out=product)) / _TERA


def memory_copy_gbs(bench: Bench) -> float | None:
    """Return the GB/s, read and written, of a copy within the device's memory."""
    source = bench.buffer(_COPIED_BYTES[bench.kind])
    target = bench.torch.empty_like(source)
    size_bytes = int(source.numel())
    return 2 * size_bytes / _seconds(bench, lambda: target.copy_(source)) / _GIGA


def host_to_device_gbs(bench: Bench) -> float | None:
    """Return the GB/s of a copy from pinned host memory to the GPU; None without a GPU."""
    if not bench.is_gpu:
        return None
    device, host = _pair(bench)
    size_bytes = int(host.numel())
    return size_bytes / _seconds(bench, lambda: device.copy_(host, non_blocking=True)) / _GIGA


def device_to_host_gbs(bench: Bench) -> float | None:
    """Return the GB/s of a copy from the GPU to pinned host memory; None without a GPU."""
    if not bench.is_gpu:
        return None
    device, host = _pair(bench)
    size_bytes = int(host.numel())
    return size_bytes / _seconds(bench, lambda: host.copy_(device, non_blocking=True)) / _GIGA


def all_reduce_gbs(bench: Bench) -> float | None:
    """Return the bus GB/s of an all-reduce over the machine's devices; None for a single device.

    Bus bandwidth is that of nccl-tests: bytes a second times 2 (n - 1) / n, which does not
    depend on the number of devices.
    """
    n = bench.processes
    if n == 1:
        return None
    torch = bench.torch
    bench.join()
    data = bench.buffer(_REDUCED_BYTES[bench.kind]).view(torch.float32)
    # All devices run the same number of rounds, because otherwise some would wait for devices that
    # have finished.
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
    """Return an operation's median duration in seconds over `rounds`, or over the time limit."""
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


# Number of processes that probe a machine without GPUs, as a single process has nothing to reduce.
_CPU_PROCESSES: Final = 2
# Components of a probe's time limit: the start of PyTorch, which is slow from a cold disk, and a
# multiple of each measurement's duration.
_STARTING_S: Final = 120.0
_FACTOR: Final = 12
# Time in seconds to wait for a killed process, which may not end if it waits for a broken device.
_ENDING_S: Final = 5.0
_MODULE: Final = "paceline_client.probe"
# Folder in which NVIDIA's driver has a subfolder for each GPU.
_DRIVER: Final = Path("/proc/driver/nvidia/gpus")


class ProbeError(Exception):
    """The machine cannot be probed; the message gives the reason."""


@dataclass(frozen=True)
class Device:
    """The measurements of a device.

    Parameters
    ----------
    index : str
        Number of the device on the machine.
    model : str
        Kind of the device, such as ``NVIDIA H200``; the server compares devices of one kind.
    measures : mapping of str to float
        The figure of each supported measure of `paceline_client.probe.MEASURES`.
    fault : str or None
        Why the device could not be measured.
    """

    index: str
    model: str
    uuid: str | None = None
    pci: str | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    fault: str | None = None


@dataclass(frozen=True)
class Measured:
    """A probe of a machine; the server stores each ``id`` only once."""

    id: str
    at: str  # start, ISO 8601
    host: str
    guessed: bool  # whether the host's name may be that of a container
    torch: str
    devices: Sequence[Device]

    @property
    def path(self) -> str:
        """The path of the machine's probes on a server."""
        return f"/api/v1/hosts/{quote(self.host, safe='')}/probes"

    def document(self) -> dict[str, Any]:
        """Return the probe as a document for the server."""
        document = asdict(self)
        del document["host"]
        document["devices"] = [
            {key: value for key, value in asdict(device).items() if value is not None}
            for device in self.devices
        ]
        return document

    def send(self, server: str, policy: RetryPolicy | None = None) -> tuple[str, str]:
        """Send the probe, and return the server's verdict on the machine and its page's address.

        Raises `paceline_client.delivery.DeliveryError` if the server refuses it or is unavailable,
        and `ValueError` if `server` is not an http or https address.
        """
        answer = send_document(server, self.path, self.document(), policy or RetryPolicy(60.0))
        return answer.text("sentence", _LONGEST_SENTENCE), answer.text("url", _LONGEST_SENTENCE)


def probe(
    *,
    seconds: float = 2.0,
    busy: bool = False,
    machine: Machine | None = None,
    give_up_after_s: float | None = None,
) -> Measured:
    """Measure all devices of this machine at the same time: its GPUs, or without GPUs its CPUs.

    Parameters
    ----------
    seconds : float
        Duration of each measurement.
    busy : bool
        Also measure GPUs that other programs use; their figures are then of little value.
    machine : Machine, optional
        The machine to name in the result; by default the one that the environment names.
    give_up_after_s : float, optional
        Time limit of a device: by default two minutes, for the start of PyTorch, and twelve times
        `seconds`.

    Raises
    ------
    ProbeError
        PyTorch is not installed or sees none of the machine's GPUs, or a GPU is in use. A device
        that fails raises nothing; the result contains its error.
    """
    cuda, count = devices()
    machine = machine or machine_of()
    begun = datetime.now(timezone.utc)
    with tempfile.TemporaryDirectory(prefix="paceline-probe-") as folder:
        until = _STARTING_S + _FACTOR * seconds if give_up_after_s is None else give_up_after_s
        flags = [flag for flag, is_set in (("--cpu", not cuda), ("--busy", busy)) if is_set]
        lines = _run(count, Path(folder), seconds, until, flags)
    in_use = [line["busy"] for line in lines if "busy" in line]
    if in_use:
        raise ProbeError(f"{'; '.join(in_use)}: probe it while no job runs, or with --busy")
    measured = [
        Device(
            index=line.get("index", str(number)),
            model=line.get("model", "unknown"),
            uuid=line.get("uuid"),
            pci=line.get("pci"),
            measures=line.get("measures", {}),
            fault=line.get("error"),
        )
        for number, line in enumerate(without_waits(lines))
    ]
    torch = next((line["torch"] for line in lines if "torch" in line), "unknown")
    return Measured(
        str(uuid.uuid4()), begun.isoformat(), machine.node, machine.guessed, torch, measured
    )


def devices(driver: Path = _DRIVER) -> tuple[bool, int]:
    """Return whether there are GPUs, and the number of devices to probe.

    Raises
    ------
    ProbeError
        PyTorch is not installed, or sees no GPU although the driver does: probing processors
        instead would clear a broken machine.
    """
    try:
        import torch  # noqa: PLC0415 - not needed for anything else here
    except ImportError:
        raise ProbeError("a probe needs PyTorch, which is not installed here") from None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    in_driver = len(list(driver.iterdir())) if driver.is_dir() else 0
    if in_driver and not gpus:
        message = (
            f"PyTorch sees none of this machine's {in_driver} GPUs: ask the scheduler for them"
        )
        raise ProbeError(f"{message}, or look at the driver")
    return (True, gpus) if gpus else (False, _CPU_PROCESSES)


def without_waits(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the processes' results without errors of processes that only waited for another.

    If a device fails before the all-reduce, the processes of the other devices fail in the
    all-reduce, because that device never joins it.
    """

    def reduces(line: Mapping[str, Any]) -> bool:
        return bool(line.get("measuring") == all_reduce_gbs.__name__)

    if all(reduces(line) for line in lines if "error" in line):
        return list(lines)
    return [
        {key: value for key, value in line.items() if key != "error"} if reduces(line) else line
        for line in lines
    ]


def _run(
    count: int, folder: Path, seconds: float, limit_s: float, flags: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the result of each process; processes are killed after `limit_s`."""
    # With this order, GPU numbers are those of nvidia-smi.
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ}
    running: list[subprocess.Popen[bytes]] = []
    until = time.monotonic() + limit_s
    try:
        for device in range(count):
            out, err = _output_files(folder, device)
            # Files instead of pipes: a process with much output, such as from NCCL, would block on
            # a full pipe.
            with out.open("wb") as stdout, err.open("wb") as stderr:
                command = [
                    *(sys.executable, "-m", _MODULE, "--device", str(device)),
                    *("--processes", str(count), "--seconds", str(seconds)),
                    *("--store", str(folder / "store"), *flags),
                ]
                running.append(
                    subprocess.Popen(  # noqa: S603 - this program's own module
                        command, stdout=stdout, stderr=stderr, env=environment
                    )
                )
        return [
            _result(process, until, *_output_files(folder, device))
            for device, process in enumerate(running)
        ]
    finally:
        for process in running:
            _end(process)


def _output_files(folder: Path, device: int) -> tuple[Path, Path]:
    return folder / f"{device}.out", folder / f"{device}.err"


def _result(process: subprocess.Popen[bytes], until: float, out: Path, err: Path) -> dict[str, Any]:
    """Return the last line of a process's output as a document, with the error if it failed."""
    fault = ""
    try:
        process.wait(timeout=max(until - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        _end(process)
        fault = "it stands still"
    if not fault and process.returncode:
        last = (_read(err).strip().splitlines() or ["it said nothing"])[-1]
        fault = f"its process ended with {process.returncode}: {last[:400]}"
    result: dict[str, Any] = {}
    for line in _read(out).splitlines():
        if line.startswith('{"device"') and line.endswith("}"):
            result = json.loads(line)
    return {**result, "error": fault} if fault else result


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING_S)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


_UNITS: Final = {"tflops": "TFLOP/s", "gbs": "GB/s"}


def lines_of(measured: Measured) -> Iterator[str]:
    """Yield the lines of a probe's text: the machine, then each device with its figures."""
    guess = " (a guess: the name of a container)" if measured.guessed else ""
    yield f"{measured.host}{guess}: {len(measured.devices)} devices, PyTorch {measured.torch}"
    for device in measured.devices:
        uuid = f", {device.uuid}" if device.uuid else ""
        yield f"  {device.index}: {device.model}{uuid}"
        for name, value in device.measures.items():
            what, _, unit = name.rpartition("_")
            yield f"    {what.replace('_', ' '):16} {value:10,.4g} {_UNITS[unit]}"
        if device.fault is not None:
            yield f"    failed: {device.fault}"


# Share of a GPU's memory that the driver and monitors use without a job; a GPU of which more is in
# use is busy.
_BUSY_FROM: Final = 0.05
# Time limit in seconds of a device's wait for the others; a device that failed never joins.
_PEERS_S: Final = 30.0
_CPU_INFO: Final = Path("/proc/cpuinfo")


def main() -> int:
    """Measure a device, and print all results so far as a line of JSON after each measurement.

    The last line is the result, so that a measurement that hangs loses no earlier one. If the
    device fails, the last line contains the error.
    """
    parser = argparse.ArgumentParser()
    for name in ("--device", "--processes"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    import torch  # noqa: PLC0415 - the parent process has checked that it is installed

    results: dict[str, Any] = {"device": options.device}
    try:
        for partial in _measure(torch, options):
            results.update(partial)
            sys.stdout.write(json.dumps(results) + "\n")
            sys.stdout.flush()
    except (RuntimeError, AssertionError) as error:
        # Raised by torch if the device fails
        results["error"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
        sys.stdout.write(json.dumps(results) + "\n")
    return 0


def _measure(torch: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - not typed here
    """Yield the description of the device, then all measurements so far after each measurement."""
    described: dict[str, Any]
    if options.cpu:
        device = torch.device("cpu")
        torch.set_num_threads(max(1, torch.get_num_threads() // options.processes))
        described = {"model": _processor(), "index": str(options.device)}
    else:
        device = torch.device("cuda", options.device)
        torch.cuda.set_device(device)
        if not options.busy and (fault := _in_use(torch, device)):
            yield {"busy": fault}
            return
        gpu = gpu_of(torch.cuda)
        described = {"model": torch.cuda.get_device_name(device), "index": gpu["gpus"]}
        for name, key in (("uuid", "gpu_uuids"), ("pci", "gpu_pci")):
            if key in gpu:
                described[name] = gpu[key]
    yield {**described, "torch": torch.__version__}

    def join() -> None:
        torch.distributed.init_process_group(
            "gloo" if options.cpu else "nccl",
            store=torch.distributed.FileStore(options.store, options.processes),
            rank=options.device,
            world_size=options.processes,
            timeout=timedelta(seconds=_PEERS_S + len(MEASURES) * options.seconds),
        )

    bench = Bench(torch, device, options.seconds, options.processes, join)
    measures: dict[str, float] = {}
    for name, measure in MEASURES.items():
        yield {"measuring": name}
        value = measure(bench)
        if value is not None:
            measures[name] = value
            yield {"measures": measures}
    if options.processes > 1:
        torch.distributed.destroy_process_group()


def _in_use(torch: Any, device: Any) -> str:  # noqa: ANN401 - not typed here
    free, total = torch.cuda.mem_get_info(device)
    used = total - free
    # The memory that this process reserved for the query itself
    own = torch.cuda.memory_reserved(device)
    if (used - own) / total <= _BUSY_FROM:
        return ""
    return f"GPU {device.index} is in use: {used / 2**30:.0f} of {total / 2**30:.0f} GiB are taken"


def _processor() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
