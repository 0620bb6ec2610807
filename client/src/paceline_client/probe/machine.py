"""Probe all devices of this machine, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from paceline_client.delivery import RetryPolicy, not_paceline, send_document
from paceline_client.machine import Machine, machine_of
from paceline_client.probe.measures import all_reduce_gbs

# Processes that probe processors: one alone would have nothing to reduce.
_ON_PROCESSORS: Final = 2
# PyTorch takes long to start where a machine's disk is cold.
_STARTING_S: Final = 120.0
_FACTOR: Final = 12
# What waits for a broken device may not even end when it is killed; it is left then.
_ENDING_S: Final = 5.0
_RANK: Final = "paceline_client.probe.rank"
# Of each GPU that NVIDIA's driver knows a folder.
_DRIVER: Final = Path("/proc/driver/nvidia/gpus")


class ProbeError(Exception):
    """A machine cannot be probed; the message says why."""


@dataclass(frozen=True)
class Device:
    """What a probe found of one device.

    Parameters
    ----------
    index : str
        The number that the machine gives it.
    model : str
        What kind it is, such as ``NVIDIA H200``: it is compared with its like.
    measures : mapping of str to float
        The figure of each measure that it can do, `paceline_client.probe.MEASURES`.
    fault : str or None
        Why it could not be measured.
    """

    index: str
    model: str
    uuid: str | None = None
    pci: str | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    fault: str | None = None


@dataclass(frozen=True)
class Measured:
    """A probe of a machine; ``id`` makes it one entry, however often it is sent."""

    id: str
    at: str  # when it began, ISO 8601
    host: str
    guessed: bool  # whether the name may be that of a container
    torch: str
    devices: Sequence[Device]

    @property
    def path(self) -> str:
        """Return where on a server it belongs."""
        return f"/api/v1/hosts/{quote(self.host, safe='')}/probes"

    def document(self) -> dict[str, Any]:
        """Return it as the server takes it."""
        document = asdict(self)
        del document["host"]
        document["devices"] = [
            {key: value for key, value in asdict(device).items() if value is not None}
            for device in self.devices
        ]
        return document

    def send(self, server: str, policy: RetryPolicy | None = None) -> dict[str, Any]:
        """Send it, and return what the server says of the machine.

        Raises `paceline_client.delivery.DeliveryError` if the server refuses it or is away, and
        `ValueError` if `server` is no address.
        """
        said = send_document(server, self.path, self.document(), policy or RetryPolicy(60.0))
        if "sentence" not in said or "url" not in said:
            raise not_paceline(server)
        return said


def probe(
    *,
    seconds: float = 2.0,
    busy: bool = False,
    machine: Machine | None = None,
    give_up_after_s: float | None = None,
) -> Measured:
    """Measure every device of this machine at the same time; processors where it has no GPU.

    Parameters
    ----------
    seconds : float
        How long each measure runs.
    busy : bool
        Measure GPUs that others use too; what they then show says little.
    machine : Machine, optional
        By default the one that the environment names.
    give_up_after_s : float, optional
        When a device that has not answered stands still: by default two minutes, in which PyTorch
        starts, and twelve times `seconds`.

    Raises
    ------
    ProbeError
        PyTorch is not installed or sees none of the machine's GPUs, or one is in use. A device that
        fails is none: that is found.
    """
    cuda, count = devices()
    machine = machine or machine_of()
    begun = datetime.now(timezone.utc)
    with tempfile.TemporaryDirectory(prefix="paceline-probe-") as folder:
        until = _STARTING_S + _FACTOR * seconds if give_up_after_s is None else give_up_after_s
        flags = [flag for flag, given in (("--cpu", not cuda), ("--busy", busy)) if given]
        lines = _run(count, Path(folder), seconds, until, flags)
    in_use = [line["busy"] for line in lines if "busy" in line]
    if in_use:
        raise ProbeError(f"{'; '.join(in_use)}: probe it while no job runs, or with --busy")
    found = [_device(number, line) for number, line in enumerate(without_waits(lines))]
    torch = next((line["torch"] for line in lines if "torch" in line), "unknown")
    return Measured(
        str(uuid.uuid4()), begun.isoformat(), machine.node, machine.guessed, torch, found
    )


def devices(driver: Path = _DRIVER) -> tuple[bool, int]:
    """Return whether there are GPUs, and how many devices are probed.

    Raises
    ------
    ProbeError
        PyTorch is not installed, or sees no GPU where the driver does: processors instead of GPUs
        would clear a machine that is broken.
    """
    try:
        import torch  # noqa: PLC0415 - not needed for anything else here
    except ImportError:
        raise ProbeError("a probe needs PyTorch, which is not installed here") from None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = len(list(driver.iterdir())) if driver.is_dir() else 0
    if known and not gpus:
        message = f"PyTorch sees none of this machine's {known} GPUs: ask the scheduler for them"
        raise ProbeError(f"{message}, or look at the driver")
    return (True, gpus) if gpus else (False, _ON_PROCESSORS)


def without_waits(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what processes said without the errors of those that only waited for others.

    Devices reduce together: where one failed alone before, the others fail there because it never
    came.
    """
    failed = [line for line in lines if "error" in line]
    if all(_together(line) for line in failed):
        return list(lines)
    return [
        {key: value for key, value in line.items() if key != "error"} if _together(line) else line
        for line in lines
    ]


def _together(line: Mapping[str, Any]) -> bool:
    return bool(line.get("measuring") == all_reduce_gbs.__name__)


def _run(
    count: int, folder: Path, seconds: float, limit_s: float, flags: Sequence[str]
) -> list[dict[str, Any]]:
    """Return what each process said; a device that stands still is given up after a while."""
    # The number of a GPU is then the one that nvidia-smi shows.
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ}
    running: list[subprocess.Popen[bytes]] = []
    until = time.monotonic() + limit_s
    try:
        for device in range(count):
            out, err = _said_in(folder, device)
            # Not pipes, which fill up: NCCL may say much, and who cannot write keeps others.
            with out.open("wb") as stdout, err.open("wb") as stderr:
                command = [
                    *(sys.executable, "-m", _RANK, "--device", str(device)),
                    *("--processes", str(count), "--seconds", str(seconds)),
                    *("--store", str(folder / "store"), *flags),
                ]
                running.append(
                    subprocess.Popen(  # noqa: S603 - this program's own module
                        command, stdout=stdout, stderr=stderr, env=environment
                    )
                )
        return [
            _said(process, until, *_said_in(folder, device))
            for device, process in enumerate(running)
        ]
    finally:
        for process in running:
            _end(process)


def _said_in(folder: Path, device: int) -> tuple[Path, Path]:
    return folder / f"{device}.out", folder / f"{device}.err"


def _said(process: subprocess.Popen[bytes], until: float, out: Path, err: Path) -> dict[str, Any]:
    fault = ""
    try:
        process.wait(timeout=max(until - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        _end(process)
        fault = "it stands still"
    if not fault and process.returncode:
        last = (_read(err).strip().splitlines() or ["it said nothing"])[-1]
        fault = f"its process ended with {process.returncode}: {last[:400]}"
    said: dict[str, Any] = {}
    for line in _read(out).splitlines():
        if line.startswith('{"device"') and line.endswith("}"):
            said = json.loads(line)
    return {**said, "error": fault} if fault else said


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING_S)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _device(number: int, line: Mapping[str, Any]) -> Device:
    return Device(
        index=line.get("index", str(number)),
        model=line.get("model", "unknown"),
        uuid=line.get("uuid"),
        pci=line.get("pci"),
        measures=line.get("measures", {}),
        fault=line.get("error"),
    )
