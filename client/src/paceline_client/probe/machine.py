"""Probe all devices of this machine, each in a process of its own."""

from __future__ import annotations

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

from paceline_client.delivery import RetryPolicy, send_document
from paceline_client.machine import Machine, machine_of

# Processes that probe processors: one alone would have nothing to reduce.
_ON_PROCESSORS: Final = 2
# PyTorch takes long to start where a machine's disk is cold.
_STARTING_S: Final = 120.0
_FACTOR: Final = 12
_RANK: Final = "paceline_client.probe.rank"


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
        return send_document(server, self.path, self.document(), policy or RetryPolicy(60.0))


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
        PyTorch is not installed, or a GPU is in use. A device that fails is none: that is found.
    """
    cuda, count = _devices()
    machine = machine or machine_of()
    begun = datetime.now(timezone.utc)
    with tempfile.TemporaryDirectory(prefix="paceline-probe-") as folder:
        until = _STARTING_S + _FACTOR * seconds if give_up_after_s is None else give_up_after_s
        flags = [flag for flag, given in (("--cpu", not cuda), ("--busy", busy)) if given]
        lines = _run(count, Path(folder), seconds, until, flags)
    in_use = [line["busy"] for line in lines if "busy" in line]
    if in_use:
        raise ProbeError(f"{'; '.join(in_use)}: probe it while no job runs, or with --busy")
    devices = [_device(number, line) for number, line in enumerate(lines)]
    torch = next((line["torch"] for line in lines if "torch" in line), "unknown")
    return Measured(
        str(uuid.uuid4()), begun.isoformat(), machine.node, machine.guessed, torch, devices
    )


def _devices() -> tuple[bool, int]:
    """Return whether there are GPUs, and how many devices are probed."""
    try:
        import torch  # noqa: PLC0415 - not needed for anything else here
    except ImportError:
        raise ProbeError("a probe needs PyTorch, which is not installed here") from None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return (True, gpus) if gpus else (False, _ON_PROCESSORS)


def _run(
    count: int, folder: Path, seconds: float, limit_s: float, flags: Sequence[str]
) -> list[dict[str, Any]]:
    """Return what each process said; a device that stands still is given up after a while."""
    # The number of a GPU is then the one that nvidia-smi shows.
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ}
    running = [
        subprocess.Popen(  # noqa: S603 - this program's own module
            [
                *(sys.executable, "-m", _RANK, "--device", str(device)),
                *("--processes", str(count), "--seconds", str(seconds)),
                *("--store", str(folder / "store"), *flags),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for device in range(count)
    ]
    until = time.monotonic() + limit_s
    try:
        return [_said(process, until) for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _said(process: subprocess.Popen[str], until: float) -> dict[str, Any]:
    fault = ""
    try:
        out, err = process.communicate(timeout=max(until - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        fault = "it stands still"
    if not fault and process.returncode:
        last = (err.strip().splitlines() or ["it said nothing"])[-1]
        fault = f"its process ended with {process.returncode}: {last[:400]}"
    said: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith('{"device"') and line.endswith("}"):
            said = json.loads(line)
    return {**said, "error": fault} if fault else said


def _device(number: int, line: Mapping[str, Any]) -> Device:
    return Device(
        index=line.get("index", str(number)),
        model=line.get("model", "unknown"),
        uuid=line.get("uuid"),
        pci=line.get("pci"),
        measures=line.get("measures", {}),
        fault=line.get("error"),
    )
