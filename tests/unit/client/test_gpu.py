"""The identity of a GPU, and its state by NVML.

NVIDIA's own module `pynvml` reads the state from a driver library of these tests, which has its
functions, structures and errors. `make gpu-check` reads a real driver.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest

from app.pulse.body import read_pulse
from paceline_client import gpu
from paceline_client.gpu import GpuMonitor, Reading, gpu_of, location_metadata
from paceline_client.pulse.rows import HostData, Row, body_of

UUID = "GPU-8f6c4a1e-0000-0000-0000-000000000000"
MIB = 1 << 20


class Driver:
    """A driver's library: each function writes to the reference that it gets.

    `refused` are the functions that a device does not support; `xids` are returned one by one.
    """

    def __init__(self, *refused: str, xids: tuple[int, ...] = ()) -> None:
        self.refused = refused
        self.xids = list(xids)
        self.asked: list[str] = []
        self.handles: list[bytes] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*given: Any) -> int:  # noqa: ANN401 - of ctypes
            self.asked.append(name)
            if name in self.refused:
                return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self.answer(name, *given)

        return function

    def answer(self, name: str, *given: Any) -> int:  # noqa: ANN401 - of ctypes
        numbers = {
            "nvmlDeviceGetClockInfo": 1230,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetTemperature": 83,
            "nvmlDeviceGetPowerUsage": 412_000,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x20,
        }
        if name in numbers:
            given[-1]._obj.value = numbers[name]
        elif name == "nvmlDeviceGetTotalEccErrors":
            given[-1]._obj.value = 2 if given[1].value == 1 else 17
        elif name == "nvmlDeviceGetMemoryInfo":
            given[-1]._obj.used = 61 * MIB
        elif name == "nvmlDeviceGetHandleByUUID":
            self.handles.append(given[0].value)
        elif name == "nvmlEventSetWait_v2":
            if not self.xids:
                return int(pynvml.NVML_ERROR_TIMEOUT)
            given[1]._obj.eventData = self.xids.pop(0)
        return 0


class Hanging(Driver):
    """A driver that does not return the power of a device before `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def answer(self, name: str, *given: Any) -> int:  # noqa: ANN401 - of ctypes
        if name == "nvmlDeviceGetPowerUsage":
            self.goes_on.wait(60)
        return super().answer(name, *given)


def driven(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> GpuMonitor:
    monkeypatch.setattr(pynvml, "nvmlLib", driver)
    # pynvml caches the functions that it has looked up.
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return GpuMonitor(UUID, "")


def test_a_device_is_read_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    assert driven(monkeypatch, driver).read() == Reading(
        clock_mhz=1230,
        most_clock_mhz=1980,
        temperature_c=83,
        power_mw=412_000,
        throttle=0x20,
        ecc_corrected=17,
        ecc_uncorrected=2,
        memory_used=61 * MIB,
    )
    assert driver.handles == [UUID.encode()]


def test_readings_that_a_device_does_not_support_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetPowerUsage")
    reading = driven(monkeypatch, driver).read()
    assert reading is not None
    assert reading.document(3) == {
        "rank": 3,
        "clock_mhz": 1230,
        "most_clock_mhz": 1980,
        "temperature_c": 83,
        "throttle": 0x20,
        "memory_used": 61 * MIB,
    }


def test_errors_of_the_driver_are_kept_the_last_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(xids=tuple(range(40, 50)))
    device = driven(monkeypatch, driver)
    first = device.read()
    driver.xids = [79]
    again = device.read()
    assert first is not None
    assert first.xids == tuple(range(42, 50))
    assert again is not None
    assert again.xids == (*range(43, 50), 79)


@pytest.mark.parametrize("lacks", ["nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID"])
def test_a_device_that_is_not_there_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    driver = Driver(lacks)
    device = driven(monkeypatch, driver)
    assert device.read() is None
    asked = len(driver.asked)
    assert device.read() is None
    assert len(driver.asked) == asked


def test_without_a_driver_or_its_module_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # pynvml's own loader, on a machine without a driver.
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    assert GpuMonitor(UUID, "").read() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuMonitor(UUID, "").read() is None


def _no_library(name: str) -> None:
    raise OSError(name)


def test_it_is_read_once_a_minute() -> None:
    device = GpuMonitor(UUID, "")
    assert [device.due(now_s) for now_s in (5.0, 10.0, 64.9, 65.0, 70.0)] == [
        *(True, False, False, True, False)
    ]
    assert not GpuMonitor("", "").due(5.0)


def test_a_driver_that_hangs_delays_nothing_and_holds_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Hanging()
    device = driven(monkeypatch, driver)
    others = threading.active_count()

    # `take` must not wait for the driver, which answers only at the end.
    found = [device.take(now_s) for now_s in (5.0, 10.0, 65.0, 130.0)]
    assert found == [None] * 4
    assert threading.active_count() == others + 1
    driver.goes_on.set()
    assert device._reader is not None
    device._reader.join()
    reading = device.take(131.0)
    assert reading is not None
    assert reading.power_mw == 412_000
    # The next reading was due at 65 s.
    assert device._reader is not None
    device._reader.join()
    assert device.take(132.0) is not None
    assert device.take(133.0) is None


def test_a_reading_after_a_long_wait_for_the_driver_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = driven(monkeypatch, Driver())
    monkeypatch.setattr(gpu, "READ_EVERY_S", 0.0)
    device._read_on_thread()
    assert device.take(0.0) is None


def test_a_body_holds_what_gpus_say(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = driven(monkeypatch, Driver(xids=(79,))).read()
    assert reading is not None
    row = Row(1, 3, 3, 0, 10**18, 10**9, 8 * 10**8, 0, 0, 0, 0, 0)
    body = body_of("node-000", [row], [], HostData(readings=[reading.document(3)]))
    assert len(read_pulse(body, 1).rows) == 1


UUID_PART = "5a3f1c2e-0000-4000-8000-00000000000b"


@dataclass
class Cuda:
    """The parts of `torch.cuda` that describe two GPUs."""

    device: int = 1
    properties: Any = field(
        default_factory=lambda: SimpleNamespace(
            uuid=UUID_PART, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0
        )
    )

    def is_available(self) -> bool:
        return self.device >= 0

    def current_device(self) -> int:
        return self.device

    def get_device_properties(self, device: int) -> Any:  # noqa: ANN401 - as torch has it
        assert device == self.device
        return self.properties


def test_a_gpu_has_uuid_number_and_address() -> None:
    assert gpu_of(Cuda(), {}) == {
        "gpus": "1", "gpu_uuids": f"GPU-{UUID_PART}", "gpu_pci": "00000000:3b:00.0",
    }  # fmt: skip


def test_without_gpus_no_readings_are_sent() -> None:
    assert gpu_of(Cuda(device=-1), {}) == {}


def test_the_number_is_that_of_the_node_where_a_process_sees_one_gpu() -> None:
    assert gpu_of(Cuda(device=0), {"CUDA_VISIBLE_DEVICES": "6"})["gpus"] == "6"
    assert gpu_of(Cuda(device=0), {"CUDA_VISIBLE_DEVICES": f"GPU-{UUID_PART}"})["gpus"] == "0"


def test_a_part_of_a_gpu_keeps_its_whole_name() -> None:
    mig = f"MIG-{UUID_PART}"
    found = gpu_of(Cuda(device=1), {"CUDA_VISIBLE_DEVICES": f"MIG-x, {mig}"})
    assert (found["gpus"], found["gpu_uuids"]) == ("1", mig)


def test_a_uuid_with_its_kind_is_kept() -> None:
    amd = SimpleNamespace(uuid="GPU-d1ce5cee8b0e9c29")
    assert gpu_of(Cuda(properties=amd), {}) == {"gpus": "1", "gpu_uuids": "GPU-d1ce5cee8b0e9c29"}


def test_an_older_torch_leaves_the_uuid_to_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = ModuleType("pynvml")
    asked: list[bytes] = []
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByPciBusId = asked.append  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetUUID = lambda _: f"GPU-{UUID_PART}".encode()  # type: ignore[attr-defined]
    older = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_of(Cuda(properties=older), {})["gpu_uuids"] == f"GPU-{UUID_PART}"
    assert asked == [b"00000000:3b:00.0"]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "gpu_uuids" not in gpu_of(Cuda(properties=older), {})


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, goes_on = ModuleType("pynvml"), threading.Event()
    nvml.nvmlInit = lambda: goes_on.wait(60)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpu, "_NVML_WAIT_S", 0.01)
    older = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    assert gpu_of(Cuda(properties=older), {}) == {"gpus": "1", "gpu_pci": "00000000:3b:00.0"}
    goes_on.set()


def test_a_rank_says_where_it_runs_and_rank_0_also_what_launched_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key, value in {
        "PACELINE_NODE": "node-7",
        "LOCAL_RANK": "3",
        "SLURM_JOB_ID": "4711",
    }.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert location_metadata(11, Cuda()) == {
        "hosts": {"11": "node-7"},
        "local_ranks": {"11": 3},
        "gpus": {"11": "1"},
        "gpu_uuids": {"11": f"GPU-{UUID_PART}"},
        "gpu_pci": {"11": "00000000:3b:00.0"},
    }
    assert location_metadata(0, Cuda(device=-1)) == {
        "hosts": {"0": "node-7"},
        "local_ranks": {"0": 3},
        "launcher": {"name": "slurm", "job": "4711"},
    }
