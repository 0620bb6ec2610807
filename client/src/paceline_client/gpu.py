"""The GPU of this process: its identity, and readings of its state through NVML.

NVML's Python module ``nvidia-ml-py`` is optional. If it, the driver or a device's support of a
measurement is missing, the value is left out; nothing raises into the training. A driver that hangs
blocks a separate thread only: neither the pulse nor the training waits for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from paceline_client.environment import launcher_of, machine_of

_log = logging.getLogger("paceline_client")

READ_EVERY_S: Final = 60.0
# Maximum number of Xid error codes of the driver that are kept; older ones are dropped.
_MOST_XIDS: Final = 8
_NO_WAIT_MS: Final = 1
# Names of the same NVML function in newer and older versions.
_CLOCK_REASONS: Final = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
# NVML returns the largest number of the type if a value is not available.
_NOT_AVAILABLE: Final = 1 << 53
_UUID_PREFIXES: Final = ("GPU-", "MIG-")
# Time limit in seconds of a call; a driver that was not loaded takes one or two seconds to answer.
_NVML_WAIT_S: Final = 5.0


def location_metadata(rank: int, cuda: Any) -> dict[str, Any]:  # noqa: ANN401 - torch.cuda
    """Return the metadata of a rank's host and GPU; for rank 0 also of the launcher."""
    meta = machine_of().document(rank)
    launcher = launcher_of() if rank == 0 else {}
    if launcher:
        meta["launcher"] = launcher
    for key, value in gpu_of(cuda).items():
        meta[key] = {str(rank): value}
    return meta


def gpu_of(cuda: Any, environment: Mapping[str, str] = os.environ) -> dict[str, str]:  # noqa: ANN401 - torch.cuda
    """Return ``gpus``, ``gpu_uuids`` and ``gpu_pci`` of the current device, as far as available.

    Parameters
    ----------
    cuda : module
        `torch.cuda`.
    """
    if not cuda.is_available():
        return {}
    device = int(cuda.current_device())
    visible_devices = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    visible = visible_devices[device].strip() if device < len(visible_devices) else ""
    # The number of the device on the node: a process that may see only one GPU calls it number 0.
    gpu = {"gpus": visible if visible.isdecimal() else str(device)}
    try:
        properties = cuda.get_device_properties(device)
    except (AssertionError, RuntimeError):
        return gpu
    domain, bus, number = (
        getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")
    )
    address = ""
    if isinstance(domain, int) and isinstance(bus, int) and isinstance(number, int):
        address = f"{domain:08x}:{bus:02x}:{number:02x}.0"
    uuid = str(getattr(properties, "uuid", "") or "")
    if visible.startswith("MIG-"):
        # A MIG instance has its own UUID, but torch may return the UUID of the whole GPU.
        uuid = visible
    elif uuid and not uuid.startswith(_UUID_PREFIXES):
        uuid = f"GPU-{uuid}"
    elif not uuid and address:
        uuid = _uuid_by_nvml(address)
    if uuid:
        gpu["gpu_uuids"] = uuid
    if address:
        gpu["gpu_pci"] = address
    return gpu


def _uuid_by_nvml(address: str) -> str:
    """Return a GPU's UUID through NVML, for torch versions without UUIDs; empty if unknown.

    The training waits for this call, so a driver that hangs is given up after `_NVML_WAIT_S`.
    """
    uuids: list[str] = []

    def query() -> None:
        try:
            import pynvml  # noqa: PLC0415 - part of some installations only
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            try:
                handle = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
                uuid = pynvml.nvmlDeviceGetUUID(handle)
            finally:
                pynvml.nvmlShutdown()
        except Exception:  # noqa: BLE001 - whatever this version of NVML raises
            return
        uuids.append(uuid.decode() if isinstance(uuid, bytes) else str(uuid))

    thread = threading.Thread(target=query, name="paceline-nvml", daemon=True)
    thread.start()
    thread.join(_NVML_WAIT_S)
    return uuids[0] if uuids else ""


@dataclass
class Reading:
    """The state of a GPU at a point in time; None for values that are not available.

    `throttle` has the bits of `nvmlClocksEventReasons`. Memory errors are counted since the driver
    was loaded; `xids` are the codes of the driver's errors since the first reading.
    """

    clock_mhz: int | None = None  # of the multiprocessors
    most_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    throttle: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    memory_used: int | None = None  # bytes
    xids: tuple[int, ...] = ()

    def document(self, rank: int) -> dict[str, Any]:
        """Return the available values of the reading, for a pulse body."""
        values = {key: value for key, value in asdict(self).items() if value not in {None, ()}}
        return {"rank": rank, **values}


