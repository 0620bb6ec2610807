"""What a GPU says of itself, once a minute: by NVML, where its Python module is there.

``nvidia-ml-py`` is optional. Where it, the driver or a device's support of a measure is missing,
that is left out; nothing of it raises into the training. A driver that hangs holds a thread that
does nothing else: neither the pulse nor the training waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

_log = logging.getLogger("paceline_client")

EVERY_S: Final = 60.0
# Of the codes of errors that the driver has reported since the job began, the last ones.
_MOST_XIDS: Final = 8
_AT_ONCE_MS: Final = 1
# Names of one function in newer and older versions.
_REASONS: Final = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)


@dataclass
class Reading:
    """What NVML says of a device at a moment; None: it does not tell.

    `throttle` are the bits of `nvmlClocksEventReasons`; errors of memory are those since the driver
    was loaded, `xids` the codes of the driver's errors since the first reading.
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
        """Return what is known of the device of a rank, for a body."""
        known = {key: value for key, value in asdict(self).items() if value not in {None, ()}}
        return {"rank": rank, **known}


class Hardware:
    """Reads one device.

    Parameters
    ----------
    uuid, address : str
        ``GPU-…`` or ``MIG-…``, and the PCI address; the first that is not empty finds the device.
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
        self._gone = not (uuid or address)
        self._read_s: float | None = None
        self._reader: threading.Thread | None = None
        self._told = False
        # The last reading that was not taken yet.
        self._read_last: deque[Reading] = deque(maxlen=1)

    def take(self, now_s: float) -> Reading | None:
        """Return a reading that is new, and begin another one where it is due; waits for nothing.

        `now_s` is monotonic.
        """
        reading = self._read_last.popleft() if self._read_last else None
        if self._reader is not None and self._reader.is_alive():
            if not self._told and now_s - (self._read_s or 0.0) >= EVERY_S:
                self._told = True
                _log.warning("NVML does not answer: the pulse goes on without what this GPU says")
        elif self.due(now_s):
            # One at a time: behind one that hangs no others gather.
            self._reader = threading.Thread(
                target=self._read_apart, name="paceline-nvml", daemon=True
            )
            self._reader.start()
        return reading

    def _read_apart(self) -> None:
        began_s = time.monotonic()
        reading = self.read()
        # What a driver says after it hung is of no moment that is known.
        if reading is not None and time.monotonic() - began_s < EVERY_S:
            self._read_last.append(reading)

    def due(self, now_s: float) -> bool:
        """Return whether the last reading was a minute ago; that is counted then."""
        if self._gone or (self._read_s is not None and now_s - self._read_s < EVERY_S):
            return False
        self._read_s = now_s
        return True

    def read(self) -> Reading | None:
        """Return what the device says now; None without NVML. Waits for the driver."""
        if not self._gone and self._device is None:
            self._open()
        if self._gone:
            return None
        nvml, device = self._nvml, self._device
        self._take_xids()
        return Reading(
            clock_mhz=self._asked("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            most_clock_mhz=self._asked("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            temperature_c=self._asked("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_mw=self._asked("nvmlDeviceGetPowerUsage"),
            throttle=next(
                (self._asked(name) for name in _REASONS if hasattr(nvml, name)),
                None,
            ),
            ecc_corrected=self._errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=self._errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            memory_used=_whole(lambda: nvml.nvmlDeviceGetMemoryInfo(device).used),
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
            self._gone = True
        except Exception as error:  # noqa: BLE001 - whatever this version of NVML raises
            _log.debug("NVML says nothing of this GPU: %s", error)
            self._gone = True
        else:
            self._listen()

    def _listen(self) -> None:
        """Have the driver's errors of this device kept."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._device, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events
        except Exception as error:  # noqa: BLE001 - not on every device, nor for every user
            _log.debug("NVML tells no errors of this GPU: %s", error)

    def _take_xids(self) -> None:
        if self._events is None:
            return
        nvml = self._nvml
        try:
            while True:
                event = nvml.nvmlEventSetWait_v2(self._events, _AT_ONCE_MS)
                self._xids = (*self._xids, int(event.eventData))[-_MOST_XIDS:]
        except Exception as error:  # noqa: BLE001 - that the time is up, too
            _log.debug("no further error of this GPU: %s", error)

    def _asked(self, name: str, *how: int) -> int | None:
        function = getattr(self._nvml, name)
        return _whole(lambda: function(self._device, *how))

    def _errors(self, kind: int) -> int | None:
        return self._asked("nvmlDeviceGetTotalEccErrors", kind, self._nvml.NVML_VOLATILE_ECC)


def _whole(ask: Callable[[], Any]) -> int | None:
    """Return a number; None where the device does not tell it."""
    try:
        number = int(ask())
    except Exception as error:  # noqa: BLE001 - whatever this version of NVML raises
        _log.debug("NVML does not tell: %s", error)
        return None
    # What is not available is the largest number of its type.
    return number if 0 <= number < (1 << 53) else None
