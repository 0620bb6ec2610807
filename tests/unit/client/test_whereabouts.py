"""A GPU is named by its UUID, with the node's number of it and its PCI address."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline_client import whereabouts as whereabouts_module
from paceline_client.whereabouts import gpu_of, whereabouts

UUID = "5a3f1c2e-0000-4000-8000-00000000000b"


@dataclass
class Cuda:
    """What `torch.cuda` says of two GPUs."""

    device: int = 1
    properties: Any = field(
        default_factory=lambda: SimpleNamespace(
            uuid=UUID, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0
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
        "gpus": "1", "gpu_uuids": f"GPU-{UUID}", "gpu_pci": "00000000:3b:00.0",
    }  # fmt: skip


def test_without_gpus_nothing_is_said() -> None:
    assert gpu_of(Cuda(device=-1), {}) == {}


def test_the_number_is_that_of_the_node_where_a_process_sees_one_gpu() -> None:
    assert gpu_of(Cuda(device=0), {"CUDA_VISIBLE_DEVICES": "6"})["gpus"] == "6"
    assert gpu_of(Cuda(device=0), {"CUDA_VISIBLE_DEVICES": f"GPU-{UUID}"})["gpus"] == "0"


def test_a_part_of_a_gpu_keeps_its_whole_name() -> None:
    mig = f"MIG-{UUID}"
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
    nvml.nvmlDeviceGetUUID = lambda _: f"GPU-{UUID}".encode()  # type: ignore[attr-defined]
    older = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_of(Cuda(properties=older), {})["gpu_uuids"] == f"GPU-{UUID}"
    assert asked == [b"00000000:3b:00.0"]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "gpu_uuids" not in gpu_of(Cuda(properties=older), {})


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, goes_on = ModuleType("pynvml"), threading.Event()
    nvml.nvmlInit = lambda: goes_on.wait(60)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(whereabouts_module, "_NVML_WAIT_S", 0.01)
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
    assert whereabouts(11, Cuda()) == {
        "hosts": {"11": "node-7"},
        "local_ranks": {"11": 3},
        "gpus": {"11": "1"},
        "gpu_uuids": {"11": f"GPU-{UUID}"},
        "gpu_pci": {"11": "00000000:3b:00.0"},
    }
    assert whereabouts(0, Cuda(device=-1)) == {
        "hosts": {"0": "node-7"},
        "local_ranks": {"0": 3},
        "launcher": {"name": "slurm", "job": "4711"},
    }