class GpuMonitor:
    """Reads the state of one GPU once a minute, on its own thread.

    Parameters
    ----------
    uuid, address : str
        ``GPU-…`` or ``MIG-…``, and the PCI address; the first that is not empty selects the device.
    nvml : module, optional
        By default `pynvml`, where it is installed.
    """

    def __init__(self, uuid: str, address: str, nvml: Any = None) -> None:  # noqa: ANN401 - a module
        self._uuid = uuid
        self._address = address
        self._nvml = nvml
        self._device: Any = None
        self._events: Any = None
        self._xids: tuple[int, ...] = ()
        self._unavailable = not (uuid or address)
        self._read_s: float | None = None
        self._reader: threading.Thread | None = None
        self._warned = False
        self._latest: deque[Reading] = deque(maxlen=1)

    def take(self, now_s: float) -> Reading | None:
        """Return a new reading or None, and start the next reading if it is due; never waits.

        `now_s` is monotonic.
        """
        reading = self._latest.popleft() if self._latest else None
        if self._reader is not None and self._reader.is_alive():
            if not self._warned and now_s - (self._read_s or 0.0) >= READ_EVERY_S:
                self._warned = True
                _log.warning("NVML does not answer: the pulse continues without this GPU's state")
        elif self.due(now_s):
            # Only one thread at a time, so that a driver that hangs blocks a single thread.
            self._reader = threading.Thread(
                target=self._read_on_thread, name="paceline-nvml", daemon=True
            )
            self._reader.start()
        return reading

    def _read_on_thread(self) -> None:
        began_s = time.monotonic()
        reading = self.read()
        # The driver hung during a slow reading, so the time of its values is unknown.
        if reading is not None and time.monotonic() - began_s < READ_EVERY_S:
            self._latest.append(reading)

    def due(self, now_s: float) -> bool:
        """Return whether a reading is due; if so, the next one is due `READ_EVERY_S` later."""
        if self._unavailable or (self._read_s is not None and now_s - self._read_s < READ_EVERY_S):
            return False
        self._read_s = now_s
        return True

    def read(self) -> Reading | None:
        """Return the present state of the device, None without NVML; waits for the driver."""
        if not self._unavailable and self._device is None:
            self._open()
        if self._unavailable:
            return None
        nvml, device = self._nvml, self._device
        self._collect_xids()

        def value(name: str, *arguments: int) -> int | None:
            function = getattr(nvml, name)
            return _number(lambda: function(device, *arguments))

        def ecc(kind: int) -> int | None:
            return value("nvmlDeviceGetTotalEccErrors", kind, nvml.NVML_VOLATILE_ECC)

        reasons = next((name for name in _CLOCK_REASONS if hasattr(nvml, name)), None)
        return Reading(
            clock_mhz=value("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            most_clock_mhz=value("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            temperature_c=value("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_mw=value("nvmlDeviceGetPowerUsage"),
            throttle=None if reasons is None else value(reasons),
            ecc_corrected=ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            memory_used=_number(lambda: nvml.nvmlDeviceGetMemoryInfo(device).used),
            xids=self._xids,
        )

    def _open(self) -> None:
        try:
            if self._nvml is None:
                import pynvml  # noqa: PLC0415 - part of some installations only

                self._nvml = pynvml
            nvml = self._nvml
            nvml.nvmlInit()
            if self._uuid:
                self._device = nvml.nvmlDeviceGetHandleByUUID(self._uuid.encode())
            else:
                self._device = nvml.nvmlDeviceGetHandleByPciBusId(self._address.encode())
        except ImportError:
            self._unavailable = True
            return
        except Exception as error:  # noqa: BLE001 - whatever this version of NVML raises
            _log.debug("NVML cannot open this GPU: %s", error)
            self._unavailable = True
            return
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._device, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events
        except Exception as error:  # noqa: BLE001 - not on every device, nor for every user
            _log.debug("NVML has no error events of this GPU: %s", error)

    def _collect_xids(self) -> None:
        if self._events is None:
            return
        nvml = self._nvml
        try:
            while True:
                event = nvml.nvmlEventSetWait_v2(self._events, _NO_WAIT_MS)
                self._xids = (*self._xids, int(event.eventData))[-_MOST_XIDS:]
        except Exception as error:  # noqa: BLE001 - includes the timeout
            _log.debug("no further error event of this GPU: %s", error)


def _number(read: Callable[[], Any]) -> int | None:
    """Return the number that `read` returns; None if the device does not provide it."""
    try:
        number = int(read())
    except Exception as error:  # noqa: BLE001 - whatever this version of NVML raises
        _log.debug("NVML does not provide a value: %s", error)
        return None
    return number if 0 <= number < _NOT_AVAILABLE else None
